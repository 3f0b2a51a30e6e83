/* sluice SUBCOMMAND [OPTIONS]: finds the subcommand. */
#include "main/main.h"

#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "serve", main_serve, "serve a model over the OpenAI API (sluice serve MODEL [OPTIONS])" },
    { "proxy", main_proxy, "put prefill and decode instances behind one address" },
    { "launch", main_launch, "start the data-parallel ranks of this host by a template script" },
    { "mkmodel", main_mkmodel, "make a checkpoint with random weights for a config.json" },
    { "quantize", main_quantize, "make an int8 (W8A8) checkpoint of a float one" },
    { "ranktable", main_ranktable, "write the table of devices of a deployment" },
    { "sim", main_sim, "what chunk policies would give, by simulation" },
    { "calibrate", main_calibrate, "correct the chunk plans of a running instance by measuring" },
    { "version", main_version, "print the version" },
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static void usage(FILE *f)
{
    fputs("usage: sluice COMMAND [OPTIONS]\n\ncommands:\n", f);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\nsluice COMMAND --help lists the options of a command.\n", f);
}

int main_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("sluice %s\n", SLUICE_VERSION);
    return 0;
}

static int is(const char *arg, const char *a, const char *b)
{
    return strcmp(arg, a) == 0 || strcmp(arg, b) == 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (is(argv[1], "--version", "-V"))
        return main_version(argc, argv);
    if (is(argv[1], "--help", "-h") || is(argv[1], "help", "")) {
        usage(stdout);
        return 0;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "sluice: unknown command \"%s\"\n\n", argv[1]);
    usage(stderr);
    return 2;
}
