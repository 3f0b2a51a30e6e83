#include "ops/report.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"

static const char *const site_names[SITES] = {
    [SITE_ATTN_IN] = "attention in",
    [SITE_Q_B_IN] = "query",
    [SITE_ATTN_OUT] = "attention out",
    [SITE_FFN_IN] = "feed-forward in",
    [SITE_FFN_OUT] = "feed-forward out",
    [SITE_SHARED_OUT] = "shared experts out",
    [SITE_EXPERT_OUT] = "experts out (their mean)",
};

/* "q_proj" of "model.layers.3.self_attn.q_proj.weight". */
static void put_short(FILE *f, const char *name)
{
    const char *end = strrchr(name, '.'), *begin = end;

    while (begin > name && begin[-1] != '.')
        begin--;
    fprintf(f, "%.*s", (int)(end - begin), begin);
}

static void put_linears(FILE *f, const struct intake *in, const struct plan *p, uint32_t layer)
{
    for (size_t i = 0; i < in->blue.n; i++) {
        if (p->t[i].error < 0 || weights_layer_of(in->blue.t[i].name) != (long)layer)
            continue;
        fputs("  ", f);
        put_short(f, in->blue.t[i].name);
        if (p->t[i].store == STORE_BF16)
            fputs(" float", f);
        else
            fprintf(f, " %.2f%%", 100 * p->t[i].error);
    }
}

void report_errors(FILE *f, const struct intake *in, const struct plan *p)
{
    fputs("error of each linear's output on the calibration text, and the alpha of smoothing "
          "(-: none) at:",
          f);
    for (int s = 0; s < SITES; s++)
        fprintf(f, "%s %s", s ? "," : "", site_names[s]);
    fputc('\n', f);
    for (uint32_t layer = 0; layer < p->n_layers; layer++) {
        fprintf(f, "layer %u:", layer);
        put_linears(f, in, p, layer);
        fputs("  alpha", f);
        for (int s = 0; s < SITES; s++) {
            const struct plan_site *site = &p->site[layer][s];

            if (site->tried && site->alpha >= 0)
                fprintf(f, " %.1f", site->alpha);
            else if (site->tried)
                fputs(" -", f);
        }
        fputc('\n', f);
    }
}

void report_perplexity(FILE *f, size_t n_tokens, double before, double after)
{
    fprintf(f, "perplexity of %zu tokens: %.4f in float32, %.4f quantized (%+.2f %%)\n", n_tokens,
            exp(before), exp(after), 100 * (exp(after - before) - 1));
}

void report_floats(const struct intake *in, const struct plan *p)
{
    struct buf b;

    buf_init(&b, BUF_MAX_LINE);
    for (size_t i = 0; i < in->blue.n; i++)
        if (p->t[i].error >= 0 && p->t[i].store == STORE_BF16)
            buf_printf(&b, "%s%s (%.1f %%)", b.len ? ", " : "", in->blue.t[i].name,
                       100 * p->t[i].error);
    if (b.len)
        log_info("left in bfloat16, because int8 would cost too much: %s", buf_str(&b));
    buf_finish(&b);
}
