/* The kept fit of a pipeline (sched/profile.h): whatever the file holds, it is refused with a sentence or
 * gives numbers that a prompt can be planned with, and that are the same when they are kept again. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/status.h"
#include "sched/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct profile_key key = { "model", "pp 2", "host" };

static void ignore(void *arg, const char *line)
{
    (void)arg;
    if (!line[0])
        abort();
}

static int is_usable(double v)
{
    return isfinite(v) && v >= 0;
}

static void check_numbers(const struct profile_fit *f)
{
    if (f->n_stages == 0 || f->n_stages > FLOW_MAX_STAGES || f->n_points > PROFILE_MAX_POINTS)
        abort();
    for (uint32_t i = 0; i < f->n_stages; i++) {
        const struct stage_time *s = &f->stage[i];

        if (!is_usable(s->a) || !is_usable(s->b) || !is_usable(s->g) || !is_usable(s->c) ||
            !is_usable(s->w) || !is_usable(f->error[i]) || !(s->kappa > 0 && s->kappa <= 1))
            abort();
    }
}

/* What the log says includes the plan of the longest prompt. */
static void check_plan(const struct profile_fit *f)
{
    const struct sched_config c = {
        .block_tokens = 16,
        .max_model_len = 20000,
        .max_batched_tokens = 2048,
        .chunked_prefill = true,
        .chunks = { .policy = SCHED_CHUNK_OPTIMAL, .n_stages = f->n_stages, .smooth = 1 },
    };
    struct err e = { "" };

    if (f->n_stages >= 2 && profile_describe(f, &c, ignore, NULL, &e) < 0 && !e.text[0])
        abort();
}

static void check_again(const struct profile_fit *f)
{
    struct profile_fit again;
    struct err e = { "" };
    struct buf b;

    buf_init(&b, BUF_MAX_LINE);
    if (profile_write(&b, &key, f) < 0 || profile_read(&again, b.data, b.len, &key, &e) < 0 ||
        again.n_stages != f->n_stages)
        abort();
    for (uint32_t i = 0; i < f->n_stages; i++)
        if (fabs(again.stage[i].a - f->stage[i].a) > 0 ||
            fabs(again.stage[i].w - f->stage[i].w) > 0)
            abort();
    buf_finish(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct profile_fit f;
    struct err e = { "" };

    if (profile_read(&f, (const char *)data, size, &key, &e) < 0) {
        if (!e.text[0])
            abort();
        return 0;
    }
    check_numbers(&f);
    check_plan(&f);
    check_again(&f);
    return 0;
}
