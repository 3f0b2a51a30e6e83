/* From a checkpoint's rows to panels, and back for embeddings. */
#include "base/status.h"
#include "kernel/cpu.h"
#include "kernel/i8.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Bytes of one dense value as packed. */
static size_t dense_size(enum k_type type)
{
    return k_type_info[type].bytes;
}

/* The byte with inputs 4 * step .. + 3 of a lane inside a block of 8-bit codes. */
static size_t code_at(uint32_t panel, uint32_t step, uint32_t lane)
{
    return ((size_t)step * panel + lane) * 4;
}

static void seg_size(struct k_seg *s, uint32_t panel, uint32_t blocks)
{
    size_t weights = (size_t)blocks * K_BLOCK * panel;

    s->fmt = k_format[s->type];
    s->panels = div_up(s->rows, panel);
    if (!s->fmt.bits) {
        s->q_bytes = weights * dense_size(s->type);
        if (s->type == K_F8_E4M3)
            s->scale_count = (size_t)div_up(blocks * K_BLOCK, K_F8_BLOCK) * panel;
        return;
    }
    s->q_bytes = weights * s->fmt.bits / 8;
    s->scale_count = (size_t)blocks * panel * (s->fmt.halves ? 2 : 1);
    s->min_count = s->fmt.has_min ? (size_t)blocks * panel : 0;
}

static size_t seg_bytes(const struct k_seg *s)
{
    return s->panels * (s->q_bytes + (s->scale_count + s->min_count) * seg_scale_size(s));
}

/* From here on a part of a matrix comes from the arena. */
#define ARENA_LEAST ((size_t)64 << 10)

static void *seg_take(const struct kernels *k, size_t bytes)
{
    return bytes < ARENA_LEAST ? k->alloc(k, bytes) : k_arena_take(&cpu_of(k)->arena, bytes);
}

static void seg_give(const struct kernels *k, void *p, size_t bytes)
{
    if (bytes < ARENA_LEAST)
        k->free(k, p, bytes);
    else
        k_arena_give(&cpu_of(k)->arena, p);
}

static int seg_alloc(const struct kernels *k, struct k_seg *s)
{
    size_t size = seg_scale_size(s);

    s->q = seg_take(k, s->panels * s->q_bytes);
    if (s->scale_count)
        s->scale = seg_take(k, s->panels * s->scale_count * size);
    if (s->min_count)
        s->min = seg_take(k, s->panels * s->min_count * size);
    if (!s->q || (s->scale_count && !s->scale) || (s->min_count && !s->min))
        return ERR_NOMEM;
    return 0;
}

static void put_scale(const struct k_seg *s, void *at, size_t i, float v)
{
    if (s->fmt.wide_scale)
        ((float *)at)[i] = v;
    else
        ((uint16_t *)at)[i] = k_float_to_half(v);
}

static float get_scale(const struct k_seg *s, const void *at, size_t i)
{
    return s->fmt.wide_scale ? ((const float *)at)[i] : k_half_to_float(((const uint16_t *)at)[i]);
}

/* The byte with the bits above the nibble of inputs 4 * step .. + 3. */
static size_t extra_at(uint32_t panel, uint32_t bits, uint32_t step, uint32_t lane)
{
    return code_at(panel, 4 + extra_plane(bits, step), lane);
}

/* Codes of one block of one lane; q was zeroed. */
static void put_codes(uint8_t *q, uint32_t bits, uint32_t panel, uint32_t lane, const uint8_t *code)
{
    for (uint32_t j = 0; j < K_BLOCK; j++) {
        uint32_t step = j / 4, c = j % 4;

        if (bits == 8) {
            q[code_at(panel, step, lane) + c] = code[j];
            continue;
        }
        q[code_at(panel, step % 4, lane) + c] |= (uint8_t)((code[j] & 15) << step / 4 * 4);
        if (bits > 4)
            q[extra_at(panel, bits, step, lane) + c] |= (uint8_t)(code[j] >>
                                                                  4 << extra_shift(bits, step));
    }
}

