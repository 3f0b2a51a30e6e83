/* sluice calibrate: options and wiring. */
#include "ops/calibrate_url.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"
#include "main/tool.h"

struct settings {
    const char *url, *api_key;
    int64_t requests, prompt_tokens;
    double timeout;
    bool json, help;
};

#define AT(member) offsetof(struct settings, member)

static const struct opt_spec specs[] = {
    { "--url", OPT_STRING, AT(url), NULL, NULL, 0, 0,
      "address of the instance, as http://127.0.0.1:8000; its own, not that of a proxy" },
    { "--num-requests", OPT_INT, AT(requests), "5", NULL, 1, CALIBRATE_URL_MAX_REQUESTS,
      "prompts, one after another" },
    { "--prompt-tokens", OPT_SIZE, AT(prompt_tokens), "0", NULL, 0, CALIBRATE_URL_MAX_TOKENS,
      "tokens of each; 0: as many as the context takes" },
    { "--api-key", OPT_STRING, AT(api_key), NULL, NULL, 0, 0,
      "default: the environment's VLLM_API_KEY" },
    { "--timeout", OPT_FLOAT, AT(timeout), "3600", NULL, 0.001, 1e6,
      "seconds that one answer may take" },
    { "--json", OPT_FLAG, AT(json), NULL, NULL, 0, 0, "print JSON" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static int run(const void *settings, const char *const *args, struct err *e)
{
    const struct settings *s = settings;
    const struct calibrate_url_options o = {
        .url = s->url,
        .api_key = s->api_key ? s->api_key : getenv("VLLM_API_KEY"),
        .n_requests = (uint32_t)s->requests,
        .prompt_tokens = (uint32_t)s->prompt_tokens,
        .timeout = s->timeout,
        .json = s->json,
    };
    struct buf out;
    int st;

    (void)args;
    if (!s->url)
        return err_set(e, ERR_INVAL,
                       "--url is needed: the address of an instance, as http://127.0.0.1:8000");
    buf_init(&out, BUF_MAX_REPLY);
    st = calibrate_url(&o, &out, e);
    if (st == 0)
        fputs(buf_str(&out), stdout);
    buf_finish(&out);
    return st;
}

int main_calibrate(int argc, char **argv)
{
    static const struct tool tool = { "calibrate", specs,
                                      "sluice calibrate --url http://HOST:PORT [OPTIONS]", 0, run };
    struct settings s = { 0 };

    return tool_main(&tool, &s, &s.help, argc, argv);
}
