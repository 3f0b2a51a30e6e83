/* sluice launch: options and wiring. */
#include "ops/launch.h"

#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"

struct settings {
    int64_t dp_size, tp_size, n_local, first_rank, first_device, rpc_port, first_port;
    const char *address, *role, *template_path, *log_dir, *log_level;
    double shutdown_timeout;
    bool keep_going, help;
};

#define AT(member) offsetof(struct settings, member)

/* The first nine are the reference launcher's. */
static const struct opt_spec specs[] = {
    { "--dp-size", OPT_INT, AT(dp_size), NULL, NULL, 1, 65536, "ranks of the whole group" },
    { "--tp-size", OPT_INT, AT(tp_size), "1", NULL, 1, LAUNCH_MAX_TP, "devices of a rank" },
    { "--dp-size-local", OPT_INT, AT(n_local), "-1", NULL, -1, LAUNCH_MAX_RANKS,
      "ranks to start here; -1: all" },
    { "--dp-rank-start", OPT_INT, AT(first_rank), "0", NULL, 0, 65535,
      "the first rank to start here" },
    { "--dp-address", OPT_STRING, AT(address), NULL, NULL, 0, 0, "host of rank 0" },
    { "--dp-rpc-port", OPT_INT, AT(rpc_port), "12345", NULL, 1, 65535,
      "port at which the ranks meet there" },
    { "--vllm-start-port", OPT_INT, AT(first_port), "9000", NULL, 1, 65535,
      "port of the first rank here; the next one's is one higher" },
    { "--dp-deploy-role", OPT_STRING, AT(role), "mixed", "mixed prefill decode", 0, 0,
      "which template: ./run_dp_template.sh, ./run_dp_template_p.sh or ./run_dp_template_d.sh" },
    { "--local-dp-start-rank", OPT_INT, AT(first_device), "0", NULL, 0, 65535,
      "the first device of the first rank here" },
    { "--template", OPT_STRING, AT(template_path), NULL, NULL, 0, 0, "another template script" },
    { "--log-dir", OPT_STRING, AT(log_dir), NULL, NULL, 0, 0,
      "write what rank N says to rank-N.log there, too" },
    { "--keep-going", OPT_FLAG, AT(keep_going), NULL, NULL, 0, 0,
      "the death of one rank does not end the others" },
    { "--shutdown-timeout", OPT_FLOAT, AT(shutdown_timeout), "60", NULL, 0, 86400,
      "seconds that the ranks have after SIGTERM before they are killed" },
    { "--log-level", OPT_STRING, AT(log_level), NULL, NULL, 0, 0, "debug, info, warning or error" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static const char *template_of(const struct settings *s)
{
    if (s->template_path)
        return s->template_path;
    return strcmp(s->role, "prefill") == 0  ? "./run_dp_template_p.sh"
           : strcmp(s->role, "decode") == 0 ? "./run_dp_template_d.sh"
                                            : "./run_dp_template.sh";
}

static int check_given(const struct settings *s, struct err *e)
{
    enum log_level level;

    if (s->dp_size == 0 || !s->address)
        return err_set(e, ERR_INVAL, "%s is missing; sluice launch --help lists the options",
                       s->address ? "--dp-size" : "--dp-address");
    if (!s->log_level)
        return 0;
    if (log_parse_level(&level, s->log_level) < 0)
        return err_set(e, ERR_INVAL,
                       "--log-level: '%s' is not a level; debug, info, warning, error",
                       s->log_level);
    log_set_level(level);
    return 0;
}

static int run(const struct settings *s, int *exit_status, struct err *e)
{
    struct launch_options o = {
        .dp_size = (uint32_t)s->dp_size,
        .tp_size = (uint32_t)s->tp_size,
        .n_local = (uint32_t)(s->n_local < 0 ? s->dp_size : s->n_local),
        .first_rank = (uint32_t)s->first_rank,
        .first_device = (uint32_t)s->first_device,
        .address = s->address,
        .rpc_port = (uint32_t)s->rpc_port,
        .first_port = (uint32_t)s->first_port,
        .template_path = template_of(s),
        .log_dir = s->log_dir,
        .keep_going = s->keep_going,
        .shutdown_timeout = s->shutdown_timeout,
    };
    int st = check_given(s, e);

    if (st < 0 || (st = launch_check(&o, e)) < 0)
        return st;
    log_info("starting ranks %u to %u of %u with %s, ports %u to %u", o.first_rank,
             o.first_rank + o.n_local - 1, o.dp_size, o.template_path, o.first_port,
             o.first_port + o.n_local - 1);
    if ((st = launch_run(&o, exit_status, e)) == 0)
        log_info("all ranks have ended; exit status %d", *exit_status);
    return st;
}

int main_launch(int argc, char **argv)
{
    struct settings s = { 0 };
    struct opts_seen seen = { 0 };
    struct err e = { "" };
    int exit_status = 0, st;

    log_init("launch");
    st = opts_parse(specs, &s, argc - 1, argv + 1, NULL, &seen, &e);
    if (st == 0 && s.help)
        opts_help(specs, "sluice launch --dp-size N --dp-address HOST [OPTIONS]");
    else if (st == 0)
        st = run(&s, &exit_status, &e);
    if (st < 0)
        log_error("%s", e.text[0] ? e.text : status_text(st));
    opts_finish(specs, &s, &seen);
    return st == 0 ? exit_status : st == ERR_INVAL ? 2 : 1;
}