static void get_codes(const uint8_t *q, uint32_t bits, uint32_t panel, uint32_t lane, uint8_t *code)
{
    for (uint32_t j = 0; j < K_BLOCK; j++) {
        uint32_t step = j / 4, c = j % 4, extra;

        if (bits == 8) {
            code[j] = q[code_at(panel, step, lane) + c];
            continue;
        }
        code[j] = q[code_at(panel, step % 4, lane) + c] >> step / 4 * 4 & 15;
        if (bits > 4) {
            extra = (uint32_t)q[extra_at(panel, bits, step, lane) + c] >> extra_shift(bits, step);
            code[j] |= (uint8_t)((extra & ((1u << (bits - 4)) - 1)) << 4);
        }
    }
}

/* One block of one lane. */
static void put_block(struct k_seg *s, uint32_t panel, uint32_t p, uint32_t lane, uint32_t b,
                      const struct k_block *blk)
{
    uint8_t *q = s->q + p * s->q_bytes + (size_t)b * K_BLOCK * panel * s->fmt.bits / 8;
    size_t scales = p * s->scale_count, row = (size_t)b * panel + lane;

    put_codes(q, s->fmt.bits, panel, lane, blk->q);
    if (s->fmt.halves) {
        put_scale(s, s->scale, scales + 2 * (size_t)b * panel + lane, blk->scale[0]);
        put_scale(s, s->scale, scales + (2 * (size_t)b + 1) * panel + lane, blk->scale[1]);
    } else {
        put_scale(s, s->scale, scales + row, blk->scale[0]);
    }
    if (s->fmt.has_min)
        put_scale(s, s->min, p * s->min_count + row, blk->min);
}

static void get_block(const struct k_seg *s, uint32_t panel, uint32_t p, uint32_t lane, uint32_t b,
                      struct k_block *blk)
{
    const uint8_t *q = s->q + p * s->q_bytes + (size_t)b * K_BLOCK * panel * s->fmt.bits / 8;
    size_t scales = p * s->scale_count, row = (size_t)b * panel + lane;

    get_codes(q, s->fmt.bits, panel, lane, blk->q);
    if (s->fmt.halves) {
        blk->scale[0] = get_scale(s, s->scale, scales + 2 * (size_t)b * panel + lane);
        blk->scale[1] = get_scale(s, s->scale, scales + (2 * (size_t)b + 1) * panel + lane);
    } else {
        blk->scale[0] = blk->scale[1] = get_scale(s, s->scale, scales + row);
    }
    blk->min = s->fmt.has_min ? get_scale(s, s->min, p * s->min_count + row) : 0;
}

/* The number of input c of a lane where inputs stand in pairs. */
static size_t pair_at(uint32_t panel, uint32_t c, uint32_t lane)
{
    return 2 * ((size_t)(c / 2) * panel + lane) + c % 2;
}

static void put_dense(struct k_seg *s, uint32_t panel, uint32_t p, uint32_t lane, const void *src,
                      uint32_t cols)
{
    if (s->type == K_F32) {
        float *q = (float *)(void *)(s->q + p * s->q_bytes) + lane;

        for (uint32_t c = 0; c < cols; c++)
            memcpy(q + (size_t)c * panel, (const char *)src + 4 * (size_t)c, 4);
    } else if (s->pairs) {
        uint16_t *q = (uint16_t *)(void *)(s->q + p * s->q_bytes);

        for (uint32_t c = 0; c < cols; c++)
            memcpy(q + pair_at(panel, c, lane), (const char *)src + 2 * (size_t)c, 2);
    } else {
        uint16_t *q = (uint16_t *)(void *)(s->q + p * s->q_bytes) + lane;

        for (uint32_t c = 0; c < cols; c++)
            memcpy(q + (size_t)c * panel, (const char *)src + 2 * (size_t)c, 2);
    }
}

static float get_f8(const struct k_seg *s, uint32_t panel, uint32_t p, uint32_t lane, uint32_t c)
{
    const float *scale = (const float *)s->scale + p * s->scale_count + lane;

    return k_f8_to_float(s->q[p * s->q_bytes + (size_t)c * panel + lane]) *
           scale[(size_t)(c / K_F8_BLOCK) * panel];
}

static float get_dense(const struct k_seg *s, uint32_t panel, uint32_t p, uint32_t lane, uint32_t c)
{
    const void *q = s->q + p * s->q_bytes;
    size_t i = s->pairs ? pair_at(panel, c, lane) : (size_t)c * panel + lane;

    if (s->type == K_F8_E4M3)
        return get_f8(s, panel, p, lane, c);
    if (s->type == K_F32)
        return ((const float *)q)[i];
    if (s->type == K_F16)
        return k_half_to_float(((const uint16_t *)q)[i]);
    return k_bf16_to_float(((const uint16_t *)q)[i]);
}

