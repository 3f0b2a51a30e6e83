/* sluice quantize: options and wiring. */
#include "ops/quantize.h"

#include <math.h>
#include <stddef.h>

#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"
#include "main/tool.h"
#include "ops/size.h"

struct settings {
    const char *calibration, *report_text, *max_shard;
    double alpha, float_above;
    int64_t threads;
    bool fixed, no_smooth, report, force, quiet, help;
};

#define AT(member) offsetof(struct settings, member)

static const struct opt_spec specs[] = {
    { "--static", OPT_FLAG, AT(fixed), NULL, NULL, 0, 0,
      "W8A8 with static scales for the linears of attention; else every linear is W8A8_DYNAMIC" },
    { "--calibration", OPT_STRING, AT(calibration), NULL, NULL, 0, 0,
      "text file to calibrate on; default: a text that is built in" },
    { "--no-smooth", OPT_FLAG, AT(no_smooth), NULL, NULL, 0, 0,
      "move no outliers into the weights" },
    { "--alpha", OPT_FLOAT, AT(alpha), "0.7", NULL, -1, 1,
      "how much of an outlier moves into the weights, 0 to 1; -1: the best of some for each site, "
      "by "
      "trial (slower)" },
    { "--float-above", OPT_FLOAT, AT(float_above), "0", NULL, 0, 100,
      "linears whose relative error by trial is larger stay in bfloat16; 0: none does" },
    { "--report", OPT_FLAG, AT(report), NULL, NULL, 0, 0,
      "print the error of each linear, and the perplexity before and after" },
    { "--report-text", OPT_STRING, AT(report_text), NULL, NULL, 0, 0,
      "text file for the perplexity (implies --report); default: a text that is built in" },
    { "--max-shard-size", OPT_STRING, AT(max_shard), "5GB", NULL, 0, 0, "largest file" },
    { "--threads", OPT_INT, AT(threads), "0", NULL, 0, 256,
      "0: OMP_NUM_THREADS, or one for each CPU" },
    { "--force", OPT_FLAG, AT(force), NULL, NULL, 0, 0,
      "replace the checkpoint that stands in OUT" },
    { "--quiet", OPT_FLAG, AT(quiet), NULL, NULL, 0, 0, "no progress line" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static int run(const void *settings, const char *const *args, struct err *e)
{
    const struct settings *s = settings;
    struct quantize_options o = {
        .fixed = s->fixed,
        .no_smooth = s->no_smooth,
        .alpha = s->alpha,
        .float_above = s->float_above > 0 ? s->float_above : INFINITY,
        .calibration = s->calibration,
        .report = s->report || s->report_text,
        .report_text = s->report_text,
        .threads = (uint32_t)s->threads,
        .force = s->force,
        .quiet = s->quiet,
    };
    int st = size_parse(&o.max_shard_bytes, "--max-shard-size", s->max_shard, e);

    if (st < 0)
        return st;
    o.in = args[0];
    o.out = args[1];
    return quantize(&o, e);
}

int main_quantize(int argc, char **argv)
{
    static const struct tool tool = { "quantize", specs, "sluice quantize IN OUT [OPTIONS]", 2,
                                      run };
    struct settings s = { 0 };

    return tool_main(&tool, &s, &s.help, argc, argv);
}
