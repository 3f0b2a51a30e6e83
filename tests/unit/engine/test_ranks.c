/* An instance of several processes: the same tokens as one process by every route, stages that work at the
 * same time, ranks that die or stop.
 *
 * The ranks are forked, so each case is a process of its own in which no thread has run before: the
 * program calls itself with the case's name. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "drive.h"
#include "sys/clock.h"

#define MAX_RANKS 8
#define N_OUT     24

static const char *self, *model_path, *draft_model;

/* ---- an instance ---- */

struct instance {
    struct drive_options o;
    uint32_t n;
    pid_t pid[MAX_RANKS]; /* [0] unused */
    struct drive d;
};

/* Of the other ranks; NULL: as rank 0's. */
static const char *odd_kv_dtype;

/* A rank's life; 0 when it ended as it should. */
static int live(struct drive_options o, uint32_t rank)
{
    struct engine_options opt;
    struct err err = { "" };
    int st;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    o.ranks.rank = rank;
    close(o.ranks.listen_fd);
    o.ranks.listen_fd = -1;
    opt = drive_engine_options(&o);
    opt.model.kv_dtype = odd_kv_dtype;
    st = engine_worker_serve(&opt, &err);
    if (st < 0)
        fprintf(stderr, "rank %u ends: %s\n", rank, err.text);
    return st < 0 ? 3 : 0;
}

/* Starts the other ranks; the caller has no threads yet. */
static void start_ranks(struct instance *i, uint32_t pp, uint32_t tp)
{
    struct engine_ranks *r = &i->o.ranks;
    struct err err = { "" };

    r->pp = pp;
    r->tp = tp;
    r->host = r->master_host = "127.0.0.1";
    r->secret = "ranks";
    r->meet_seconds = 60;
    if (r->step_seconds == 0)
        r->step_seconds = 120;
    i->o.threads = 1;
    i->n = pp * tp;
    if (i->n > 1 && group_listen(&r->listen_fd, &r->master_port, "127.0.0.1", 0, &err) < 0)
        fail_msg("%s", err.text);
    fflush(NULL);
    for (uint32_t k = 1; k < i->n; k++)
        if ((i->pid[k] = fork()) == 0)
            _exit(live(i->o, k));
}

static int code_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void open_instance(struct instance *i)
{
    drive_open(&i->d, &i->o);
}

/* All ranks end as they should. */
static void close_instance(struct instance *i)
{
    drive_idle(&i->d);
    drive_close(&i->d);
    for (uint32_t k = 1; k < i->n; k++)
        assert_int_equal(code_of(i->pid[k]), 0);
}

/* ---- requests of many kinds ---- */

#define N_REQUESTS 10
static const uint32_t lengths[N_REQUESTS] = { 1, 7, 16, 33, 70, 150, 17, 64, 200, 31 };

static void make_prompt(int32_t *out, uint32_t n, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 1;

    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        out[i] = 2 + (int32_t)(x >> 16) % 400;
    }
}

/* Greedy and seeded, with penalties, biases, log-probabilities of the output and of the prompt. */
static void sampling_of(struct sampling *sp, uint32_t i)
{
    static struct logit_bias bias[] = { { 17, 3 }, { 99, -2 } };
    static int32_t want[] = { 5, 300 }, allowed[300];

    sampling_init(sp);
    sp->max_tokens = N_OUT;
    sp->ignore_eos = i % 3 != 0;
    sp->min_tokens = 4;
    sp->temperature = i % 2 ? 0.8f : 0;
    sp->seed = 1000 + i;
    sp->top_p = i % 4 == 1 ? 0.9f : 1;
    sp->logprobs = i % 3 == 0 ? 4 : -1;
    sp->presence_penalty = i % 3 == 1 ? 1 : 0;
    sp->repetition_penalty = i % 5 == 2 ? 1.3f : 1;
    sp->prompt_logprobs = i == 4 || i == 8 ? 2 : -1;
    if (i == 3) {
        sp->bias = bias;
        sp->n_bias = 2;
    }
    if (i == 6) {
        sp->want_ids = want;
        sp->n_want = 2;
    }
    for (int k = 0; k < 300; k++)
        allowed[k] = 3 + k;
    if (i == 7) {
        sp->allowed = allowed;
        sp->n_allowed = 300;
    }
}

