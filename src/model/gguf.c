/* A cursor walks the file once. Keys keep a pointer to their value, which the walk has proved to
 * lie inside the file, so that the getters need no further checks of bounds. */
#include "model/gguf_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define GGUF_DEFAULT_ALIGNMENT 32
#define GGUF_MAX_ALIGNMENT     65536
#define GGUF_MAX_TENSORS       (1u << 20)
/* The smallest entries that a file can hold: an empty key with a byte, a tensor without dims. */
#define GGUF_MIN_KEY    (8 + 4 + 1)
#define GGUF_MIN_TENSOR (8 + 4 + 4 + 8)

struct cursor {
    const unsigned char *data;
    size_t len;
    size_t at;
    struct err *e;
};

/* How ggml stores tensors: name, elements and bytes a block, our type. By ggml's number. */
static const struct {
    const char *name;
    uint32_t block, bytes;
    enum k_type type;
} ggml_types[] = {
    [0] = { "F32", 1, 4, K_F32 },           [1] = { "F16", 1, 2, K_F16 },
    [2] = { "Q4_0", 32, 18, K_Q4_0 },       [3] = { "Q4_1", 32, 20, K_Q4_1 },
    [6] = { "Q5_0", 32, 22, K_Q5_0 },       [7] = { "Q5_1", 32, 24, K_Q5_1 },
    [8] = { "Q8_0", 32, 34, K_Q8_0 },       [9] = { "Q8_1", 32, 36, K_TYPES },
    [10] = { "Q2_K", 256, 84, K_TYPES },    [11] = { "Q3_K", 256, 110, K_TYPES },
    [12] = { "Q4_K", 256, 144, K_Q4_K },    [13] = { "Q5_K", 256, 176, K_Q5_K },
    [14] = { "Q6_K", 256, 210, K_Q6_K },    [15] = { "Q8_K", 256, 292, K_TYPES },
    [16] = { "IQ2_XXS", 256, 66, K_TYPES }, [17] = { "IQ2_XS", 256, 74, K_TYPES },
    [18] = { "IQ3_XXS", 256, 98, K_TYPES }, [19] = { "IQ1_S", 256, 50, K_TYPES },
    [20] = { "IQ4_NL", 32, 18, K_TYPES },   [21] = { "IQ3_S", 256, 110, K_TYPES },
    [22] = { "IQ2_S", 256, 82, K_TYPES },   [23] = { "IQ4_XS", 256, 136, K_TYPES },
    [24] = { "I8", 1, 1, K_TYPES },         [25] = { "I16", 1, 2, K_TYPES },
    [26] = { "I32", 1, 4, K_TYPES },        [27] = { "I64", 1, 8, K_TYPES },
    [28] = { "F64", 1, 8, K_TYPES },        [29] = { "IQ1_M", 256, 56, K_TYPES },
    [30] = { "BF16", 1, 2, K_BF16 },        [34] = { "TQ1_0", 256, 54, K_TYPES },
    [35] = { "TQ2_0", 256, 66, K_TYPES },   [39] = { "MXFP4", 32, 17, K_TYPES },
};
#define GGML_TYPES (sizeof ggml_types / sizeof ggml_types[0])

static int bad(struct cursor *c, const char *what)
{
    return err_set(c->e, ERR_BADMSG, "offset %zu: %s", c->at, what);
}

/* The next n bytes; NULL, with the sentence, if the file has fewer. */
static const unsigned char *take(struct cursor *c, uint64_t n, const char *what)
{
    const unsigned char *p;

    if (n > c->len - c->at) {
        err_set(c->e, ERR_BADMSG,
                "offset %zu: %s needs %llu bytes, but the file ends after %zu (truncated?)", c->at,
                what, (unsigned long long)n, c->len - c->at);
        return NULL;
    }
    p = c->data + c->at;
    c->at += (size_t)n;
    return p;
}

