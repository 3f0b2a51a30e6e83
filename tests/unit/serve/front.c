#include "front.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "fake_engine.h"
#include "net/loop.h"
#include "serve/serve.h"

struct rig rig;

void configure(void)
{
    rig.names[0] = "M";
    rig.cfg = (struct serve_config){ .host = "127.0.0.1",
                                     .served_names = { rig.names, 1 },
                                     .allowed_origins = "[\"http://a\"]",
                                     .max_header_bytes = 65536,
                                     .max_body_bytes = 1 << 20,
                                     .keep_alive = 5,
                                     .stall_timeout = 60,
                                     .no_access_log = true,
                                     .no_log_stats = true,
                                     .response_role = "assistant",
                                     .stream_interval = 1,
                                     .max_logprobs = 20,
                                     .fingerprint_mode = "full",
                                     .generation_config = "vllm",
                                     .model = "MODEL",
                                     .dtype = "auto",
                                     .policy = "fcfs",
                                     .tokenizer_info = true,
                                     .shutdown_timeout = 5 };
}

void start(void)
{
    struct err e = { "" };

    assert_int_equal(loop_create(&rig.loop, &e), 0);
    if (serve_create(&rig.s, &rig.cfg, rig.loop, &e) < 0)
        fail_msg("%s", e.text);
    rig.port = serve_port(rig.s);
    assert_int_equal(
        http_client_create(&rig.client, rig.loop, &(struct http_client_options){ 0 }, &e), 0);
}

static void stop_loop(void *loop)
{
    loop_stop(loop);
}

void one_round(void)
{
    assert_int_equal(loop_post(rig.loop, stop_loop, rig.loop), 0);
    loop_run(rig.loop);
}

void call(const char *method, const char *path, const char *body)
{
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, rig.port, method, path, NULL, body, &rig.r);
}

void wait_ready(void)
{
    do
        call("GET", "/ready", NULL);
    while (rig.r.status == 503);
    assert_int_equal(rig.r.status, 200);
}

int setup(void **state)
{
    (void)state;
    fake_reset();
    configure();
    start();
    wait_ready();
    return 0;
}

int teardown(void **state)
{
    (void)state;
    client_finish(&rig.r);
    memset(&rig.r, 0, sizeof rig.r);
    http_client_destroy(rig.client);
    serve_destroy(rig.s);
    loop_destroy(rig.loop);
    return 0;
}

void complete(const char *members)
{
    char body[1024];

    snprintf(body, sizeof body, "{\"model\":\"M\",\"prompt\":\"Hi\",%s}", members);
    call("POST", "/v1/completions", body);
}

void chat(const char *members)
{
    char body[1024];

    snprintf(body, sizeof body,
             "{\"model\":\"M\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],%s}", members);
    call("POST", "/v1/chat/completions", body);
}

json_t *json_body(void)
{
    json_t *o = json_loads(buf_str(&rig.r.body), 0, NULL);

    if (!o)
        fail_msg("%s", buf_str(&rig.r.body));
    return o;
}

bool body_has(const char *text)
{
    return strstr(buf_str(&rig.r.body), text) != NULL;
}

void expect_body(const char *part)
{
    if (!body_has(part))
        fail_msg("'%s' is not in: %s", part, buf_str(&rig.r.body));
}

uint32_t count_in_body(const char *text)
{
    uint32_t n = 0;

    for (const char *p = buf_str(&rig.r.body); (p = strstr(p, text)); p += strlen(text))
        n++;
    return n;
}

void joined(char *out, size_t cap, uint32_t index)
{
    const char *p = buf_str(&rig.r.body);

    out[0] = '\0';
    for (; (p = strstr(p, "data: {")); p++) {
        json_t *o = json_loads(p + 6, JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *c = json_array_get(json_object_get(o, "choices"), 0);
        const json_t *d = json_object_get(c, "delta");
        const char *text = json_string_value(json_object_get(d ? d : c, d ? "content" : "text"));

        assert_non_null(o);
        if (text && (uint32_t)json_integer_value(json_object_get(c, "index")) == index)
            strncat(out, text, cap - strlen(out) - 1);
        json_decref(o);
    }
}

const char *text_of(const json_t *reply, size_t i)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(reply, "choices"), i), "text"));
}
