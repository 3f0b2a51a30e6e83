/* What subcommands that do one thing and end have in common: options, arguments, an exit status. */
#ifndef SLUICE_MAIN_TOOL_H
#define SLUICE_MAIN_TOOL_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct opt_spec;

struct tool {
    const char *name;             /* for the log */
    const struct opt_spec *specs; /* into the settings */
    const char *usage;            /* "sluice NAME IN OUT [OPTIONS]" */
    size_t n_args;                /* beside the options: exactly so many */
    int (*run)(const void *settings, const char *const *args, struct err *e);
};

/* Exit status: 0, 2 for what was asked wrongly, 1 for what failed. help is the settings' own. */
int tool_main(const struct tool *t, void *settings, const bool *help, int argc, char **argv);

#endif