static int take_u32(struct cursor *c, uint32_t *out, const char *what)
{
    const unsigned char *p = take(c, 4, what);

    *out = p ? (uint32_t)gguf_load_le(p, 4) : 0;
    return p ? 0 : ERR_BADMSG;
}

static int take_u64(struct cursor *c, uint64_t *out, const char *what)
{
    const unsigned char *p = take(c, 8, what);

    *out = p ? gguf_load_le(p, 8) : 0;
    return p ? 0 : ERR_BADMSG;
}

static int take_string(struct cursor *c, const char **s, size_t *n, const char *what)
{
    uint64_t len;

    *s = NULL;
    if (take_u64(c, &len, what) < 0 || !(*s = (const char *)take(c, len, what)))
        return ERR_BADMSG;
    *n = (size_t)len;
    return 0;
}

static int take_type(struct cursor *c, enum gguf_type *out)
{
    uint32_t t;
    int st = take_u32(c, &t, "a value's type");

    if (st < 0)
        return st;
    if (t >= GGUF_TYPES)
        return err_set(c->e, ERR_BADMSG, "offset %zu: value type %u is not known (0 to %d are)",
                       c->at - 4, t, GGUF_TYPES - 1);
    *out = (enum gguf_type)t;
    return 0;
}

static int skip_array(struct cursor *c)
{
    const char *s;
    enum gguf_type type = GGUF_TYPES;
    uint64_t n;
    size_t len;
    int st;

    if ((st = take_type(c, &type)) < 0 || (st = take_u64(c, &n, "an array's length")) < 0)
        return st;
    if (type == GGUF_ARRAY)
        return bad(c, "an array of arrays is not supported");
    if (type != GGUF_STRING) {
        if (n > (c->len - c->at) / gguf_type_bytes[type])
            return bad(c, "an array is longer than the file (truncated?)");
        return take(c, n * gguf_type_bytes[type], "an array") ? 0 : ERR_BADMSG;
    }
    for (uint64_t i = 0; i < n; i++)
        if ((st = take_string(c, &s, &len, "a string of an array")) < 0)
            return st;
    return 0;
}

static int skip_value(struct cursor *c, enum gguf_type type)
{
    const char *s;
    size_t n;

    if (type == GGUF_ARRAY)
        return skip_array(c);
    if (type == GGUF_STRING)
        return take_string(c, &s, &n, "a string");
    return take(c, gguf_type_bytes[type], "a value") ? 0 : ERR_BADMSG;
}

static int tensor_cmp(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int read_keys(struct gguf *g, struct cursor *c)
{
    int st;

    g->keys = calloc(g->n_keys ? g->n_keys : 1, sizeof *g->keys);
    if (!g->keys)
        return err_set(c->e, ERR_NOMEM, "no memory for %llu keys", (unsigned long long)g->n_keys);
    for (uint64_t i = 0; i < g->n_keys; i++) {
        struct gguf_key *k = &g->keys[i];

        if ((st = take_string(c, &k->name, &k->name_len, "a key")) < 0 ||
            (st = take_type(c, &k->type)) < 0)
            return st;
        k->value = c->data + c->at;
        if ((st = skip_value(c, k->type)) < 0)
            return err_prefix(c->e, st, "key \"%.*s\"", (int)(k->name_len < 80 ? k->name_len : 80),
                              k->name);
    }
    if (g->n_keys > 1)
        qsort(g->keys, g->n_keys, sizeof *g->keys, gguf_key_cmp);
    for (uint64_t i = 1; i < g->n_keys; i++)
        if (gguf_key_cmp(&g->keys[i - 1], &g->keys[i]) == 0)
            return err_set(c->e, ERR_BADMSG, "offset %zu: key \"%.*s\" occurs twice",
                           (size_t)((const unsigned char *)g->keys[i].name - c->data),
                           (int)(g->keys[i].name_len < 80 ? g->keys[i].name_len : 80),
                           g->keys[i].name);
    return 0;
}

/* Elements and bytes of a shape; ERR_BADMSG if they overflow or rows are not whole blocks. */
static int tensor_size(struct tensor *t, uint32_t ggml, struct cursor *c)
{
    uint32_t block = ggml_types[ggml].block;
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n))
            return err_set(c->e, ERR_BADMSG, "offset %zu: tensor %s is impossibly large", c->at,
                           t->name);
    if ((t->n_dims ? t->shape[t->n_dims - 1] : 1) % block)
        return err_set(c->e, ERR_BADMSG,
                       "offset %zu: tensor %s is %s, whose rows are whole blocks of %u; found rows "
                       "of %llu",
                       c->at, t->name, t->dtype, block,
                       (unsigned long long)(t->n_dims ? t->shape[t->n_dims - 1] : 1));
    if (__builtin_mul_overflow(n / block, (uint64_t)ggml_types[ggml].bytes, &t->bytes))
        return err_set(c->e, ERR_BADMSG, "offset %zu: tensor %s is impossibly large", c->at,
                       t->name);
    return 0;
}