static void submit_all(struct drive *d, struct outcome *out)
{
    int32_t prompt[256];

    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct sampling sp;

        sampling_of(&sp, i);
        make_prompt(prompt, lengths[i], i);
        drive_submit(d, &out[i], prompt, lengths[i], 0, &sp, NULL);
    }
}

static void wait_all(struct drive *d, struct outcome *out)
{
    struct outcome *all[N_REQUESTS];

    for (uint32_t i = 0; i < N_REQUESTS; i++)
        all[i] = &out[i];
    drive_wait(d, all, N_REQUESTS);
}

static void assert_same(const struct outcome *got, const struct outcome *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(got[i].finish, want[i].finish);
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].token, want[i].token, got[i].n * sizeof got[i].token[0]);
        assert_memory_equal(got[i].logprob, want[i].logprob, got[i].n * sizeof got[i].logprob[0]);
        assert_int_equal(got[i].n_prompt_logprobs, want[i].n_prompt_logprobs);
        assert_true(got[i].prompt_logprob_sum == want[i].prompt_logprob_sum);
    }
}

/* By one process, without a cache. */
static struct outcome alone[N_REQUESTS], got[N_REQUESTS];

static void record_alone(const char *model)
{
    struct drive d;

    drive_open(&d, &(struct drive_options){ .model = model, .no_prefix_cache = true });
    submit_all(&d, alone);
    wait_all(&d, alone);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        assert_true(alone[i].n > 0);
    drive_close(&d);
}

/* ---- the cases ---- */

static void equal_with(struct instance *i, uint32_t pp, uint32_t tp, const char *model)
{
    i->o.model = model;
    start_ranks(i, pp, tp);
    record_alone(model);
    open_instance(i);
    for (int warm = 0; warm < 2; warm++) {
        submit_all(&i->d, got);
        wait_all(&i->d, got);
        assert_same(got, alone, N_REQUESTS);
        drive_idle(&i->d);
    }
    if (!i->o.no_prefix_cache)
        assert_true(got[5].n_cached >= 128);
    close_instance(i);
}

static void pp2(void)
{
    struct instance i = { .o = { .max_batched_tokens = 37 } };

    equal_with(&i, 2, 1, model_path);
}

static void pp3(void)
{
    struct instance i = { .o = { .block_tokens = 32 } };

    equal_with(&i, 3, 1, model_path);
}

static void pp2_uneven(void)
{
    struct instance i = { .o = { .max_batched_tokens = 16,
                                 .ranks = { .stage_layers = { 2, 1 } } } };

    equal_with(&i, 2, 1, model_path);
}

/* Few blocks: requests give way to each other, and begin again. */
static void pp2_preempts(void)
{
    struct instance i = { .o = { .n_blocks = 15, .no_prefix_cache = true } };

    equal_with(&i, 2, 1, model_path);
}

static void pp2_drafts(void)
{
    struct instance i = { .o = { .mtp = true, .n_draft_tokens = 2, .no_prefix_cache = true } };

    equal_with(&i, 2, 1, draft_model);
}

/* With one request at a time chunks still follow each other through the stages. */
static void pp2_one_request(void)
{
    struct instance i = { .o = {
                              .max_seqs = 1, .max_batched_tokens = 16, .no_prefix_cache = true } };

    equal_with(&i, 2, 1, model_path);
}

/* Sums are rounded otherwise than by one process, so log-probabilities are near, and the tokens the same
 * as long as no two are as likely as each other; but they are the same each time. */
