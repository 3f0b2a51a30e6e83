/* The command line of `sluice serve`: vLLM's flags into a struct serve_config. */
#ifndef SLUICE_MAIN_SERVE_FLAGS_H
#define SLUICE_MAIN_SERVE_FLAGS_H

#include <stdint.h>

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
/* serve_address.c: which of this host's addresses the environment names, by VLLM_HOST_IP, *_IF_IP or
 * *_SOCKET_IFNAME, into cfg->address. What is not this host's is refused. */
int serve_check_address(struct serve_config *cfg, struct err *e);
/* The address of this host that traffic to the peer (a name or an address) leaves from; the peer itself
 * if it is this host's. ERR_NOTFOUND: there is no way there. */
int serve_route_address(char *out, size_t cap, const char *peer);
/* serve_shape.c: ranks and data-parallel groups, into cfg->ranks. */
int serve_check_shape(struct serve_config *cfg, const struct serve_args *args, struct err *e);
/* serve_extra.c: --additional-config and --compilation-config. */
int serve_check_extra(struct serve_config *cfg, struct err *e);
/* serve_kv.c: --kv-transfer-config into cfg->kv. */
int serve_check_kv(struct serve_config *cfg, struct err *e);
/* serve_ranktable.c: for the LLMDataDist connector. The first KV port (kv_port is not it); and whether
 * this instance is in the table of devices. */
int serve_ranktable_port(uint32_t *out, double kv_port, struct err *e);
int serve_check_ranktable(const struct serve_config *cfg, struct err *e);
/* serve_roles.c: warns of keys that are for the other side of a KV transfer; how many there are. */
uint32_t serve_check_roles(const struct serve_config *cfg);
/* serve_spec.c: --speculative-config into cfg->n_draft_tokens. */
int serve_check_spec(struct serve_config *cfg, struct err *e);
/* Refuses a key of a JSON option that is none of n known ones, and names the nearest. where: "" or
 * what stands before the key. */
int serve_check_key(const char *flag, const char *where, const char *key, const char *const *known,
                    size_t n, struct err *e);
/* serve_yaml.c: the options of a YAML file as arguments. *out has *n owned texts. */
int serve_yaml_args(const char *path, char ***out, int *n, struct err *e);

#endif
