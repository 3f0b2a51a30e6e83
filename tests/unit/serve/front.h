/* One front over the scripted engine, and the calls that tests make to it, on one loop. */
#ifndef SERVE_TEST_FRONT_H
#define SERVE_TEST_FRONT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client.h"
#include "serve/config.h"

extern struct rig {
    struct serve_config cfg;
    const char *names[1], *keys[1];
    struct loop *loop;
    struct serve *s;
    struct http_client *client;
    uint16_t port;
    struct reply r; /* of the last call */
} rig;

void configure(void); /* rig.cfg as an instance of model "M" without special wishes */
void start(void);
void wait_ready(void);
void one_round(void); /* of the loop */
/* Tests' setup and teardown: a ready front, and its end. */
int setup(void **state);
int teardown(void **state);

void call(const char *method, const char *path, const char *body);
/* A completion of "Hi", and a chat that says it, with these members more. */
void complete(const char *members);
void chat(const char *members);

json_t *json_body(void); /* a new reference */
bool body_has(const char *text);
void expect_body(const char *part);
uint32_t count_in_body(const char *text);
/* The text of choice `index` of a stream, its deltas joined. */
void joined(char *out, size_t cap, uint32_t index);
const char *text_of(const json_t *reply, size_t i);

#endif
