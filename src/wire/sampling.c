#include "wire/sampling.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void sampling_init(struct sampling *s)
{
    *s = (struct sampling){ .temperature = 1,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .max_tokens = 16,
                            .logprobs = -1,
                            .prompt_logprobs = -1 };
}

/* *dst = a copy of n elements; NULL for none. */
static int copy_array(void **dst, const void *src, size_t n, size_t size)
{
    *dst = NULL;
    if (n == 0)
        return 0;
    *dst = malloc(n * size);
    if (!*dst)
        return ERR_NOMEM;
    memcpy(*dst, src, n * size);
    return 0;
}

int sampling_copy(struct sampling *dst, const struct sampling *src)
{
    struct sampling s = *src;
    void *stop = NULL, *bias = NULL, *allowed = NULL, *want = NULL;

    if (copy_array(&stop, src->stop_ids, src->n_stop_ids, sizeof *s.stop_ids) < 0 ||
        copy_array(&bias, src->bias, src->n_bias, sizeof *s.bias) < 0 ||
        copy_array(&allowed, src->allowed, src->n_allowed, sizeof *s.allowed) < 0 ||
        copy_array(&want, src->want_ids, src->n_want, sizeof *s.want_ids) < 0) {
        free(stop);
        free(bias);
        free(allowed);
        free(want);
        return ERR_NOMEM;
    }
    s.stop_ids = stop;
    s.bias = bias;
    s.allowed = allowed;
    s.want_ids = want;
    *dst = s;
    return 0;
}

void sampling_finish(struct sampling *s)
{
    free(s->stop_ids);
    free(s->bias);
    free(s->allowed);
    free(s->want_ids);
    sampling_init(s);
}

const char *finish_name(enum finish f)
{
    switch (f) {
    case FINISH_NONE:
        return "";
    case FINISH_STOP:
        return "stop";
    case FINISH_LENGTH:
        return "length";
    case FINISH_ABORT:
        return "abort";
    case FINISH_ERROR:
        return "error";
    case FINISH_RECOMPUTE:
        return "recomputed";
    }
    return "";
}
