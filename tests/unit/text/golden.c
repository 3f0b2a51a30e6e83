#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

static char *existing(char *path)
{
    if (path && access(path, R_OK) == 0)
        return path;
    free(path);
    return NULL;
}

char *golden_path(const char *name)
{
    const char *root = getenv("SLUICE_SHARED");
    char *path;

    if (asprintf(&path, "%s/golden/%s", root ? root : SLUICE_SOURCE_ROOT "/../shared", name) < 0)
        return NULL;
    return existing(path);
}

bool golden_there(void)
{
    char *path = golden_path("tokenizers");

    free(path);
    return path;
}

char *golden_model(void)
{
    const char *named = getenv("SLUICE_MODEL"), *home = getenv("HOME");
    char *path;

    if (named)
        return existing(strdup(named));
    if (asprintf(&path, "%s/.cache/sluice/SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "") < 0)
        return NULL;
    return existing(path);
}

char *golden_read(const char *path, size_t *len)
{
    FILE *f = path ? fopen(path, "rb") : NULL;
    char *data = NULL;
    long size;

    if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 &&
        (data = malloc((size_t)size + 1))) {
        *len = fread(data, 1, (size_t)size, f);
        data[*len] = '\0';
    }
    if (f)
        fclose(f);
    return data;
}

/* Lines end at \n only: the strings hold other line separators. */
static json_t *parse_lines(char *data, size_t len)
{
    json_t *all = json_array();

    for (char *line = data, *end; line < data + len; line = end + 1) {
        if (!(end = memchr(line, '\n', (size_t)(data + len - line))))
            end = data + len;
        if (end > line)
            json_array_append_new(all,
                                  json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL));
    }
    return all;
}

json_t *golden_json(const char *name)
{
    char *path = golden_path(name), *data;
    size_t len;
    json_t *j = NULL;

    if ((data = golden_read(path, &len)))
        j = strstr(name, ".jsonl") ? parse_lines(data, len)
                                   : json_loadb(data, len, JSON_ALLOW_NUL, NULL);
    free(data);
    free(path);
    return j;
}

bool golden_encodes(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                    const json_t *want)
{
    int32_t *ids = NULL;
    size_t n = 0;
    bool same = tokenizer_encode(t, text, len, flags, &ids, &n) == 0 && n == json_array_size(want);

    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i));
    free(ids);
    return same;
}

static bool is_text(const json_t *want, const char *text, size_t len)
{
    return json_string_length(want) == len && memcmp(json_string_value(want), text, len) == 0;
}

static bool streams_whole(const struct tokenizer *t, const int32_t *ids, size_t n,
                          bool skip_special, const json_t *want)
{
    struct detok d;
    struct buf out;
    bool same;

    buf_init(&out, BUF_MAX_BODY);
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], &out);
    detok_flush(&d, &out);
    same = is_text(want, buf_str(&out), out.len);
    buf_finish(&out);
    return same;
}

static int32_t *to_ids(const json_t *list, size_t *n)
{
    int32_t *ids = malloc((json_array_size(list) + 1) * sizeof *ids);

    *n = json_array_size(list);
    for (size_t i = 0; ids && i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

bool golden_decodes(const struct tokenizer *t, const json_t *list, bool skip_special,
                    const json_t *want)
{
    size_t n, len = 0;
    int32_t *ids = to_ids(list, &n);
    char *text = NULL;
    bool same = tokenizer_decode(t, ids, n, skip_special, &text, &len) == 0 &&
                is_text(want, text, len) && streams_whole(t, ids, n, skip_special, want);

    free(text);
    free(ids);
    return same;
}

bool golden_streams(const struct tokenizer *t, const json_t *list, const json_t *prefix)
{
    struct detok d, end;
    struct buf out;
    bool same = json_array_size(list) == json_array_size(prefix);

    buf_init(&out, BUF_MAX_BODY);
    detok_init(&d, t, false);
    for (size_t i = 0; same && i < json_array_size(list); i++) {
        size_t before;

        detok_push(&d, (int32_t)json_integer_value(json_array_get(list, i)), &out);
        before = out.len;
        end = d;
        detok_flush(&end, &out);
        same = is_text(json_array_get(prefix, i), buf_str(&out), out.len);
        buf_truncate(&out, before);
    }
    buf_finish(&out);
    return same;
}
