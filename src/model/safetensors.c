#include "model/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct safetensors {
    json_t *header; /* owns the names */
    size_t n;
    struct tensor *tensors;
};

static const struct dtype {
    const char *name;
    uint32_t bytes;
    enum k_type type;
} dtypes[] = {
    { "F32", 4, K_F32 },         { "BF16", 2, K_BF16 },     { "F16", 2, K_F16 },
    { "F64", 8, K_TYPES },       { "I64", 8, K_TYPES },     { "I32", 4, K_TYPES },
    { "I16", 2, K_TYPES },       { "I8", 1, K_I8 },         { "U64", 8, K_TYPES },
    { "U32", 4, K_TYPES },       { "U16", 2, K_TYPES },     { "U8", 1, K_TYPES },
    { "F8_E4M3", 1, K_F8_E4M3 }, { "F8_E5M2", 1, K_TYPES }, { "F8_E8M0", 1, K_TYPES },
    { "BOOL", 1, K_TYPES },
};

static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

static int tensor_cmp(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* A non-negative integer of the header. */
static bool get_count(const json_t *j, uint64_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

static int read_shape(struct tensor *t, const json_t *shape, uint64_t *elements, struct err *e)
{
    *elements = 1;
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_MAX_DIMS)
        return err_set(e, ERR_BADMSG, "tensor %s: \"shape\" must be an array of at most %d sizes",
                       t->name, TENSOR_MAX_DIMS);
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!get_count(json_array_get(shape, i), &t->shape[i]))
            return err_set(e, ERR_BADMSG, "tensor %s: size %u of its shape is no count", t->name,
                           i);
        if (__builtin_mul_overflow(*elements, t->shape[i], elements))
            return err_set(e, ERR_BADMSG, "tensor %s: its shape is impossibly large", t->name);
    }
    return 0;
}

/* Where the bytes stand: data_offsets counts from the end of the header. */
static int read_offsets(struct tensor *t, const json_t *offsets, const unsigned char *data,
                        uint64_t data_len, uint64_t header_end, struct err *e)
{
    uint64_t from, to;

    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !get_count(json_array_get(offsets, 0), &from) ||
        !get_count(json_array_get(offsets, 1), &to) || from > to)
        return err_set(e, ERR_BADMSG, "tensor %s: \"data_offsets\" must be [from, to], from <= to",
                       t->name);
    if (to > data_len)
        return err_set(e, ERR_BADMSG,
                       "tensor %s: its bytes %llu to %llu end behind the file's %llu (truncated?)",
                       t->name, (unsigned long long)(header_end + from),
                       (unsigned long long)header_end + (unsigned long long)to,
                       (unsigned long long)(header_end + data_len));
    t->data = data + from;
    t->bytes = to - from;
    return 0;
}

static int read_tensor(struct tensor *t, const json_t *j, const unsigned char *data,
                       uint64_t data_len, uint64_t header_end, struct err *e)
{
    const char *name = json_string_value(json_object_get(j, "dtype"));
    char text[TENSOR_SHAPE_TEXT];
    const struct dtype *d;
    uint64_t elements, want;
    int st;

    if (!name)
        return err_set(e, ERR_BADMSG, "tensor %s: no \"dtype\"", t->name);
    if (!(d = find_dtype(name)))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: dtype \"%.32s\" is not known", t->name,
                       name);
    t->dtype = d->name;
    t->type = d->type;
    if ((st = read_shape(t, json_object_get(j, "shape"), &elements, e)) < 0 ||
        (st = read_offsets(t, json_object_get(j, "data_offsets"), data, data_len, header_end, e)) <
            0)
        return st;
    if (__builtin_mul_overflow(elements, (uint64_t)d->bytes, &want) || want != t->bytes)
        return err_set(e, ERR_BADMSG,
                       "tensor %s at offset %llu: %s %s takes %llu bytes, found %llu", t->name,
                       (unsigned long long)(header_end + (uint64_t)(t->data - data)), t->dtype,
                       tensor_shape_text(text, t->shape, t->n_dims),
                       (unsigned long long)(elements * d->bytes), (unsigned long long)t->bytes);
    return 0;
}

static int read_header(struct safetensors *s, const unsigned char *data, size_t len,
                       uint64_t *header_end, struct err *e)
{
    json_error_t je;
    uint64_t n = 0;

    if (len < 8)
        return err_set(e, ERR_BADMSG,
                       "offset 0: a safetensors file has at least 8 bytes, found %zu", len);
    for (unsigned i = 0; i < 8; i++)
        n |= (uint64_t)data[i] << (8 * i);
    if (n > SAFETENSORS_MAX_HEADER)
        return err_set(e, ERR_BADMSG,
                       "offset 0: a header of %llu bytes (at most %u): no safetensors",
                       (unsigned long long)n, SAFETENSORS_MAX_HEADER);
    if (n > len - 8)
        return err_set(e, ERR_BADMSG,
                       "offset 8: a header of %llu bytes, but the file ends after %zu "
                       "(truncated?)",
                       (unsigned long long)n, len - 8);
    s->header = json_loadb((const char *)data + 8, (size_t)n, JSON_REJECT_DUPLICATES, &je);
    if (!s->header)
        return err_set(e, ERR_BADMSG, "offset %llu: the header is not JSON: %s",
                       8ull + (unsigned long long)(je.position > 0 ? je.position : 0), je.text);
    if (!json_is_object(s->header))
        return err_set(e, ERR_BADMSG, "offset 8: the header is not a JSON object");
    *header_end = 8 + n;
    return 0;
}

static int read_tensors(struct safetensors *s, const unsigned char *data, size_t len,
                        uint64_t header_end, struct err *e)
{
    const char *name;
    json_t *j;
    int st;

    s->tensors = calloc(json_object_size(s->header) + 1, sizeof *s->tensors);
    if (!s->tensors)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", json_object_size(s->header));
    json_object_foreach(s->header, name, j)
    {
        struct tensor *t = &s->tensors[s->n];

        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (strlen(name) >= TENSOR_MAX_NAME)
            return err_set(e, ERR_BADMSG, "tensor %.64s...: its name is longer than %d bytes", name,
                           TENSOR_MAX_NAME - 1);
        t->name = name;
        st = read_tensor(t, j, data + header_end, len - header_end, header_end, e);
        if (st < 0)
            return st;
        s->n++;
    }
    qsort(s->tensors, s->n, sizeof *s->tensors, tensor_cmp);
    return 0;
}

int safetensors_parse(struct safetensors **out, const void *data, size_t len, struct err *e)
{
    struct safetensors *s = calloc(1, sizeof *s);
    uint64_t header_end;
    int st;

    if (!s)
        return err_set(e, ERR_NOMEM, "no memory");
    if ((st = read_header(s, data, len, &header_end, e)) < 0 ||
        (st = read_tensors(s, data, len, header_end, e)) < 0) {
        safetensors_free(s);
        return st;
    }
    *out = s;
    return 0;
}

void safetensors_free(struct safetensors *s)
{
    if (!s)
        return;
    free(s->tensors);
    json_decref(s->header);
    free(s);
}

const struct tensor *safetensors_tensors(const struct safetensors *s, size_t *n)
{
    *n = s->n;
    return s->tensors;
}
