/* sluice serve: options and wiring. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "main/main.h"
#include "main/serve_flags.h"
#include "main/serve_ports.h"
#include "main/serve_ranks.h"
#include "net/loop.h"
#include "serve/config.h"
#include "serve/serve.h"

#define END_SECONDS 30.0 /* for ranks that were told to end */

static void set_log_level(const struct serve_config *cfg)
{
    enum log_level level;

    if (!cfg->log_level || strcmp(cfg->log_level, "NOTSET") == 0)
        return;
    if (strcasecmp(cfg->log_level, "CRITICAL") == 0)
        log_set_level(LOG_ERROR); /* nothing here is worse */
    else if (log_parse_level(&level, cfg->log_level) == 0)
        log_set_level(level);
}

static void log_config(const struct serve_config *cfg)
{
    char *text = json_dumps(cfg->effective, JSON_COMPACT | JSON_REAL_PRECISION(15));

    if (text)
        log_info("configuration: %s", text);
    free(text);
}

/* ---- the process with the API ---- */

struct front {
    struct serve *s;
    struct ranks *ranks;
    int asked; /* signals that asked to end */
};

static void look_at_ranks(struct front *f)
{
    char why[160];

    if (ranks_look(f->ranks, why, sizeof why))
        serve_fail(f->s, why);
}

static void on_signal(void *arg, int signo)
{
    struct front *f = arg;

    if (signo == SIGCHLD) {
        look_at_ranks(f);
        return;
    }
    if (++f->asked == 2)
        ranks_kill(f->ranks); /* so that nothing is waited for */
    serve_stop(f->s);
}

static bool has_several_ranks(const struct serve_config *cfg)
{
    return cfg->ranks.pp * cfg->ranks.tp > 1;
}

static bool waits_for_others(const struct serve_config *cfg)
{
    return has_several_ranks(cfg) || cfg->ranks.dp_size > 1;
}

/* What is left when the loop has ended. Rank 0 may still be waiting for ranks, or other instances, that
 * will not come, which nothing interrupts: then the process just ends. */
static void end_front(struct front *f, const struct serve_config *cfg, int code)
{
    bool loading = f->s && serve_is_loading(f->s);

    if (code != 0 || loading)
        ranks_kill(f->ranks);
    if (loading && waits_for_others(cfg)) {
        ranks_wait(f->ranks, END_SECONDS);
        fflush(NULL);
        _exit(code);
    }
    serve_destroy(f->s);
    ranks_wait(f->ranks, END_SECONDS);
}

static int run_front(const struct serve_config *cfg, struct ranks *ranks, struct err *e)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGCHLD, 0 };
    struct front f = { .ranks = ranks };
    struct loop *loop = NULL;
    int st, code = 1;

    if ((st = loop_create(&loop, e)) == 0 && (st = serve_create(&f.s, cfg, loop, e)) == 0 &&
        (st = loop_signals(loop, signals, on_signal, &f)) == 0) {
        look_at_ranks(&f); /* those that were quicker than the handler of their signal */
        if ((st = loop_run(loop)) == 0)
            code = serve_exit_code(f.s);
    }
    if (st < 0)
        log_error("%s", e->text[0] ? e->text : status_text(st));
    end_front(&f, cfg, code);
    loop_destroy(loop);
    return code;
}

/* ---- the other ranks ---- */

static int run_rank(const struct serve_config *cfg, struct err *e)
{
    int st = serve_rank(cfg, e);

    if (st < 0)
        log_error("%s", e->text[0] ? e->text : status_text(st));
    return st < 0 ? 1 : 0;
}

/* Before anything is started: what can be seen to be wrong, once and not by every rank. */
static int look_ahead(const struct serve_config *cfg, struct err *e)
{
    int st = has_several_ranks(cfg) || cfg->check_only ? serve_check_model(cfg, e) : 0;

    return st < 0 ? st : serve_ports_check(cfg, cfg->check_only, e);
}

static int run(struct serve_config *cfg, struct err *e)
{
    struct ranks *ranks = NULL;
    uint32_t rank;
    int code, st;

    if ((st = look_ahead(cfg, e)) < 0 || cfg->check_only ||
        (st = ranks_start(&ranks, cfg, &rank, e)) < 0) {
        if (st < 0)
            log_error("%s", e->text[0] ? e->text : status_text(st));
        return st < 0 ? 1 : 0;
    }
    if (!ranks)
        return run_rank(cfg, e);
    code = cfg->first_rank > 0 ? ranks_supervise(ranks, cfg->shutdown_timeout + END_SECONDS)
                               : run_front(cfg, ranks, e);
    ranks_free(ranks);
    return code;
}

int main_serve(int argc, char **argv)
{
    struct serve_config cfg;
    struct serve_args args;
    struct err e = { "" };
    int st, code = 0;

    log_init("serve");
    st = serve_flags_parse(&cfg, &args, argc, argv, &e);
    if (st < 0) {
        log_error("%s", e.text[0] ? e.text : status_text(st));
        return 2;
    }
    if (cfg.help) {
        opts_help(serve_flags, "sluice serve MODEL [OPTIONS]");
    } else {
        set_log_level(&cfg);
        log_config(&cfg);
        code = run(&cfg, &e);
    }
    serve_flags_finish(&cfg, &args);
    return code;
}