static int read_shape(struct tensor *t, struct cursor *c)
{
    uint32_t n;
    int st = take_u32(c, &n, "a tensor's dimensions");

    if (st < 0)
        return st;
    if (n > TENSOR_MAX_DIMS)
        return err_set(c->e, ERR_BADMSG, "offset %zu: tensor %s has %u dimensions (at most %d)",
                       c->at - 4, t->name, n, TENSOR_MAX_DIMS);
    t->n_dims = n;
    while (n-- > 0) /* the file has the innermost first */
        if ((st = take_u64(c, &t->shape[n], "a tensor's dimension")) < 0)
            return st;
    return 0;
}

/* One line of the tensor table; *offset is relative to the start of the data. */
static int read_tensor(struct tensor *t, char **name, uint64_t *offset, struct cursor *c)
{
    const char *s;
    uint32_t type;
    size_t n;
    int st;

    if ((st = take_string(c, &s, &n, "a tensor's name")) < 0)
        return st;
    if (n >= TENSOR_MAX_NAME || memchr(s, '\0', n))
        return bad(c, "a tensor's name is too long or holds a zero byte");
    t->name = memcpy(*name, s, n);
    *name += n + 1; /* the block is zeroed: terminated */
    if ((st = read_shape(t, c)) < 0 || (st = take_u32(c, &type, "a tensor's type")) < 0)
        return st;
    if (type >= GGML_TYPES || !ggml_types[type].name)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "offset %zu: tensor %s has type %u, which is not known", c->at - 4, t->name,
                       type);
    t->dtype = ggml_types[type].name;
    t->type = ggml_types[type].type;
    if ((st = tensor_size(t, type, c)) < 0)
        return st;
    return take_u64(c, offset, "a tensor's offset");
}

static int place_tensor(struct tensor *t, uint64_t offset, size_t data_at, uint64_t alignment,
                        struct cursor *c)
{
    if (offset % alignment)
        return err_set(c->e, ERR_BADMSG,
                       "tensor %s: its offset %llu is not a multiple of the alignment %llu",
                       t->name, (unsigned long long)offset, (unsigned long long)alignment);
    if (data_at > c->len || offset > c->len - data_at || t->bytes > c->len - data_at - offset)
        return err_set(c->e, ERR_BADMSG,
                       "tensor %s: its %llu bytes at offset %zu + %llu end behind the file's %zu "
                       "(truncated?)",
                       t->name, (unsigned long long)t->bytes, data_at, (unsigned long long)offset,
                       c->len);
    t->data = c->data + data_at + offset;
    return 0;
}

static int find_alignment(const struct gguf *g, uint64_t *out, struct err *e)
{
    int st = gguf_u64(g, "general.alignment", out, e);

    if (st == ERR_NOTFOUND) {
        *out = GGUF_DEFAULT_ALIGNMENT;
        return 0;
    }
    if (st == 0 && (*out == 0 || *out > GGUF_MAX_ALIGNMENT || (*out & (*out - 1))))
        return err_set(e, ERR_BADMSG,
                       "general.alignment is %llu; it must be a power of two up to %d",
                       (unsigned long long)*out, GGUF_MAX_ALIGNMENT);
    return st;
}

