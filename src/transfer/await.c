#include "transfer/await.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "transfer/lease.h"

static struct await **bucket_of(struct await_table *t, const char *id)
{
    return &t->bucket[lease_hash(id) % AWAIT_BUCKETS];
}

void await_table_init(struct await_table *t)
{
    memset(t, 0, sizeof *t);
    t->next = HUGE_VAL;
}

void await_table_finish(struct await_table *t)
{
    while (t->first) {
        struct await *a = t->first;

        t->first = a->next;
        free(a);
    }
    await_table_init(t);
}

static struct await *find(const struct await_table *t, const char *id)
{
    struct await *a = t->bucket[lease_hash(id) % AWAIT_BUCKETS];

    while (a && strcmp(a->id, id) != 0)
        a = a->next_in_bucket;
    return a;
}

const struct await *await_find(const struct await_table *t, const char *id)
{
    return find(t, id);
}

static void take_out(struct await_table *t, struct await *a)
{
    struct await **at = bucket_of(t, a->id);

    while (*at != a)
        at = &(*at)->next_in_bucket;
    *at = a->next_in_bucket;
    *(a->prev ? &a->prev->next : &t->first) = a->next;
    *(a->next ? &a->next->prev : &t->last) = a->prev;
    t->n--;
    free(a);
}

/* Whether there is room for one more, if need be in the place of the oldest that may be forgotten. */
static bool make_room(struct await_table *t)
{
    struct await *a = t->first;

    if (t->n < AWAIT_MAX)
        return true;
    while (a && a->coming)
        a = a->next;
    if (a)
        take_out(t, a);
    return a != NULL;
}

static int add(struct await **out, struct await_table *t, const char *id)
{
    size_t n = strlen(id);
    struct await *a, **bucket;

    if (n == 0 || n >= TRANSFER_ID_MAX)
        return ERR_INVAL;
    if (!make_room(t))
        return ERR_LIMIT;
    a = calloc(1, sizeof *a);
    if (!a)
        return ERR_NOMEM;
    memcpy(a->id, id, n + 1);
    a->deadline = HUGE_VAL;
    bucket = bucket_of(t, id);
    a->next_in_bucket = *bucket;
    *bucket = a;
    a->prev = t->last;
    *(t->last ? &t->last->next : &t->first) = a;
    t->last = a;
    t->n++;
    *out = a;
    return 0;
}

/* The entry of this name, made if there is none. */
static int find_or_add(struct await **out, struct await_table *t, const char *id)
{
    *out = find(t, id);
    return *out ? 0 : add(out, t, id);
}

static void set_deadline(struct await_table *t, struct await *a, double deadline)
{
    a->deadline = deadline;
    t->next = fmin(t->next, deadline);
}

int await_expect(struct await_table *t, const char *id, const unsigned char *prompt)
{
    struct await *a;
    int st = find_or_add(&a, t, id);

    if (st < 0)
        return st;
    if (a->coming)
        return ERR_EXISTS;
    if (a->given_up && !await_same_prompt(a->prompt, prompt))
        a->given_up = false;
    a->coming = true;
    a->failed = false;
    memcpy(a->prompt, prompt, sizeof a->prompt);
    a->deadline = HUGE_VAL;
    return 0;
}

int await_ask(struct await_table *t, const char *id, const unsigned char *prompt, double deadline)
{
    struct await *a;
    int st = find_or_add(&a, t, id);

    if (st < 0)
        return st;
    if (a->failed)
        return ERR_NOTFOUND;
    if (a->coming && !await_same_prompt(a->prompt, prompt))
        return ERR_MISMATCH;
    a->given_up = false;
    if (!a->coming)
        set_deadline(t, a, deadline);
    return 0;
}

void await_drop(struct await_table *t, const char *id, double deadline)
{
    struct await *a;

    if (find_or_add(&a, t, id) < 0)
        return;
    a->coming = a->given_up = false;
    a->failed = true;
    set_deadline(t, a, deadline);
}

bool await_same_prompt(const unsigned char *a, const unsigned char *b)
{
    static const unsigned char any[TRANSFER_PROMPT_BYTES];

    return memcmp(a, b, sizeof any) == 0 || memcmp(a, any, sizeof any) == 0 ||
           memcmp(b, any, sizeof any) == 0;
}

void await_give_up(struct await_table *t, const char *id, const unsigned char *prompt,
                   double deadline)
{
    struct await *a;

    if (find_or_add(&a, t, id) < 0 || a->failed ||
        (a->coming && !await_same_prompt(a->prompt, prompt)))
        return;
    a->given_up = true;
    if (a->coming)
        return;
    memcpy(a->prompt, prompt, sizeof a->prompt);
    set_deadline(t, a, deadline);
}

void await_hold(struct await_table *t, const char *id, struct await *out)
{
    struct await *a = find(t, id);

    memset(out, 0, sizeof *out);
    if (!a)
        return;
    *out = *a;
    take_out(t, a);
}

bool await_expire(struct await_table *t, double now)
{
    struct await *next;
    bool any = false;

    if (now < t->next)
        return false;
    t->next = HUGE_VAL;
    for (struct await *a = t->first; a; a = next) {
        next = a->next;
        if (a->deadline <= now) {
            take_out(t, a);
            any = true;
        } else {
            t->next = fmin(t->next, a->deadline);
        }
    }
    return any;
}
