/* A thread that does one thing at a time for another, which meanwhile does something else: rows of
 * tokens travel while the team computes. It sleeps when there is nothing to do. */
#ifndef SLUICE_MODEL_COURIER_H
#define SLUICE_MODEL_COURIER_H

struct courier;

/* ERR_NOMEM, ERR_LIMIT. */
int courier_create(struct courier **out);
void courier_destroy(struct courier *c); /* NULL is fine; nothing may be under way */

/* Calls fn(arg) on the courier's thread. One at a time: courier_wait comes between two of them. */
void courier_start(struct courier *c, void (*fn)(void *arg), void *arg);
/* Returns when fn has; what it wrote can be read then. */
void courier_wait(struct courier *c);

#endif
