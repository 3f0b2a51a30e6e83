#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

#define LOG_LINE_MAX 4096

static const char *log_who = "sluice";
static _Atomic int log_level_now = LOG_INFO;
static const char *const level_names[] = { "DEBUG", "INFO", "WARNING", "ERROR" };

void log_init(const char *who)
{
    const char *env = getenv("VLLM_LOGGING_LEVEL");
    enum log_level level;

    log_who = who;
    if (env && log_parse_level(&level, env) == 0)
        log_set_level(level);
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&log_level_now, level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&log_level_now, memory_order_relaxed);
}

int log_parse_level(enum log_level *out, const char *text)
{
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = {
        { "debug", LOG_DEBUG }, { "trace", LOG_DEBUG },    { "notset", LOG_DEBUG },
        { "info", LOG_INFO },   { "warn", LOG_WARNING },   { "warning", LOG_WARNING },
        { "error", LOG_ERROR }, { "critical", LOG_ERROR },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(names[i].name, text) == 0) {
            *out = names[i].level;
            return 0;
        }
    return ERR_INVAL;
}

bool log_enabled(enum log_level level)
{
    return (int)level >= (int)log_get_level();
}

void log_write(enum log_level level, const char *fmt, ...)
{
    char line[LOG_LINE_MAX];
    struct tm tm;
    struct timespec now;
    size_t n;
    int m;
    va_list ap;

    if (!log_enabled(level) || level >= LOG_OFF)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    n = (size_t)snprintf(line, sizeof line, "%s %02d-%02d %02d:%02d:%02d.%03ld [%s] ",
                         level_names[level], tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
                         tm.tm_sec, now.tv_nsec / 1000000, log_who);
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m < 0)
        return;
    n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    line[n++] = '\n';
    /* A log that cannot be written is no reason to stop serving. */
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}
