/* The command line of `sluice serve`: vLLM's flags into a struct serve_config. */
#ifndef SLUICE_MAIN_SERVE_FLAGS_H
#define SLUICE_MAIN_SERVE_FLAGS_H

#include "base/opts.h"

struct err;
struct serve_config;

/* Every flag that `vllm serve` has, and a few of our own at the end. */
extern const struct opt_spec serve_flags[];

/* The memory behind a configuration; zero-initialise. */
struct serve_args {
    struct opts_seen seen;
    struct opt_list positional;
    char **argv; /* options of --config FILE before those of the command line; owned */
    int argc;
    char **owned; /* texts made here that options point to */
    int n_owned;
};

/* Parses and checks. argv[0] is the subcommand. On success cfg points into argv and args, and is
 * given back by serve_flags_finish. ERR_INVAL and others with a sentence. */
int serve_flags_parse(struct serve_config *cfg, struct serve_args *args, int argc, char **argv,
                      struct err *e);
void serve_flags_finish(struct serve_config *cfg, struct serve_args *args);

/* serve_check.c: what the table cannot say: environment, defaults that depend on others, options that
 * exclude each other, the KV connector, ranks. */
int serve_check(struct serve_config *cfg, const struct serve_args *args, struct err *e);
/* serve_kv.c: --kv-transfer-config into cfg->kv. */
int serve_check_kv(struct serve_config *cfg, struct err *e);
/* serve_spec.c: --speculative-config into cfg->n_draft_tokens. */
int serve_check_spec(struct serve_config *cfg, struct err *e);
/* Refuses a key of a JSON option that is none of n known ones, and names the nearest. where: "" or
 * what stands before the key. */
int serve_check_key(const char *flag, const char *where, const char *key, const char *const *known,
                    size_t n, struct err *e);
/* serve_yaml.c: the options of a YAML file as arguments. *out has *n owned texts. */
int serve_yaml_args(const char *path, char ***out, int *n, struct err *e);

#endif