static void near_with(struct instance *i, uint32_t pp, uint32_t tp, const char *model)
{
    static struct outcome first[N_REQUESTS];

    i->o.model = model;
    start_ranks(i, pp, tp);
    record_alone(model);
    open_instance(i);
    submit_all(&i->d, first);
    wait_all(&i->d, first);
    submit_all(&i->d, got);
    wait_all(&i->d, got);
    assert_same(got, first, N_REQUESTS);
    for (uint32_t k = 0; k < N_REQUESTS; k++) {
        assert_int_equal(got[k].n, alone[k].n);
        for (uint32_t t = 0; t < got[k].n; t++) {
            assert_int_equal(got[k].token[t], alone[k].token[t]);
            assert_true(fabsf(got[k].logprob[t] - alone[k].logprob[t]) < 1e-3f);
        }
    }
    close_instance(i);
}

static void tp2(void)
{
    struct instance i = { .o = { .max_batched_tokens = 37 } };

    near_with(&i, 1, 2, model_path);
}

static void tp4_sequence_parallel(void)
{
    struct instance i = { .o = { .ranks = { .sequence_parallel = true } } };

    near_with(&i, 1, 4, model_path);
}

static void pp2_tp2(void)
{
    struct instance i = { .o = { .max_batched_tokens = 37 } };

    near_with(&i, 2, 2, model_path);
}

static void pp2_tp2_drafts(void)
{
    struct instance i = { .o = { .mtp = true, .n_draft_tokens = 2, .no_prefix_cache = true } };

    near_with(&i, 2, 2, draft_model);
}

static void tp2_experts_drafts(void)
{
    struct instance i = { .o = { .mtp = true,
                                 .n_draft_tokens = 2,
                                 .no_prefix_cache = true,
                                 .ranks = { .expert_parallel = true } } };

    near_with(&i, 1, 2, draft_model);
}

static uint32_t n_kept_files(const char *dir)
{
    struct dirent *de;
    DIR *d = opendir(dir);
    uint32_t n = 0;

    assert_non_null(d);
    while ((de = readdir(d)))
        n += strncmp(de->d_name, "chunks-", 7) == 0;
    closedir(d);
    return n;
}

