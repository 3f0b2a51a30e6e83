/* Chat templates: the subset of Jinja2 that model makers use, rendered over JSON values with
 * trim_blocks and lstrip_blocks on, as HuggingFace does. A template is compiled once and may be
 * rendered by any number of threads. Rendering is bounded in output, steps and depth. */
#ifndef SLUICE_TEXT_TEMPLATE_H
#define SLUICE_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>

struct err;
struct template;

#define TEMPLATE_MAX_SOURCE (1u << 20)  /* bytes of a template */
#define TEMPLATE_MAX_OUTPUT (64u << 20) /* bytes of a rendered chat */
#define TEMPLATE_MAX_STEPS  (20u << 20) /* nodes evaluated in one rendering */
#define TEMPLATE_MAX_DEPTH  200         /* nesting of blocks and expressions */

/* ERR_BADMSG with line and reason for a syntax error or a statement outside the subset,
 * ERR_UNSUPPORTED for an unknown filter or test, ERR_LIMIT for too deep nesting. */
int template_compile(struct template **out, const char *source, size_t len, struct err *e);
void template_destroy(struct template *t);

/* Renders over vars (an object: messages, tools, add_generation_prompt, bos_token, ...). A number
 * `now` in it, seconds since 1970, is the time of strftime_now; without it that function is not
 * defined, and templates fall back to a fixed date. *text is malloc'ed and NUL-terminated. ERR_INVAL
 * with the template's own words for raise_exception(...); ERR_BADMSG for a type error; ERR_LIMIT. */
int template_render(const struct template *t, json_t *vars, char **text, size_t *len,
                    struct err *e);

#endif
