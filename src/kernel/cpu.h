/* The CPU backend inside: what an ISA has to bring. Everything here works on one thread; ops.c
 * shares the work out and ends each operation with the barrier. The table is filled with portable C
 * and then overwritten by what the ISA does better. */
#ifndef SLUICE_KERNEL_CPU_H
#define SLUICE_KERNEL_CPU_H

#include "kernel/arena.h"
#include "kernel/matrix.h"
#include "kernel/team.h"

/* Panels in a unit of linear(): unpacked together, and read by every row. */
#define K_UNIT 2
/* Queries (rows x heads of one kv head) that share a converted tile of keys and values. */
#define K_ATT_QUERIES 96
/* Panels are never wider than this. */
#define K_MAX_PANEL 16

struct linear_job {
    float *y;
    size_t ldy;
    const struct k_act *a;
    const struct k_matrix *w;
    bool accumulate;
    const void *next; /* weights that this thread is likely to read after these; or NULL */
};

struct attend_job {
    float *out;
    const float *q;
    size_t ldo, ldq;
    uint32_t heads;
    float scale;
    const struct k_kv *kv;
};

/* Softmax sums of queries over some keys: the maximum m of the scores, the sum l of exp(score - m)
 * and that of the values times it, o [query][dim]. */
struct attend_sums {
    _Alignas(64) float o[K_ATT_QUERIES * K_MAX_HEAD_DIM];
    float m[K_ATT_QUERIES], l[K_ATT_QUERIES];
};

/* One thread's scratch for attend, by head_dim up to K_MAX_HEAD_DIM. */
struct attend_scratch {
    _Alignas(64) float k[KV_TILE * K_MAX_HEAD_DIM]; /* [token / 16][dim][16] */
    float v[KV_TILE * K_MAX_HEAD_DIM];              /* [token][dim] */
    float p[8 * KV_TILE];
    struct attend_sums piece, all; /* of one piece of the keys, and of those before it */
};

/* Up to K_ATT_QUERIES queries of one kv head: [from, to), counted from row r0 of the sequence on;
 * a query is (row, head of the group). */
struct attend_slab {
    const struct attend_job *job;
    const struct k_seq *seq;
    uint32_t kv_head, group, dim;
    uint32_t r0, from, to;
    struct attend_scratch *s;
};

/* Keys that query i sees, counted from position 0. */
static inline uint32_t attend_sees(const struct attend_slab *b, uint32_t i)
{
    return b->seq->pos + b->r0 + i / b->group + 1;
}

/* Where query i stands in q or out, whose rows are ld apart. */
static inline size_t attend_at(const struct attend_slab *b, uint32_t i, size_t ld)
{
    return (size_t)(b->seq->row + b->r0 + i / b->group) * ld +
           (size_t)(b->kv_head * b->group + i % b->group) * b->dim;
}

struct sample_scratch; /* sample.c */
struct latent_slab;    /* latent.h */
struct latent_scratch;

struct cpu_impl {
    uint32_t panel;
    /* Packing: dword i of all lanes side by side, for the n dwords of the rows (one a lane, `panel` of
     * them), each exclusive-or flip. Of 4 bytes as they are; of a unit of 2 or 1 in runs of lanes, one
     * for each half or byte of the dword. */
    void (*turn)(uint8_t *q, const uint8_t *const *row, uint32_t lanes, uint32_t n, uint32_t unit,
                 uint32_t flip);
    /* One row of activations to int8, with scale and sums as in struct k_act; cols is a multiple of
     * 32. */
    void (*quant_row)(int8_t *q, float *scale, int32_t *isum, float *fsum, const float *x,
                      uint32_t cols);
    /* True if linear() multiplies bfloat16 weights that stand in pairs by bfloat16 activations. */
    bool bf16_pairs;
    /* One row to bfloat16, nearest even, and as floats, both filled up to bf16_stride(cols). */
    void (*bf16_row)(uint16_t *y, float *wide, const float *x, uint32_t cols);
    uint32_t i8_bytes; /* of a number of struct k_act_i8 */
    /* One row to int8 as K_FORM_I8 and K_FORM_I8S have it, filled up with zeros to i8_stride(cols). */
    void (*i8_row)(void *q, float *scale, int32_t *sum, const float *x, uint32_t cols);
    void (*i8_static_row)(void *q, int32_t *sum, const float *x, uint32_t cols, float scale,
                          float offset);
    void (*norm_row)(float *y, const float *x, const float *gain, uint32_t cols, float eps);
    void (*swiglu_row)(float *y, const float *x, uint32_t cols);
    /* Panels [p0, p1) of a segment times rows [r0, r1) of the activations. */
    void (*linear)(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                   uint32_t r0, uint32_t r1, void *scratch);
    void (*rope_head)(float *x, const float *cos, const float *sin, const struct k_rope *rope);
    /* Stores n <= 16 tokens that share a group of 16 positions, the first in lane `lane`; k and v
     * point at the group's keys and at the first token's values. */
    void (*kv_put)(const struct k_kv *kv, void *k, void *v, uint32_t lane, uint32_t n,
                   const float *key, const float *value, size_t ld);
    /* Attention is done piece by piece of the keys: sums into s->piece, */
    void (*attend_sum)(const struct attend_slab *b, uint32_t piece);
    /* added to s->all for the queries that see some of the piece (the first one sets s->all), */
    void (*attend_add)(const struct attend_slab *b, uint32_t piece);
    /* and at the end divided into the output. */
    void (*attend_finish)(const struct attend_slab *b);
    /* n numbers (a multiple of 16) to the cache's type, and back. */
    void (*row_store)(enum k_type type, void *to, const float *x, uint32_t n);
    void (*row_load)(enum k_type type, float *to, const void *from, uint32_t n);
    /* Latent attention in the same way, after its queries went to the scratch (latent.h). */
    void (*latent_queries)(const struct latent_slab *b);
    void (*latent_sum)(const struct latent_slab *b, uint32_t piece);
    void (*latent_add)(const struct latent_slab *b, uint32_t piece);
    void (*latent_finish)(const struct latent_slab *b);
};