static void remove_kept(const char *dir)
{
    char path[512];
    struct dirent *de;
    DIR *d = opendir(dir);

    while (d && (de = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, de->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(dir);
}

/* The stages are measured at the first start, and the profile is found again at the second; prompts are cut by
 * it, and give the same tokens. On a machine that is too busy the times may follow no model: then chunks
 * are fixed, and each start measures anew. */
static void pp2_profile(void)
{
    struct instance i = { .o = { .model = model_path,
                                 .chunks = { .policy = SCHED_CHUNK_OPTIMAL,
                                             .n_stages = 2,
                                             .smooth = 1,
                                             .min_chunk = 16,
                                             .max_fit = 64 },
                                 .step_delay = 0.002,
                                 .profile_seconds = 3 } };
    const char *dir = getenv("SLUICE_CACHE_DIR");
    struct engine_stats st;

    if (!dir)
        fail_msg("SLUICE_CACHE_DIR is not set");
    equal_with(&i, 2, 1, model_path);
    start_ranks(&i, 2, 1);
    open_instance(&i);
    engine_stats(i.d.e, &st);
    close_instance(&i);
    if (n_kept_files(dir) == 0)
        return;
    assert_int_equal(n_kept_files(dir), 1);
    assert_true(st.sched.chunks.fit.b + st.sched.chunks.fit.c + st.sched.chunks.fit.w > 0);
}

struct timeline {
    struct engine_step_times step[512];
    uint32_t n;
};

static void record_step(void *arg, const struct engine_step_times *t)
{
    struct timeline *l = arg;

    if (l->n < 512)
        l->step[l->n++] = *t;
}

/* Eight chunks through two stages of 50 ms each: a stage works while the other does. */
static void pp2_overlaps(void)
{
    static struct timeline line;
    struct instance i = { .o = { .model = model_path,
                                 .max_batched_tokens = 16,
                                 .step_delay = 0.05,
                                 .no_prefix_cache = true,
                                 .timeline = record_step,
                                 .timeline_arg = &line } };
    struct outcome out, *one = &out;
    int32_t prompt[128];
    uint32_t together = 0;
    struct engine_stats st;

    start_ranks(&i, 2, 1);
    open_instance(&i);
    make_prompt(prompt, 128, 1);
    drive_submit(&i.d, &out, prompt, 128, 1, NULL, NULL);
    drive_wait(&i.d, &one, 1);
    engine_stats(i.d.e, &st);
    close_instance(&i);
    assert_int_equal(line.n, 8);
    for (uint32_t k = 0; k < 8; k++) {
        const struct engine_step_times *t = &line.step[k];

        assert_int_equal(t->n_stages, 2);
        assert_int_equal(t->n_tokens, 16);
        assert_int_equal(t->n_parts, 1);
        assert_true(t->part[0].id == out.id);
        assert_int_equal(t->part[0].tokens, 16);
        assert_int_equal(t->part[0].history, 16 * k);
        assert_true(t->stage[1].start >= t->stage[0].end);
        /* stage 0 begins with the next chunk before stage 1 has ended this one */
        together += k < 7 && line.step[k + 1].stage[0].start < t->stage[1].end;
    }
    assert_true(together >= 4);
    assert_int_equal(st.n_stages, 2);
    assert_true(st.stage_seconds[0] >= 0.4 && st.stage_seconds[1] >= 0.4);
    /* One after the other they would take 0.8 s and more. Both stages wait by sleeping, so that this
     * holds on a busy machine too. */
    assert_true(line.step[7].stage[1].end - line.step[0].stage[0].start <
                0.95 * (st.stage_seconds[0] + st.stage_seconds[1]));
}

/* Some requests are canceled in the middle; the others do not notice. */
static void pp2_cancels(void)
{
    struct instance i = { .o = {
                              .model = model_path, .max_batched_tokens = 37, .step_delay = 0.01 } };

    start_ranks(&i, 2, 1);
    record_alone(model_path);
    open_instance(&i);
    submit_all(&i.d, got);
    drive_wait_tokens(&i.d, &got[1], 3);
    for (uint32_t k = 1; k < N_REQUESTS; k += 2)
        engine_cancel(i.d.e, got[k].id, FINISH_ABORT);
    wait_all(&i.d, got);
    for (uint32_t k = 0; k < N_REQUESTS; k += 2)
        assert_same(&got[k], &alone[k], 1);
    close_instance(&i);
}

/* Closing in the middle of the work: every request ends, and the other ranks leave as they should. */
static void pp3_close_busy(void)
{
    struct instance i = { .o = {
                              .model = model_path, .max_batched_tokens = 16, .step_delay = 0.02 } };

    start_ranks(&i, 3, 1);
    open_instance(&i);
    submit_all(&i.d, got);
    drive_wait_tokens(&i.d, &got[0], 2);
    drive_close(&i.d);
    for (uint32_t k = 1; k < i.n; k++)
        assert_int_equal(code_of(i.pid[k]), 0);
}

/* Waits until the instance says why it is broken; all its requests have ended with an error. */
static const char *wait_broken(struct instance *i)
{
    double until = clock_now() + 60;

    while (!engine_broken(i->d.e) && clock_now() < until)
        clock_sleep(0.01);
    assert_non_null(engine_broken(i->d.e));
    wait_all(&i->d, got);
    for (uint32_t k = 0; k < N_REQUESTS; k++) {
        assert_int_equal(got[k].finish, FINISH_ERROR);
        assert_int_equal(got[k].status < 0, true);
    }
    return engine_broken(i->d.e);
}

static void expect_in(const char *why, uint32_t rank, uint32_t stage, uint32_t place, pid_t pid)
{
    char name[80];

    snprintf(name, sizeof name, "rank %u (stage %u, place %u, pid %d)", rank, stage, place, pid);
    if (!strstr(why, name))
        fail_msg("'%s' does not name %s", why, name);
}

/* A rank is killed in the middle of the work: all ends, and says who it was. */
static void kill_one(uint32_t pp, uint32_t tp, uint32_t rank)
{
    struct instance i = { .o = {
                              .model = model_path, .max_batched_tokens = 16, .step_delay = 0.05 } };
    struct sampling sp;
    struct engine_request r = { .prompt = (int32_t[]){ 3 }, .n_prompt = 1, .sampling = &sp };
    struct err err = { "" };
    uint64_t id;

    start_ranks(&i, pp, tp);
    open_instance(&i);
    submit_all(&i.d, got);
    drive_wait_tokens(&i.d, &got[0], 1);
    kill(i.pid[rank], SIGKILL);
    expect_in(wait_broken(&i), rank, rank / tp, rank % tp, i.pid[rank]);
    sampling_init(&sp);
    assert_int_equal(engine_submit(i.d.e, &r, &id, &err), ERR_CLOSED);
    expect_in(err.text, rank, rank / tp, rank % tp, i.pid[rank]);
    drive_close(&i.d);
    for (uint32_t k = 1; k < i.n; k++)
        assert_int_equal(code_of(i.pid[k]), k == rank ? 1000 + SIGKILL : 3);
}

static void pp3_kill_middle(void)
{
    kill_one(3, 1, 1);
}

static void tp4_kill_one(void)
{
    kill_one(1, 4, 2);
}

/* Two of the last stage wait for each other, and rank 0 for neither. */
static void pp2_tp2_kill_one(void)
{
    kill_one(2, 2, 3);
}

static void pp2_kill_last(void)
{
    kill_one(2, 1, 1);
}

/* A rank that is idle is missed too. */
static void pp2_kill_idle(void)
{
    struct instance i = { .o = { .model = model_path } };
    double until = clock_now() + 30;

    start_ranks(&i, 2, 1);
    open_instance(&i);
    kill(i.pid[1], SIGKILL);
    while (!engine_broken(i.d.e) && clock_now() < until)
        clock_sleep(0.01);
    assert_non_null(engine_broken(i.d.e));
    expect_in(engine_broken(i.d.e), 1, 1, 0, i.pid[1]);
    drive_close(&i.d);
    assert_int_equal(code_of(i.pid[1]), 1000 + SIGKILL);
}

/* A rank that stops is given step_seconds. */
static void stop_one(uint32_t pp, uint32_t tp)
{
    struct instance i = { .o = { .model = model_path, .ranks = { .step_seconds = 3 } } };

    start_ranks(&i, pp, tp);
    open_instance(&i);
    kill(i.pid[1], SIGSTOP);
    submit_all(&i.d, got);
    expect_in(wait_broken(&i), 1, 1 / tp, 1 % tp, i.pid[1]);
    drive_close(&i.d);
    kill(i.pid[1], SIGKILL);
    assert_int_equal(code_of(i.pid[1]), 1000 + SIGKILL);
}

static void pp2_stopped(void)
{
    stop_one(2, 1);
}

static void tp2_stopped(void)
{
    stop_one(1, 2);
}

/* Rank 0 is killed: the others end by themselves. */
static void pp3_kill_first(void)
{
    struct instance i = { .o = { .model = model_path, .step_delay = 0.02 } };
    int pids[2], status;
    pid_t first;

    assert_int_equal(pipe(pids), 0);
    if ((first = fork()) == 0) {
        start_ranks(&i, 3, 1);
        prctl(PR_SET_PDEATHSIG, 0);
        open_instance(&i);
        submit_all(&i.d, got);
        drive_wait_tokens(&i.d, &got[0], 1);
        if (write(pids[1], i.pid, sizeof i.pid) < 0)
            _exit(1);
        raise(SIGKILL);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    assert_int_equal(read(pids[0], i.pid, sizeof i.pid), sizeof i.pid);
    assert_int_equal(waitpid(first, &status, 0), first);
    for (uint32_t k = 1; k < 3; k++)
        assert_true(code_of(i.pid[k]) != 0);
}

/* Options that cannot be are refused with their numbers, before ranks meet. */
static void refusals(void)
{
    struct engine_options o = drive_engine_options(&(struct drive_options){
        .model = model_path, .ranks = { .pp = 4, .tp = 1, .listen_fd = -1 } });
    struct engine *e;
    struct err err = { "" };

    assert_int_equal(engine_open(&e, &o, &err), ERR_INVAL);
    assert_non_null(strstr(err.text, "4 pipeline stages, but the model has 3 layers"));
    o.ranks.pp = 2;
    o.ranks.stage_layers[0] = o.ranks.stage_layers[1] = 2;
    assert_int_equal(engine_open(&e, &o, &err), ERR_INVAL);
    assert_non_null(strstr(err.text, "4 layers together, but the model has 3"));
}

/* A rank that cannot load ends all, and the others say which it was, and why. */
static void one_cannot_load(void)
{
    struct instance i = { .o = { .model = model_path } };
    struct engine_options o;
    struct engine *e;
    struct err err = { "" };
    char want[160];

    odd_kv_dtype = "float8";
    start_ranks(&i, 2, 1);
    o = drive_engine_options(&i.o);
    assert_int_equal(engine_open(&e, &o, &err), ERR_UNSUPPORTED);
    snprintf(want, sizeof want,
             "rank 1 (stage 1, place 0, pid %d): --kv-cache-dtype float8 is not supported",
             i.pid[1]);
    if (!strstr(err.text, want))
        fail_msg("%s", err.text);
    assert_int_equal(code_of(i.pid[1]), 3);
}

/* The other ranks are told when rank 0 cannot go on, and do not wait for it. */
static void first_cannot_load(void)
{
    struct instance i = { .o = { .model = model_path } };
    struct engine_options o;
    struct engine *e;
    struct err err = { "" };

    start_ranks(&i, 3, 1);
    o = drive_engine_options(&i.o);
    o.model.kv_dtype = "float8";
    assert_int_equal(engine_open(&e, &o, &err), ERR_UNSUPPORTED);
    for (uint32_t k = 1; k < 3; k++)
        assert_int_equal(code_of(i.pid[k]), 3);
}

/* A rank that never comes is named. */
static void one_is_missing(void)
{
    struct engine_options o = drive_engine_options(&(struct drive_options){
        .model = model_path,
        .ranks = { .pp = 2, .host = "127.0.0.1", .master_host = "127.0.0.1", .meet_seconds = 1 } });
    struct engine *e;
    struct err err = { "" };

    assert_int_equal(group_listen(&o.ranks.listen_fd, &o.ranks.master_port, "127.0.0.1", 0, &err),
                     0);
    assert_int_equal(engine_open(&e, &o, &err), ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "these did not come: 1"));
}

/* As many blocks on all ranks as the one with the largest blocks has room for. */
static void pp2_pool(void)
{
    /* stage 0 has 2 layers: a block is 16 tokens x 2 x (K and V) of 32 float32 numbers */
    struct instance i = { .o = { .model = model_path,
                                 .kv_bytes = 16 * 2 * 2 * 32 * 4 * 37 + 100 } };
    struct engine_info info;

    start_ranks(&i, 2, 1);
    open_instance(&i);
    engine_info(i.d.e, &info);
    assert_int_equal(info.n_blocks, 37);
    close_instance(&i);
}

/* While nothing is asked, no rank uses the CPU. */
static void idle(void)
{
    struct instance i = { .o = { .model = model_path } };
    struct outcome out, *one = &out;
    int32_t prompt[20];
    char path[64], line[512];
    unsigned long before[2] = { 0 }, after[2] = { 0 };

    start_ranks(&i, 2, 1);
    open_instance(&i);
    make_prompt(prompt, 20, 3);
    drive_submit(&i.d, &out, prompt, 20, 8, NULL, NULL);
    drive_wait(&i.d, &one, 1);
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 2; k++) {
            unsigned long user = 0, system = 0;
            FILE *f;

            snprintf(path, sizeof path, "/proc/%d/stat", k ? i.pid[1] : getpid());
            f = fopen(path, "r");
            assert_non_null(f);
            assert_non_null(fgets(line, sizeof line, f));
            fclose(f);
            sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                   &user, &system);
            (round ? after : before)[k] = user + system;
        }
        if (round == 0)
            clock_sleep(2);
    }
    close_instance(&i);
    assert_true(after[0] - before[0] <= 10); /* of 200 */
    assert_true(after[1] - before[1] <= 10);
}

