/* Edits of a JSON object as text: what is not edited stays byte for byte (big integers, floats, order,
 * unknown and repeated fields, white space), which a decoder and encoder would not keep. Pure. */
#ifndef SLUICE_PROXY_SPLICE_H
#define SLUICE_PROXY_SPLICE_H

#include <stdbool.h>
#include <stddef.h>

#define SPLICE_MAX_DEPTH 128 /* nesting of arrays and objects */
#define SPLICE_MAX_EDITS 32u /* members named in one splice_edit */

struct buf;

struct splice_text {
    const char *p; /* NULL: absent */
    size_t len;
};

enum splice_op {
    SPLICE_SET,     /* replaces the value, adds the member if it is absent */
    SPLICE_REPLACE, /* replaces the value of a member that is there */
    SPLICE_DELETE
};

struct splice_edit {
    const char *key;
    enum splice_op op;
    struct splice_text value; /* JSON text */
};

/* Whether the text is one JSON object (white space around it is fine). 0; ERR_BADMSG with *at the
 * offset of the fault; ERR_TOOLONG: deeper than SPLICE_MAX_DEPTH. UTF-8 is not checked. */
int splice_check(const char *text, size_t len, size_t *at);

/* The functions below take text that splice_check accepted. */

/* The value of a member of the object, of the last one if it is repeated. */
struct splice_text splice_get(struct splice_text object, const char *key);
/* The value along a path of objects: "usage", "prompt_tokens_details", NULL. Absent if any step is. */
struct splice_text splice_path(struct splice_text object, const char *const *keys);
/* The number of values in an array; 0 for other values. */
size_t splice_array_len(struct splice_text value);

bool splice_is(struct splice_text value, const char *literal); /* "true", "null" */
bool splice_is_object(struct splice_text value);
/* A JSON integer. False if it is none or out of range. */
bool splice_integer(long long *out, struct splice_text value);

/* Appends the object with the edits made. Returns the buffer's status. */
int splice_edit(struct buf *out, struct splice_text object, const struct splice_edit *edits,
                size_t n);

#endif
