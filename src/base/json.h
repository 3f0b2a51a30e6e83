/* JSON around jansson: reading with bounds, and writing straight into a buffer.
 *
 * What is written often (a chunk a token) is written piece by piece, in the order that the wire
 * wants, without a tree in between. */
#ifndef SLUICE_BASE_JSON_H
#define SLUICE_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;

#define JSON_MAX_DEPTH 128 /* nesting of arrays and objects */

/* Where and why a text was not JSON. */
struct json_fault {
    size_t offset; /* bytes before the fault */
    bool
        overflow; /* a number too large for a double or for 64 bits: the text itself is well-formed */
    char key[64]; /* overflow: the member that holds the number, "" if that is not clear */
};

/* Parses one whole JSON value of any type. Refused: duplicate keys, nesting beyond JSON_MAX_DEPTH,
 * invalid UTF-8, anything after the value. *out is a new reference. ERR_BADMSG with a sentence;
 * fault (may be NULL) is filled on failure. */
int json_read(json_t **out, const char *text, size_t len, struct json_fault *fault, struct err *e);

/* Append to b; each returns the buffer's status. */
int json_put_string(struct buf *b, const char *utf8, size_t len); /* with quotes; len bytes */
int json_put_text(struct buf *b, const char *utf8);               /* NUL-terminated; NULL: null */
int json_put_double(struct buf *b, double v); /* shortest that reads back equal; v must be finite */
int json_put_value(struct buf *b, const json_t *v); /* compact; NULL: null */

#endif
