/* The kernel table: every arithmetic operation of a forward pass, on buffers that the backend
 * allocated. This is the device seam: code above it never touches the numbers of an activation, a
 * weight or a KV block itself. On the CPU a buffer is plain memory and sync does nothing; another
 * device is another folder under kernel/ that fills the same table.
 *
 * ## Teams
 *
 * run(k, fn, arg) calls fn(arg) on the calling thread and on those other threads of the team that
 * come in time (on a device: once). The operations marked [team] are collective: inside run() every
 * thread calls them with the same arguments in the same order; each does what items of it are left,
 * and the call returns when the result is complete, even if other threads have not come yet. So
 * between two of them fn may not read a buffer: another thread may be further on already. Outside
 * run() a [team] operation works too and does everything on the calling thread. One run() spans a
 * whole step, so a step wakes the team once and not three hundred times. One run() at a time.
 *
 * ## Order of summation (batch invariance)
 *
 * A result row depends only on its own inputs: not on the other rows of the call, not on how rows
 * are split over calls or threads, and for attention not on chunk borders or on the block size.
 * Each output element is summed in one fixed order, the same in the one-row (decode) and the
 * many-row (prefill) code of one ISA:
 * - linear: k ascending, in blocks of 32 where the operands are int8 (exact int32 inside a block,
 *   then one float fused multiply-add a block);
 * - attend: q.k over dim ascending; keys in tiles of KV_TILE absolute positions counted from 0,
 *   softmax rescaled tile by tile, p.v over positions ascending; every KV_PIECE positions are
 *   summed on their own, and the pieces added in order.
 * Different ISAs may round differently.
 *
 * ## Shapes
 *
 * Matrices are row-major [rows][cols]; "ld" is the distance between rows in elements. Activations
 * are float32 [tokens][cols]. uint32_t counts, size_t bytes. Pointers to float given to [team]
 * operations come from alloc() and are 64-byte aligned; cols of activations are multiples of 32
 * (the packer pads a matrix whose cols are not, model code need not care for heads and hidden
 * sizes: see k_pad). */
#ifndef SLUICE_KERNEL_KERNEL_H
#define SLUICE_KERNEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* How numbers are stored in a checkpoint or a KV cache. Values are our own, not GGUF's. */
enum k_type {
    K_F32,
    K_F16,
    K_BF16,
    K_Q8_0,
    K_Q4_0,
    K_Q4_1,
    K_Q5_0,
    K_Q5_1,
    K_Q4_K,
    K_Q5_K,
    K_Q6_K,
    K_TYPES
};

/* Elements per storage block and bytes per storage block: {32, 20} for Q4_1, {1, 4} for F32. */
struct k_type_info {
    const char *name;
    uint32_t block;
    uint32_t bytes;
};
extern const struct k_type_info k_type_info[K_TYPES];

/* Bytes of n elements (n a multiple of the type's block). */
size_t k_type_bytes(enum k_type type, uint64_t n);

/* The reference dequantizer: n elements (a multiple of the block) at src to float. Exact: one
 * rounding of d*q + m where the format has one. Also what tests and loaders trust. */
void k_dequant(enum k_type type, float *dst, const void *src, uint64_t n);

float k_half_to_float(uint16_t h);
uint16_t k_float_to_half(float f); /* nearest even */
float k_bf16_to_float(uint16_t b);
uint16_t k_float_to_bf16(float f); /* nearest even */

/* How a matrix multiplies. */
enum k_math {
    K_MATH_FLOAT, /* float32 activations, weights dequantized exactly (--dtype float32) */
    K_MATH_FAST,  /* int8 activations in blocks of 32 where the weights are quantized */
};

/* Most rows of activations that one call may carry. */
#define K_MAX_TOKENS 16384
/* Attention's tile and piece of keys; block sizes of the KV pool are multiples of KV_GROUP. */
#define KV_TILE        64
#define KV_PIECE       512
#define KV_GROUP       16
#define K_MAX_HEAD_DIM 256

/* A packed weight matrix (opaque): rows = outputs, cols = inputs, in the backend's own layout,
 * quantized weights still in their quantized width. */
struct k_matrix;

/* One source of a packed matrix: rows of one type, `stride` bytes apart in the checkpoint. Several
 * parts with equal cols may be packed as one matrix (q, k and v; gate and up): their outputs stand
 * side by side in the result. row_map, when not NULL, says which source row becomes row i. */
