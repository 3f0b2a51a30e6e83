/* OpenAI's error object: {"error":{"message","type","param","code"}}. */
#ifndef SLUICE_PROXY_FAULT_H
#define SLUICE_PROXY_FAULT_H

struct buf;
struct http_req;

/* Makes a text that quotes a client or an instance fit for JSON and a log line: invalid UTF-8 and control
 * characters become '?'. */
void fault_clean(char *text);
/* Appends the object. The type is the status's reason phrase. param NULL: null. */
void fault_object(struct buf *out, int status, const char *param, const char *message);
/* error_body of http_server_options. */
void fault_body(struct buf *out, int status, const char *reason);
/* Answers with it; r is gone. */
void fault_reply(struct http_req *r, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