/* ---- */

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    { "pp2", pp2 },
    { "pp3", pp3 },
    { "pp2_uneven", pp2_uneven },
    { "pp2_preempts", pp2_preempts },
    { "pp2_drafts", pp2_drafts },
    { "pp2_one_request", pp2_one_request },
    { "tp2", tp2 },
    { "tp4_sequence_parallel", tp4_sequence_parallel },
    { "pp2_tp2", pp2_tp2 },
    { "pp2_tp2_drafts", pp2_tp2_drafts },
    { "tp2_experts_drafts", tp2_experts_drafts },
    { "pp2_overlaps", pp2_overlaps },
    { "pp2_profile", pp2_profile },
    { "pp2_cancels", pp2_cancels },
    { "pp3_close_busy", pp3_close_busy },
    { "pp3_kill_middle", pp3_kill_middle },
    { "tp4_kill_one", tp4_kill_one },
    { "pp2_tp2_kill_one", pp2_tp2_kill_one },
    { "pp2_kill_last", pp2_kill_last },
    { "pp2_kill_idle", pp2_kill_idle },
    { "pp2_stopped", pp2_stopped },
    { "tp2_stopped", tp2_stopped },
    { "pp3_kill_first", pp3_kill_first },
    { "refusals", refusals },
    { "one_cannot_load", one_cannot_load },
    { "first_cannot_load", first_cannot_load },
    { "one_is_missing", one_is_missing },
    { "pp2_pool", pp2_pool },
    { "idle", idle },
};
#define N_CASES (sizeof cases / sizeof *cases)