struct k_part {
    enum k_type type;
    uint32_t rows;
    const void *data;
    size_t stride;
    const uint32_t *row_map;
};

/* Activations in the form(s) that linear() takes: float rows, or int8 in blocks of 32 with a scale
 * and a sum a block, or both. Made once, used by every matrix that reads the same input. */
struct k_act;
enum k_form { K_FORM_F32 = 1, K_FORM_Q8 = 2 }; /* bits */

/* The K and V planes of one layer in a block pool (kv/layout.h says where they stand):
 *   k: [block][kv_head][token / KV_GROUP][dim][KV_GROUP]   (keys transposed in groups of 16 tokens)
 *   v: [block][kv_head][token][dim]
 * so that a head range of a block is one run of bytes, and so is a whole block. */
struct k_kv {
    void *k;
    void *v;
    enum k_type type; /* K_F32 or K_F16 */
    uint32_t block_tokens;
    uint32_t kv_heads;
    uint32_t head_dim;
};

/* A run of consecutive positions of one sequence inside a batch. */
struct k_seq {
    uint32_t row;           /* first row of the batch */
    uint32_t n;             /* rows */
    uint32_t pos;           /* position of the first row; keys 0 .. pos+n-1 are in the blocks */
    const uint32_t *blocks; /* block ids, in order of position */
};

/* Rotary embedding: cos and sin [max_pos][dim/2] float32 from a float64 table. Pairs (i, i+dim/2)
 * as HuggingFace has them, or (2i, 2i+1). */
enum k_rope_style { K_ROPE_HALVES, K_ROPE_PAIRS };
struct k_rope {
    const float *cos, *sin;
    uint32_t dim; /* rotated dims of each head, the first of it */
    uint32_t max_pos;
    enum k_rope_style style;
};

/* Sampling of one row. Neutral values switch a step off. Order, as in vLLM: logit bias and allowed
 * ids, min_tokens mask (banned ids), penalties, temperature, top-k, top-p, min-p, draw. */
struct k_count {
    int32_t id;
    uint32_t n_out; /* times in the output so far */
    bool in_prompt;
};
struct k_bias {
    int32_t id;
    float add; /* -INFINITY bans the id */
};
struct k_sample {
    float temperature;                     /* 0: greedy (argmax, lowest id wins a tie) */
    float top_p, min_p;                    /* 1, 0 */
    uint32_t top_k;                        /* 0: off */
    float presence, frequency, repetition; /* 0, 0, 1 */
    const struct k_count *counts;          /* one an id that occurred; NULL when no penalty is on */
    uint32_t n_counts;
    const struct k_bias *bias;
    uint32_t n_bias;
    const int32_t *allowed; /* NULL: all */
    uint32_t n_allowed;
    double u;       /* uniform in [0, 1) for the draw */
    int32_t n_top;  /* log-probabilities wanted: -1 none, 0 the chosen one, n the top n too */
    int32_t forced; /* >= 0: do not choose; report this id's log-probability and rank */
    const int32_t *want_ids; /* further ids whose log-probability is reported (logprob_token_ids) */
    uint32_t n_want;
    float *want_out; /* [n_want], written by sample() */
};
#define K_MAX_TOP 64
struct k_choice {
    int32_t id;
    float
        logprob; /* of the raw distribution (before penalties and temperature); NaN if n_top < 0 */
    uint32_t rank; /* 1 = most likely in the raw distribution */
    uint32_t n_top;
    int32_t top_id[K_MAX_TOP]; /* by falling raw logit, lower id first on a tie */
    float top_logprob[K_MAX_TOP];
};

struct kernels {
    const char *isa;    /* "portable", "avx2", "avx512" */
    const char *detail; /* for the log: "avx512f+vnni+bf16" */
    uint32_t threads;
    bool host_memory; /* buffers may be read and written by the host and by links */
    void *self;       /* the backend's own state */

    /* memory: zeroed, 64-byte aligned; NULL without memory */
    void *(*alloc)(const struct kernels *k, size_t bytes);
    void (*free)(const struct kernels *k, void *p, size_t bytes);
    void (*copy)(const struct kernels *k, void *dst, const void *src, size_t bytes);
    void (*sync)(const struct kernels *k);
    void (*run)(const struct kernels *k, void (*fn)(void *arg), void *arg);