static void put_f8_scales(const struct k_matrix *m, struct k_seg *s, uint32_t row,
                          const float *from)
{
    uint32_t p = row / m->panel, lane = row % m->panel;
    float *scale = (float *)s->scale + p * s->scale_count + lane;

    for (uint32_t i = 0; i < div_up(m->cols, K_F8_BLOCK); i++)
        scale[(size_t)i * m->panel] = from[i];
}

/* Row r of the checkpoint as row `row` of the segment. */
static void put_f8(const struct k_matrix *m, struct k_seg *s, uint32_t row,
                   const struct k_part *part, uint32_t r)
{
    uint32_t p = row / m->panel, lane = row % m->panel, scales = div_up(m->cols, K_F8_BLOCK);
    const uint8_t *src = (const uint8_t *)part->data + r * part->stride;
    uint8_t *q = s->q + p * s->q_bytes + lane;

    for (uint32_t c = 0; c < m->cols; c++)
        q[(size_t)c * m->panel] = src[c];
    put_f8_scales(m, s, row, part->scale + (size_t)(r / K_F8_BLOCK) * scales);
}

/* False if a block's numbers are not finite. */
static bool pack_row(const struct k_matrix *m, struct k_seg *s, uint32_t row, const void *src)
{
    uint32_t p = row / m->panel, lane = row % m->panel;
    struct k_block blk;
    bool finite = true;

    if (!s->fmt.bits) {
        put_dense(s, m->panel, p, lane, src, m->cols);
        return true;
    }
    for (uint32_t b = 0; b < m->blocks; b++) {
        k_block_decode(s->type, &blk, src, b);
        finite = finite && k_block_finite(&blk);
        put_block(s, m->panel, p, lane, b, &blk);
    }
    return finite;
}

/* Packing is shared out by panels: threads take them in order, so that the file is still read from
 * front to back. */
struct pack_job {
    const struct kernels *k;
    const struct k_matrix *m;
    const struct k_part *parts;
    uint32_t seg;              /* where the calling thread is */
    _Atomic uint64_t *corrupt; /* part << 32 | panel of a number that is not finite; NONE: none */
};
#define NONE UINT64_MAX

static uint32_t source_row(const struct k_part *part, uint32_t r)
{
    return part->row_map ? part->row_map[r] : r;
}

/* A full panel of dense rows at once. False if the rows do not end with a dword. */
static bool turn_dense(const struct pack_job *job, struct k_seg *s, const struct k_part *part,
                       uint32_t p)
{
    const struct k_matrix *m = job->m;
    uint32_t size = (uint32_t)dense_size(s->type), lanes = m->panel;
    uint32_t scales = div_up(m->cols, K_F8_BLOCK);
    const uint8_t *row[K_MAX_PANEL];

    if (m->cols * size % 4)
        return false;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        uint32_t r = p * lanes + lane;

        r = source_row(part, r);
        row[lane] = (const uint8_t *)part->data + r * part->stride;
        if (s->type == K_F8_E4M3)
            put_f8_scales(m, s, p * lanes + lane, part->scale + (size_t)(r / K_F8_BLOCK) * scales);
    }
    cpu_of(job->k)->impl.turn(s->q + p * s->q_bytes, row, lanes, m->cols * size / 4,
                              s->pairs ? 4 : size, 0);
    return true;
}

/* True if all numbers of the panel are finite. */
static bool pack_rows(const struct pack_job *job, uint32_t p)
{
    struct k_seg *s = &job->m->segs[job->seg];
    const struct k_part *part = &job->parts[job->seg];
    uint32_t from = p * job->m->panel, to = from + job->m->panel;
    bool finite = true;

    if (s->type == K_I8) {
        i8_pack_panel(job->k, job->m, s, part, p);
        return true;
    }
    if (s->fmt.bits || to > part->rows || !turn_dense(job, s, part, p))
        for (uint32_t r = from; r < to && r < part->rows; r++) {
            uint32_t src = source_row(part, r);

            if (s->type == K_F8_E4M3)
                put_f8(job->m, s, r, part, src);
            else
                finite &= pack_row(job->m, s, r, (const char *)part->data + src * part->stride);
        }
    return s->fmt.bits ? finite : k_dense_finite(s->type, s->q + p * s->q_bytes, s->q_bytes);
}

