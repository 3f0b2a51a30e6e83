/* Texts to token ids on a thread of their own: a text of megabytes takes seconds, in which the loop would
 * serve nobody. One task after another, in the order they came.
 *
 * Loop thread only, but for what says otherwise. */
#ifndef SLUICE_SERVE_ENCODE_H
#define SLUICE_SERVE_ENCODE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ENCODE_MAX_INLINE (64u << 10)  /* bytes of a task that may as well be done by the loop */
#define ENCODE_MAX_QUEUED (256u << 20) /* bytes of all tasks that wait or run */

struct encoder;
struct err;
struct loop;
struct tokenizer;

struct encode_item {
    const char *text; /* borrowed until the task is done; NULL: nothing to do */
    size_t len;
    int32_t *ids; /* malloc'ed by encode_run */
    size_t n;
    int status; /* tokenizer_encode's */
};

/* The caller's memory; encoder_push has it until `done` is called. */
struct encode_task {
    struct encode_item *items;
    uint32_t n_items;
    unsigned flags;          /* tokenizer_encode's */
    void (*done)(void *arg); /* on the loop thread */
    void *arg;
    struct encode_task *next; /* the encoder's */
};

/* Bytes of a task's texts. */
size_t encode_bytes(const struct encode_task *t);
/* Does the task here and now; done is not called. Once *stop (NULL: never) is true, what was not begun
 * gets ERR_CLOSED. Any thread. */
void encode_run(const struct tokenizer *tok, struct encode_task *t, const atomic_bool *stop);

/* tok is borrowed. ERR_NOMEM. Any thread, if nothing has been pushed. */
int encoder_create(struct encoder **out, struct loop *l, const struct tokenizer *tok,
                   struct err *e);
/* Waits for the text that is being encoded. Every task that was pushed is done then: done is called for each, with
 * ERR_CLOSED in the items that were not begun. NULL is fine. */
void encoder_destroy(struct encoder *e);

/* Calls t->done later. ERR_LIMIT where ENCODE_MAX_QUEUED would be passed: then it is not called. */
int encoder_push(struct encoder *e, struct encode_task *t);

#endif