    /* weights; pack reads each part once (front to back) and may be called outside run() only.
     * cols is a multiple of the block of each part's type. ERR_UNSUPPORTED, ERR_NOMEM. */
    int (*pack)(const struct kernels *k, struct k_matrix **out, const struct k_part *parts,
                uint32_t n_parts, uint32_t cols, enum k_math math, struct err *e);
    void (*unpack_free)(const struct kernels *k, struct k_matrix *m);
    uint32_t (*matrix_form)(const struct k_matrix *m); /* the k_form bits that linear() will read */
    size_t (*matrix_bytes)(const struct k_matrix *m);

    /* activations: room for max_tokens x max_cols in the given forms */
    int (*act_create)(const struct kernels *k, struct k_act **out, uint32_t max_tokens,
                      uint32_t max_cols, uint32_t forms);
    void (*act_destroy)(const struct kernels *k, struct k_act *a);

    /* [team] x is float [n][cols], rows ldx apart; a holds the result in every form it has room for */
    void (*act_load)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     uint32_t n, uint32_t cols);
    /* [team] a = rmsnorm(x) * gain; sum of squares in float32 or better */
    void (*act_norm)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     const float *gain, uint32_t n, uint32_t cols, float eps);
    /* [team] a[i][j] = silu(x[i][j]) * x[i][cols + j]; rows of x are ldx apart */
    void (*act_swiglu)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       uint32_t n, uint32_t cols);
    /* The float rows of a, rows cols apart; NULL if it has no K_FORM_F32. For tests and probes. */
    const float *(*act_floats)(const struct k_act *a);

    /* [team] y[i][j] (= or +=) sum_k a[i][k] * w[j][k], i < n */
    void (*linear)(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                   const struct k_matrix *w, uint32_t n, bool accumulate);
    /* [team] y[i] = row ids[i] of the table (dequantized exactly) */
    void (*embed)(const struct kernels *k, float *y, size_t ldy, const struct k_matrix *table,
                  const int32_t *ids, uint32_t n);
    /* [team] y[i] = x[rows[i]]: gathers rows */
    void (*gather)(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                   const uint32_t *rows, uint32_t n, uint32_t cols);
    /* [team] rotates heads [n][heads][head_dim] in place; row i is at position pos[i] */
    void (*rope)(const struct kernels *k, float *x, size_t ldx, uint32_t n, uint32_t heads,
                 uint32_t head_dim, const uint32_t *pos, const struct k_rope *rope);
    /* [team] stores k and v rows [n][kv_heads][head_dim] (ld apart) of the sequences into their
     * blocks, rounding to the cache's type */
    void (*kv_write)(const struct kernels *k, const struct k_kv *kv, const float *key,
                     const float *value, size_t ld, const struct k_seq *seqs, uint32_t n_seqs);
    /* [team] causal attention of every row over keys 0 .. its own position.
     * out, q: [rows][heads][head_dim], ldo and ldq apart; heads is a multiple of kv_heads */
    void (*attend)(const struct kernels *k, float *out, size_t ldo, const float *q, size_t ldq,
                   uint32_t heads, float scale, const struct k_kv *kv, const struct k_seq *seqs,
                   uint32_t n_seqs);
    /* [team] chooses from each row of logits [n][vocab] (ld apart); logits are destroyed */
    void (*sample)(const struct kernels *k, struct k_choice *out, float *logits, size_t ld,
                   uint32_t vocab, const struct k_sample *rows, uint32_t n);
};

struct k_options {
    const char *isa;    /* NULL: SLUICE_ISA, else the best that the CPU has */
    uint32_t threads;   /* 0: OMP_NUM_THREADS, else the CPUs that this process may use */
    uint32_t max_vocab; /* 0: 262144; sizes the sampler's scratch */
};

/* Fills the table with portable C, then overwrites with better (CPU flags asked once).
 * ERR_UNSUPPORTED with a sentence if the ISA is unknown or the CPU lacks it; ERR_NOMEM.
 * *out is destroyed with kernels_close, after everything that it made. */
int kernels_open(struct kernels **out, const struct k_options *opt, struct err *e);
void kernels_close(struct kernels *k); /* NULL is fine */

#endif
