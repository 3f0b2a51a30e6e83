/* API keys: --api-key and VLLM_API_KEY. Only the paths of the API are guarded, so that probes and
 * scrapers need no key. */
#include <string.h>

#include "base/hash.h"
#include "net/http_server.h"
#include "serve/state.h"

static bool is_guarded(const char *path)
{
    return strncmp(path, "/v1", 3) == 0 || strncmp(path, "/v2", 3) == 0 ||
           strncmp(path, "/inference", 10) == 0 || strcmp(path, "/server_info") == 0;
}

/* Compares hashes, so that the time tells nothing of the key. */
static bool same_secret(const char *a, const char *b)
{
    struct hash256 ha, hb;

    hash_sha256(&ha, &(struct hash_part){ a, strlen(a) }, 1);
    hash_sha256(&hb, &(struct hash_part){ b, strlen(b) }, 1);
    return hash_equal(&ha, &hb);
}

bool auth_ok(const struct serve *s, struct http_req *r)
{
    const char *given = http_header(r, "Authorization");
    bool ok = false;

    if (s->cfg->api_keys.n == 0 || !is_guarded(api_path(s, r)))
        return true;
    if (!given || strncasecmp(given, "Bearer ", 7) != 0)
        return false;
    for (size_t i = 0; i < s->cfg->api_keys.n; i++)
        ok |= same_secret(given + 7, s->cfg->api_keys.v[i]);
    return ok;
}
