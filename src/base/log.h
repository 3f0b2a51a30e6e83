/* The log: one line an event on standard error, written in one call so that lines of several
 * threads never mix.
 *
 *     INFO 11-30 02:34:29 [serve] Application startup complete.
 *
 * The level comes from --log-level, else VLLM_LOGGING_LEVEL, else INFO. */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_OFF };

/* The lines of this process carry `who` in brackets ("serve", "proxy"). who is borrowed for ever. */
void log_init(const char *who);
void log_set_level(enum log_level level);
enum log_level log_get_level(void);

/* "debug", "INFO", "warn", "WARNING", ... in any case. Returns 0 or ERR_INVAL. */
int log_parse_level(enum log_level *out, const char *text);

bool log_enabled(enum log_level level);
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* clang-format off */
#define log_debug(...)   do { if (log_enabled(LOG_DEBUG)) log_write(LOG_DEBUG, __VA_ARGS__); } while (0)
#define log_info(...)    log_write(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_error(...)   log_write(LOG_ERROR, __VA_ARGS__)
/* clang-format on */

#endif