static void pack_panel(void *arg, uint32_t p, uint32_t thread)
{
    const struct pack_job *job = arg;
    const struct k_part *part = &job->parts[job->seg];
    uint32_t from = p * job->m->panel, to = from + job->m->panel;

    (void)thread;
    if (!pack_rows(job, p))
        atomic_store(job->corrupt, (uint64_t)job->seg << 32 | p);
    if (part->packed)
        part->packed(part->packed_arg, from, to < part->rows ? to : part->rows);
}

static void pack_team(void *arg)
{
    struct pack_job job = *(const struct pack_job *)arg;

    for (; job.seg < job.m->n_segs; job.seg++)
        team_items(&cpu_of(job.k)->team, job.m->segs[job.seg].panels, pack_panel, &job, sizeof job);
}

/* The first number of the row that is not finite; cols if there is none. */
static uint32_t bad_column(const struct k_part *part, uint32_t row, uint32_t cols, float *value)
{
    const struct k_type_info *t = &k_type_info[part->type];
    const char *src = (const char *)part->data + row * part->stride;
    float v[256];

    for (uint32_t c = 0; c < cols; c += t->block) {
        k_dequant(part->type, v, src + (size_t)(c / t->block) * t->bytes, t->block);
        for (uint32_t i = 0; i < t->block; i++)
            if (!isfinite(*value = v[i]))
                return c + i;
    }
    return cols;
}

static int report_corrupt(const struct k_matrix *m, const struct k_part *parts, uint64_t where,
                          struct err *e)
{
    const struct k_part *part = &parts[where >> 32];
    uint32_t from = (uint32_t)where * m->panel, col;
    float value;

    for (uint32_t r = from; r < part->rows && r < from + m->panel; r++)
        if ((col = bad_column(part, source_row(part, r), m->cols, &value)) < m->cols)
            return err_set(e, ERR_CORRUPT,
                           "tensor %s: row %u, column %u is %g: weights must be finite",
                           part->name ? part->name : "without a name", source_row(part, r), col,
                           (double)value);
    return err_set(e, ERR_CORRUPT,
                   "tensor %s: its blocks from row %u on have scales that are not finite",
                   part->name ? part->name : "without a name", from);
}

static int check_parts(const struct k_part *parts, uint32_t n_parts, uint32_t cols, struct err *e)
{
    uint64_t rows = 0;

    if (!n_parts || !cols)
        return err_set(e, ERR_UNSUPPORTED, "a matrix of %u parts and %u columns cannot be packed",
                       n_parts, cols);
    for (uint32_t i = 0; i < n_parts; i++) {
        enum k_type type = parts[i].type;

        if ((unsigned)type >= K_TYPES || cols % k_type_info[type].block)
            return err_set(e, ERR_UNSUPPORTED,
                           "rows of %u columns of type %s cannot be packed: its blocks are of %u",
                           cols, (unsigned)type < K_TYPES ? k_type_info[type].name : "(unknown)",
                           (unsigned)type < K_TYPES ? k_type_info[type].block : 0);
        if (type == K_F8_E4M3 && !parts[i].scale)
            return err_set(e, ERR_UNSUPPORTED, "FP8 weights of %u rows have no scales",
                           parts[i].rows);
        rows += parts[i].rows;
    }
    if (rows == 0 || rows > UINT32_MAX / 2)
        return err_set(e, ERR_UNSUPPORTED, "a matrix of %llu rows cannot be packed",
                       (unsigned long long)rows);
    return i8_check(parts, n_parts, cols, e);
}

static void seg_layout(const struct kernels *k, struct k_matrix *m, struct k_seg *s,
                       const struct k_part *part)
{
    s->type = part->type;
    s->row0 = m->rows;
    s->rows = part->rows;
    s->pairs = s->type == K_BF16 && m->math == K_MATH_FAST && cpu_of(k)->impl.bf16_pairs;
    seg_size(s, m->panel, m->blocks);
    if (s->type == K_I8)
        i8_layout(m, s, part);
}