static int read_tensors(struct gguf *g, struct cursor *c)
{
    uint64_t *offsets = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *offsets);
    uint64_t alignment;
    size_t data_at;
    char *name;
    int st = 0;

    g->tensors = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *g->tensors);
    name = g->names = calloc(g->n_tensors ? g->n_tensors : 1, TENSOR_MAX_NAME);
    if (!offsets || !g->tensors || !g->names)
        st = err_set(c->e, ERR_NOMEM, "no memory for %llu tensors",
                     (unsigned long long)g->n_tensors);
    for (uint64_t i = 0; st == 0 && i < g->n_tensors; i++)
        st = read_tensor(&g->tensors[i], &name, &offsets[i], c);
    if (st == 0)
        st = find_alignment(g, &alignment, c->e);
    if (st == 0) {
        data_at = (c->at + alignment - 1) / alignment * alignment;
        for (uint64_t i = 0; st == 0 && i < g->n_tensors; i++)
            st = place_tensor(&g->tensors[i], offsets[i], data_at, alignment, c);
    }
    free(offsets);
    return st;
}

static int sort_tensors(struct gguf *g, struct err *e)
{
    if (g->n_tensors > 1)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, tensor_cmp);
    for (uint64_t i = 1; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i - 1].name, g->tensors[i].name) == 0)
            return err_set(e, ERR_BADMSG, "tensor %s occurs twice", g->tensors[i].name);
    return 0;
}

static int read_header(struct gguf *g, struct cursor *c)
{
    const unsigned char *p = take(c, 4, "the magic");
    int st;

    if (!p)
        return ERR_BADMSG;
    if (memcmp(p, "GGUF", 4) != 0)
        return err_set(c->e, ERR_BADMSG,
                       "offset 0: not a GGUF file (it starts %02x %02x %02x %02x)", p[0], p[1],
                       p[2], p[3]);
    if ((st = take_u32(c, &g->version, "the version")) < 0)
        return st;
    if (g->version != 2 && g->version != 3)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "offset 4: GGUF version %u%s; versions 2 and 3 are read", g->version,
                       g->version & 0xffff ? "" : " (big endian)");
    if ((st = take_u64(c, &g->n_tensors, "the number of tensors")) < 0 ||
        (st = take_u64(c, &g->n_keys, "the number of keys")) < 0)
        return st;
    if (g->n_keys > (c->len - c->at) / GGUF_MIN_KEY)
        return err_set(c->e, ERR_BADMSG, "offset 16: %llu keys do not fit a file of %zu bytes",
                       (unsigned long long)g->n_keys, c->len);
    if (g->n_tensors > GGUF_MAX_TENSORS || g->n_tensors > (c->len - c->at) / GGUF_MIN_TENSOR)
        return err_set(c->e, ERR_BADMSG, "offset 8: %llu tensors do not fit a file of %zu bytes",
                       (unsigned long long)g->n_tensors, c->len);
    return 0;
}

int gguf_parse(struct gguf **out, const void *data, size_t len, struct err *e)
{
    struct cursor c = { .data = data, .len = len, .e = e };
    struct gguf *g = calloc(1, sizeof *g);
    int st;

    if (!g)
        return err_set(e, ERR_NOMEM, "no memory");
    if ((st = read_header(g, &c)) < 0 || (st = read_keys(g, &c)) < 0 ||
        (st = read_tensors(g, &c)) < 0 || (st = sort_tensors(g, e)) < 0) {
        gguf_free(g);
        return st;
    }
    *out = g;
    return 0;
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    free(g->keys);
    free(g->tensors);
    free(g->names);
    free(g);
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

const struct tensor *gguf_tensors(const struct gguf *g, uint64_t *n)
{
    *n = g->n_tensors;
    return g->tensors;
}
