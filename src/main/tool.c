#include "main/tool.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"

static int run(const struct tool *t, const void *settings, const struct opt_list *args,
               struct err *e)
{
    if (args->n != t->n_args)
        return err_set(e, ERR_INVAL, "expected %zu arguments, found %zu: %s", t->n_args, args->n,
                       t->usage);
    return t->run(settings, args->v, e);
}

int tool_main(const struct tool *t, void *settings, const bool *help, int argc, char **argv)
{
    struct opt_list args = { 0 };
    struct opts_seen seen = { 0 };
    struct err e = { "" };
    int st;

    log_init(t->name);
    st = opts_parse(t->specs, settings, argc - 1, argv + 1, t->n_args ? &args : NULL, &seen, &e);
    if (st == 0 && *help)
        opts_help(t->specs, t->usage);
    else if (st == 0)
        st = run(t, settings, &args, &e);
    if (st < 0)
        log_error("%s", e.text[0] ? e.text : status_text(st));
    opts_finish(t->specs, settings, &seen);
    free(args.v);
    return st == 0 ? 0 : st == ERR_INVAL ? 2 : 1;
}