size_t matrix_pack_bytes(const struct kernels *k, const struct k_part *part, uint32_t cols)
{
    struct k_matrix m = { .blocks = div_up(cols, K_BLOCK), .panel = cpu_of(k)->impl.panel };
    struct k_seg s = { 0 };

    seg_layout(k, &m, &s, part);
    return seg_bytes(&s);
}

static int matrix_layout(const struct kernels *k, struct k_matrix *m, const struct k_part *parts)
{
    for (uint32_t i = 0; i < m->n_segs; i++) {
        struct k_seg *s = &m->segs[i];

        seg_layout(k, m, s, &parts[i]);
        m->rows += s->rows;
        m->bytes += seg_bytes(s);
        if (seg_alloc(k, s) < 0)
            return ERR_NOMEM;
    }
    return 0;
}

int matrix_pack(const struct kernels *k, struct k_matrix **out, const struct k_part *parts,
                uint32_t n_parts, uint32_t cols, enum k_math math, struct err *e)
{
    struct k_matrix *m;
    _Atomic uint64_t corrupt = NONE;
    struct pack_job job = { .k = k, .parts = parts, .corrupt = &corrupt };
    int st = check_parts(parts, n_parts, cols, e);

    if (st < 0)
        return st;
    m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "out of memory for a weight matrix");
    m->cols = cols;
    m->blocks = div_up(cols, K_BLOCK);
    m->panel = cpu_of(k)->impl.panel;
    m->math = math;
    m->n_segs = n_parts;
    m->segs = calloc(n_parts, sizeof *m->segs);
    if (!m->segs || matrix_layout(k, m, parts) < 0) {
        st = err_set(e, ERR_NOMEM, "out of memory for a weight matrix of %u x %u (%zu bytes)",
                     m->rows, cols, m->bytes);
        matrix_free(k, m);
        return st;
    }
    job.m = m;
    k->run(k, pack_team, &job);
    if (corrupt != NONE) {
        st = report_corrupt(m, parts, corrupt, e);
        matrix_free(k, m);
        return st;
    }
    *out = m;
    return 0;
}

void matrix_free(const struct kernels *k, struct k_matrix *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->segs && i < m->n_segs; i++) {
        struct k_seg *s = &m->segs[i];

        seg_give(k, s->q, s->panels * s->q_bytes);
        seg_give(k, s->scale, s->panels * s->scale_count * seg_scale_size(s));
        seg_give(k, s->min, s->panels * s->min_count * seg_scale_size(s));
    }
    free(m->segs);
    free(m);
}

static uint32_t seg_form(const struct k_matrix *m, const struct k_seg *s)
{
    if (s->type == K_I8)
        return s->fixed ? K_FORM_I8S : K_FORM_I8;
    if (s->pairs)
        return K_FORM_BF16;
    return seg_is_int(m, s) ? K_FORM_Q8 : K_FORM_F32;
}

uint32_t matrix_form(const struct k_matrix *m)
{
    uint32_t form = 0;

    for (uint32_t i = 0; i < m->n_segs; i++)
        form |= seg_form(m, &m->segs[i]);
    return form;
}

size_t matrix_bytes(const struct k_matrix *m)
{
    return m->bytes;
}

const struct k_static *matrix_static(const struct k_matrix *m)
{
    return m->has_fixed ? &m->fixed : NULL;
}

void matrix_row(const struct k_matrix *m, uint32_t r, float *dst)
{
    const struct k_seg *s = m->segs;
    struct k_block blk;
    uint32_t p, lane;

    assert(r < m->rows);
    while (r >= s->row0 + s->rows)
        s++;
    p = (r - s->row0) / m->panel;
    lane = (r - s->row0) % m->panel;
    if (s->type == K_I8) {
        i8_get_row(m, s, r - s->row0, dst);
        return;
    }
    for (uint32_t c = 0; !s->fmt.bits && c < m->cols; c++)
        dst[c] = get_dense(s, m->panel, p, lane, c);
    for (uint32_t b = 0; s->fmt.bits && b < m->blocks; b++, dst += K_BLOCK) {
        get_block(s, m->panel, p, lane, b, &blk);
        for (int j = 0; j < K_BLOCK; j++)
            dst[j] = blk.scale[j / 16] * (float)(blk.q[j] - s->fmt.bias);
        for (int j = 0; s->fmt.has_min && j < K_BLOCK; j++)
            dst[j] += blk.min;
    }
}
