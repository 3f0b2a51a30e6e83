/* A client that asks one HTTP question at a time and waits for the answer: for tools that do one thing
 * after another. */
#ifndef SLUICE_OPS_ASK_H
#define SLUICE_OPS_ASK_H

struct ask;
struct buf;
struct err;

/* url: "http://host:port". api_key may be NULL. timeout: seconds that an answer may take. ERR_INVAL for
 * what is no such address. */
int ask_create(struct ask **out, const char *url, const char *api_key, double timeout,
               struct err *e);
void ask_destroy(struct ask *a); /* NULL is fine */

/* GET, or POST where body (JSON) is not NULL. The answer is in reply, which the caller has made with
 * buf_init. Returns the HTTP status, or ERR_IO where there was no whole answer, with a sentence. */
int ask_for(struct ask *a, const char *path, const struct buf *body, struct buf *reply,
            struct err *e);
/* The same where only an answer of 200 is good: 0, else ERR_IO with the sentence of the server's error. */
int ask_well(struct ask *a, const char *path, const struct buf *body, struct buf *reply,
             struct err *e);

#endif
