/* sluice mkmodel: options and wiring. */
#include "ops/mkmodel.h"

#include <stddef.h>
#include <string.h>

#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"
#include "main/tool.h"
#include "ops/size.h"

struct settings {
    const char *layout, *tokenizer, *max_shard;
    int64_t seed, threads;
    bool force, quiet, help;
};

#define AT(member) offsetof(struct settings, member)

static const struct opt_spec specs[] = {
    { "--layout", OPT_STRING, AT(layout), "bf16", "bf16 fp8 w8a8", 0, 0,
      "bf16; fp8: e4m3 in blocks of 128 x 128, as DeepSeek publishes; w8a8: ModelSlim's int8" },
    { "--seed", OPT_INT, AT(seed), "0", NULL, 0, 9e15,
      "the weights are a function of the configuration and this number" },
    { "--tokenizer", OPT_STRING, AT(tokenizer), NULL, NULL, 0, 0,
      "folder or .gguf file whose tokenizer it gets; without one, serve with "
      "--skip-tokenizer-init" },
    { "--max-shard-size", OPT_STRING, AT(max_shard), "5GB", NULL, 0, 0, "largest file" },
    { "--threads", OPT_INT, AT(threads), "0", NULL, 0, 256, "0: one for each CPU" },
    { "--force", OPT_FLAG, AT(force), NULL, NULL, 0, 0,
      "replace the checkpoint that stands in OUT" },
    { "--quiet", OPT_FLAG, AT(quiet), NULL, NULL, 0, 0, "no progress line" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static enum mkmodel_layout layout_of(const char *name)
{
    return strcmp(name, "fp8") == 0    ? MKMODEL_FP8
           : strcmp(name, "w8a8") == 0 ? MKMODEL_W8A8
                                       : MKMODEL_BF16;
}

static int run(const void *settings, const char *const *args, struct err *e)
{
    const struct settings *s = settings;
    struct mkmodel_options o = {
        .layout = layout_of(s->layout),
        .seed = (uint64_t)s->seed,
        .tokenizer = s->tokenizer,
        .threads = (uint32_t)s->threads,
        .force = s->force,
        .quiet = s->quiet,
    };
    int st = size_parse(&o.max_shard_bytes, "--max-shard-size", s->max_shard, e);

    if (st < 0)
        return st;
    o.config = args[0];
    o.out = args[1];
    return mkmodel(&o, e);
}

int main_mkmodel(int argc, char **argv)
{
    static const struct tool tool = { "mkmodel", specs, "sluice mkmodel CONFIG.json OUT [OPTIONS]",
                                      2, run };
    struct settings s = { 0 };

    return tool_main(&tool, &s, &s.help, argc, argv);
}
