#include "gemm_onednn.h"

#include <stddef.h>

#if defined(HAVE_DNNL)
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t matmul;
    dnnl_memory_t x, w, y;
};

void onednn_destroy(struct onednn *d)
{
    if (!d)
        return;
    dnnl_memory_destroy(d->x);
    dnnl_memory_destroy(d->w);
    dnnl_memory_destroy(d->y);
    dnnl_primitive_destroy(d->matmul);
    dnnl_primitive_desc_destroy(d->desc);
    dnnl_primitive_attr_destroy(d->attr);
    dnnl_stream_destroy(d->stream);
    dnnl_engine_destroy(d->engine);
    free(d);
}

/* The product, with weights of a layout of its own choice. */
static int make_matmul(struct onednn *d, const float *scale, int64_t n, int64_t rows, int64_t cols)
{
    const dnnl_dims_t dx = { n, cols }, dw = { cols, rows }, dy = { n, rows };
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t op;

    return dnnl_memory_desc_init_by_tag(&x, 2, dx, dnnl_s8, dnnl_ab) != dnnl_success ||
           dnnl_memory_desc_init_by_tag(&w, 2, dw, dnnl_s8, dnnl_format_tag_any) != dnnl_success ||
           dnnl_memory_desc_init_by_tag(&y, 2, dy, dnnl_f32, dnnl_ab) != dnnl_success ||
           dnnl_matmul_desc_init(&op, &x, &w, NULL, &y) != dnnl_success ||
           dnnl_primitive_attr_create(&d->attr) != dnnl_success ||
           dnnl_primitive_attr_set_output_scales(d->attr, rows, 1 << 1, scale) != dnnl_success ||
           dnnl_primitive_desc_create(&d->desc, &op, d->attr, d->engine, NULL) != dnnl_success ||
           dnnl_primitive_create(&d->matmul, d->desc) != dnnl_success;
}

/* Weights from rows one after the other to the layout of the product. */
static int put_weights(struct onednn *d, const int8_t *w, int64_t rows, int64_t cols)
{
    const dnnl_memory_desc_t *to = dnnl_primitive_desc_query_md(d->desc, dnnl_query_weights_md, 0);
    const dnnl_dims_t dims = { cols, rows };
    dnnl_memory_desc_t from;
    dnnl_memory_t src = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t reorder = NULL;
    void *data;
    int failed;

    memcpy(&data, &w, sizeof data);
    failed = dnnl_memory_desc_init_by_tag(&from, 2, dims, dnnl_s8, dnnl_ba) != dnnl_success ||
             dnnl_memory_create(&src, &from, d->engine, data) != dnnl_success ||
             dnnl_memory_create(&d->w, to, d->engine, DNNL_MEMORY_ALLOCATE) != dnnl_success ||
             dnnl_reorder_primitive_desc_create(&desc, &from, d->engine, to, d->engine, NULL) !=
                 dnnl_success ||
             dnnl_primitive_create(&reorder, desc) != dnnl_success;
    if (!failed) {
        const dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, src }, { DNNL_ARG_TO, d->w } };

        failed = dnnl_primitive_execute(reorder, d->stream, 2, args) != dnnl_success ||
                 dnnl_stream_wait(d->stream) != dnnl_success;
    }
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(src);
    return failed;
}

static int bind_memory(struct onednn *d, const int8_t *x, float *y)
{
    void *data;

    memcpy(&data, &x, sizeof data);
    return dnnl_memory_create(&d->x, dnnl_primitive_desc_query_md(d->desc, dnnl_query_src_md, 0),
                              d->engine, data) != dnnl_success ||
           dnnl_memory_create(&d->y, dnnl_primitive_desc_query_md(d->desc, dnnl_query_dst_md, 0),
                              d->engine, y) != dnnl_success;
}

struct onednn *onednn_create(const int8_t *w, const float *scale, uint32_t rows, uint32_t cols,
                             const int8_t *x, float *y, uint32_t n)
{
    struct onednn *d = calloc(1, sizeof *d);

    if (!d)
        return NULL;
    if (dnnl_engine_create(&d->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags) != dnnl_success ||
        make_matmul(d, scale, n, rows, cols) || put_weights(d, w, rows, cols) ||
        bind_memory(d, x, y)) {
        onednn_destroy(d);
        return NULL;
    }
    return d;
}

void onednn_run(struct onednn *d)
{
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, d->x },
                                     { DNNL_ARG_WEIGHTS, d->w },
                                     { DNNL_ARG_DST, d->y } };

    dnnl_primitive_execute(d->matmul, d->stream, 3, args);
    dnnl_stream_wait(d->stream);
}

void onednn_limit(const char *isa)
{
    static const struct {
        const char *isa;
        dnnl_cpu_isa_t limit;
    } limits[] = {
        { "avx512+vnni", dnnl_cpu_isa_avx512_core_vnni },
        { "avx512", dnnl_cpu_isa_avx512_core },
        { "avx2+vnni", dnnl_cpu_isa_avx2_vnni },
        { "avx2", dnnl_cpu_isa_avx2 },
    };

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (strncmp(limits[i].isa, isa, strlen(limits[i].isa)) == 0) {
            dnnl_set_max_cpu_isa(limits[i].limit);
            return;
        }
}

const char *onednn_name(void)
{
    static char name[32];
    const dnnl_version_t *v = dnnl_version();

    snprintf(name, sizeof name, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return name;
}

#else
struct onednn *onednn_create(const int8_t *w, const float *scale, uint32_t rows, uint32_t cols,
                             const int8_t *x, float *y, uint32_t n)
{
    (void)w, (void)scale, (void)rows, (void)cols, (void)x, (void)y, (void)n;
    return NULL;
}

void onednn_run(struct onednn *d)
{
    (void)d;
}

void onednn_destroy(struct onednn *d)
{
    (void)d;
}

void onednn_limit(const char *isa)
{
    (void)isa;
}

const char *onednn_name(void)
{
    return "oneDNN (not built in: libdnnl-dev, version 2, was not there)";
}
#endif