/* For profiles. */
static char cache[] = "/tmp/sluice-ranks-XXXXXX";

static int make_cache(void **state)
{
    (void)state;
    return mkdtemp(cache) ? setenv("SLUICE_CACHE_DIR", cache, 1) : -1;
}

static int remove_cache(void **state)
{
    (void)state;
    remove_kept(cache);
    return 0;
}

static void run_this(void **state)
{
    const char *name = *state;

    log_set_level(getenv("RANKS_LOG") ? LOG_INFO : LOG_OFF);
    for (size_t i = 0; i < N_CASES; i++)
        if (strcmp(cases[i].name, name) == 0)
            cases[i].run();
}

static int run_here(const char *name)
{
    const struct CMUnitTest test = { .name = name,
                                     .test_func = run_this,
                                     .initial_state = (void *)(uintptr_t)name };
    const struct CMUnitTest tests[] = { test };

    if (getenv("SLUICE_CACHE_DIR")) /* of the run of all cases */
        return cmocka_run_group_tests(tests, NULL, NULL);
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

static void run_case(void **state)
{
    const char *name = *state;
    pid_t pid;

    if (strstr(name, "drafts") && access(draft_model, R_OK) != 0)
        skip();
    fflush(NULL);
    if ((pid = fork()) == 0) {
        execl(self, self, model_path, draft_model, name, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(code_of(pid), 0);
}

/* test_engine_ranks MODEL DRAFT_MODEL [CASE] */
int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_CASES];

    if (argc < 3)
        return 2;
    self = argv[0];
    model_path = argv[1];
    draft_model = argv[2];
    if (argc > 3)
        return run_here(argv[3]);
    for (size_t i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){ .name = cases[i].name,
                                        .test_func = run_case,
                                        .initial_state = (void *)(uintptr_t)cases[i].name };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