void cpu_fill_ref(struct cpu_impl *f);
void cpu_fill_avx2(struct cpu_impl *f, uint32_t flags);
void cpu_fill_avx512(struct cpu_impl *f, uint32_t flags);

/* What cpuid says and the operating system saves (x86/cpuid.c). */
enum cpu_flag {
    CPU_AVX2 = 1,   /* with FMA; every CPU that has both has F16C too */
    CPU_AVX512 = 2, /* F, BW, VL, DQ */
    CPU_AVX512_VNNI = 4,
    CPU_AVX_VNNI = 8,     /* on vectors of 256 bits, without AVX-512 */
    CPU_AVX512_BF16 = 16, /* with AVX512_VNNI; no CPU has it without */
    CPU_BF16_HALF = 32,   /* multiplies bfloat16 at half the rate of float32 */
};
uint32_t cpu_flags(void);

/* The backend's own state behind struct kernels. */
struct cpu {
    struct kernels table;
    struct team team;
    struct cpu_impl impl;
    uint32_t max_vocab;
    struct attend_scratch *attend; /* one a thread */
    struct latent_scratch *latent; /* the same; backed by memory only where it is used */
    float *parts;                  /* [ATTEND_PARTS]; backed by memory only where it is used */
    struct sample_scratch *sample;
    struct k_arena arena; /* packed weights */
    char detail[64];
};

static inline struct cpu *cpu_of(const struct kernels *k)
{
    return k->self;
}

/* Pieces that n things are cut into: more than one a thread, so that a thread that comes late finds
 * the rest done by others. */
#define PIECES 2
static inline uint32_t pieces(const struct kernels *k, uint32_t n)
{
    uint32_t most = PIECES * k->threads;

    return n < most ? n : most;
}

/* Piece i of n things is [*from, return value). */
static inline uint32_t piece(uint32_t n, uint32_t n_pieces, uint32_t i, uint32_t *from)
{
    *from = (uint32_t)((uint64_t)n * i / n_pieces);
    return (uint32_t)((uint64_t)n * (i + 1) / n_pieces);
}

/* Units of K_UNIT panels, counted over all segments. */
uint32_t matrix_units(const struct k_matrix *w);
/* Units [from, to) times rows [r0, r1) of the activations. */
void linear_units(const struct cpu_impl *f, const struct linear_job *job, uint32_t from,
                  uint32_t to, uint32_t r0, uint32_t r1, void *scratch);

/* Floats of sums that attention may be cut into; what needs more is not cut. */
#define ATTEND_PARTS (4u << 20)

/* ops.c, attend.c, sample.c: the [team] operations of the table */
void ops_fill(struct kernels *k);
void attend(const struct kernels *k, float *out, size_t ldo, const float *q, size_t ldq,
            uint32_t heads, float scale, const struct k_kv *kv, const struct k_seq *seqs,
            uint32_t n_seqs);
void sample_rows(const struct kernels *k, struct k_choice *out, float *logits, size_t ld,
                 uint32_t vocab, const struct k_sample *rows, uint32_t n);
int sample_scratch_create(struct cpu *c);
void sample_scratch_destroy(struct cpu *c);

/* The group of 16 keys (or the values) that holds position pos, for one kv head. */
static inline size_t kv_group_offset(const struct k_kv *kv, uint32_t block, uint32_t head,
                                     uint32_t in_block)
{
    return (((size_t)block * kv->kv_heads + head) * kv->block_tokens + in_block) * kv->head_dim;
}

#endif
