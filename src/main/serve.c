/* sluice serve: options and wiring. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "main/main.h"
#include "main/serve_flags.h"
#include "net/loop.h"
#include "serve/config.h"
#include "serve/serve.h"

static void on_signal(void *arg, int signo)
{
    (void)signo;
    serve_stop(arg);
}

static void set_log_level(const struct serve_config *cfg)
{
    enum log_level level;

    if (!cfg->log_level || strcmp(cfg->log_level, "NOTSET") == 0)
        return;
    if (strcasecmp(cfg->log_level, "CRITICAL") == 0)
        log_set_level(LOG_ERROR); /* nothing here is worse */
    else if (log_parse_level(&level, cfg->log_level) == 0)
        log_set_level(level);
}

static void log_config(const struct serve_config *cfg)
{
    char *text = json_dumps(cfg->effective, JSON_COMPACT | JSON_REAL_PRECISION(15));

    if (text)
        log_info("configuration: %s", text);
    free(text);
}

static int run(const struct serve_config *cfg, struct err *e)
{
    static const int signals[] = { SIGTERM, SIGINT, 0 };
    struct loop *loop = NULL;
    struct serve *s = NULL;
    int st, code = 1;

    if ((st = loop_create(&loop, e)) == 0 && (st = serve_create(&s, cfg, loop, e)) == 0 &&
        (st = loop_signals(loop, signals, on_signal, s)) == 0 && (st = loop_run(loop)) == 0)
        code = serve_exit_code(s);
    serve_destroy(s);
    loop_destroy(loop);
    if (st < 0)
        log_error("%s", e->text[0] ? e->text : status_text(st));
    return code;
}

int main_serve(int argc, char **argv)
{
    struct serve_config cfg;
    struct serve_args args;
    struct err e = { "" };
    int st, code = 0;

    log_init("serve");
    st = serve_flags_parse(&cfg, &args, argc, argv, &e);
    if (st < 0) {
        log_error("%s", e.text[0] ? e.text : status_text(st));
        return 2;
    }
    if (cfg.help) {
        opts_help(serve_flags, "sluice serve MODEL [OPTIONS]");
    } else {
        set_log_level(&cfg);
        log_config(&cfg);
        code = run(&cfg, &e);
    }
    serve_flags_finish(&cfg, &args);
    return code;
}
