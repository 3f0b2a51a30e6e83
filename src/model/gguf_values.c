/* Metadata values by key. The parser has proved that every value lies inside the file. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/gguf_file.h"

static const char *const type_names[GGUF_TYPES] = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",   "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64",
};

const uint8_t gguf_type_bytes[GGUF_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

uint64_t gguf_load_le(const unsigned char *p, unsigned n)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

int gguf_key_cmp(const void *a, const void *b)
{
    const struct gguf_key *x = a, *y = b;
    int d = memcmp(x->name, y->name, x->name_len < y->name_len ? x->name_len : y->name_len);

    return d ? d : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static const struct gguf_key *find_key(const struct gguf *g, const char *key)
{
    struct gguf_key want = { .name = key, .name_len = strlen(key) };

    return g->n_keys ? bsearch(&want, g->keys, g->n_keys, sizeof *g->keys, gguf_key_cmp) : NULL;
}

static int wrong_type(const struct gguf_key *k, const char *key, const char *wanted, struct err *e)
{
    return err_set(e, ERR_BADMSG, "key %s: expected %s, found %s", key, wanted,
                   type_names[k->type]);
}

static int64_t load_signed(const struct gguf_key *k)
{
    unsigned bits = 8u * gguf_type_bytes[k->type];

    return (int64_t)(gguf_load_le(k->value, bits / 8) << (64 - bits)) >> (64 - bits);
}

static bool is_signed(enum gguf_type t)
{
    return t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
}

static bool is_unsigned(enum gguf_type t)
{
    return t == GGUF_U8 || t == GGUF_U16 || t == GGUF_U32 || t == GGUF_U64;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *out, struct err *e)
{
    const struct gguf_key *k = find_key(g, key);

    if (!k)
        return err_set(e, ERR_NOTFOUND, "key %s is missing", key);
    if (is_unsigned(k->type)) {
        *out = gguf_load_le(k->value, gguf_type_bytes[k->type]);
        return 0;
    }
    if (!is_signed(k->type))
        return wrong_type(k, key, "an integer", e);
    if (load_signed(k) < 0)
        return err_set(e, ERR_BADMSG, "key %s is negative (%lld)", key, (long long)load_signed(k));
    *out = (uint64_t)load_signed(k);
    return 0;
}

int gguf_f64(const struct gguf *g, const char *key, double *out, struct err *e)
{
    const struct gguf_key *k = find_key(g, key);
    float f;

    if (!k)
        return err_set(e, ERR_NOTFOUND, "key %s is missing", key);
    if (k->type == GGUF_F32) {
        memcpy(&f, k->value, sizeof f);
        *out = f;
    } else if (k->type == GGUF_F64) {
        memcpy(out, k->value, sizeof *out);
    } else if (is_signed(k->type)) {
        *out = (double)load_signed(k);
    } else if (is_unsigned(k->type)) {
        *out = (double)gguf_load_le(k->value, gguf_type_bytes[k->type]);
    } else {
        return wrong_type(k, key, "a number", e);
    }
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_key *k = find_key(g, key);

    if (!k)
        return err_set(e, ERR_NOTFOUND, "key %s is missing", key);
    if (k->type != GGUF_BOOL)
        return wrong_type(k, key, "a bool", e);
    *out = k->value[0] != 0;
    return 0;
}

int gguf_string(const struct gguf *g, const char *key, const char **s, size_t *n, struct err *e)
{
    const struct gguf_key *k = find_key(g, key);

    if (!k)
        return err_set(e, ERR_NOTFOUND, "key %s is missing", key);
    if (k->type != GGUF_STRING)
        return wrong_type(k, key, "a string", e);
    *n = (size_t)gguf_load_le(k->value, 8);
    *s = (const char *)k->value + 8;
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, enum gguf_type type, struct gguf_array *out,
               struct err *e)
{
    const struct gguf_key *k = find_key(g, key);
    enum gguf_type found;

    if (!k)
        return err_set(e, ERR_NOTFOUND, "key %s is missing", key);
    if (k->type != GGUF_ARRAY)
        return wrong_type(k, key, "an array", e);
    found = (enum gguf_type)gguf_load_le(k->value, 4);
    if (found != type)
        return err_set(e, ERR_BADMSG, "key %s: expected an array of %s, found one of %s", key,
                       type_names[type], type_names[found]);
    out->type = type;
    out->n = gguf_load_le(k->value + 4, 8);
    out->data = k->value + 12;
    return 0;
}

const char *gguf_next_string(const unsigned char **p, size_t *n)
{
    const char *s = (const char *)*p + 8;

    *n = (size_t)gguf_load_le(*p, 8);
    *p += 8 + *n;
    return s;
}
