/* The kernel table: every arithmetic operation of a forward pass, on buffers that the backend
 * allocated. This is the device seam: code above it never touches the numbers of an activation, a
 * weight or a KV block itself. On the CPU a buffer is plain memory and sync does nothing; another
 * device is another folder under kernel/ that fills the same table.
 *
 * ## Teams
 *
 * run(k, fn, arg) calls fn(arg) on the calling thread and on those other threads of the team that
 * come in time (on a device: once). The operations marked [team] are collective: inside run() every
 * thread calls them with the same arguments in the same order; each does what items of it are left.
 * A result is complete before the next operation reads it, and at the latest when run() returns: an
 * operation may be put off until the next call, and one too small to share is done by the thread
 * that finishes the one before it. So between two of them fn may not read a buffer. Outside run() a
 * [team] operation works too and does everything at once on the calling thread. One run() spans a
 * whole step, so a step wakes the team once and not three hundred times. One run() at a time.
 *
 * ## Order of summation (batch invariance)
 *
 * A result row depends only on its own inputs: not on the other rows of the call, not on how rows
 * are split over calls or threads, and for attention not on chunk borders or on the block size.
 * Each output element is summed in one fixed order, the same in the one-row (decode) and the
 * many-row (prefill) code of one ISA:
 * - linear: k ascending, in blocks of 32 where the operands are int8 (exact int32 inside a block,
 *   then one float fused multiply-add a block); in float, 32 products to a partial sum, and those
 *   added; between bfloat16 operands (K_FORM_BF16) in pairs, of each the second product first, all
 *   into one float32 sum, numbers below its normal range being zero;
 * - linear of K_I8: exact int32 over all inputs, then (float)sum * token's scale * row's scale, or
 *   (float)(sum + bias) * deq, from left to right; the same bits on every ISA;
 * - attend: q.k over dim ascending; keys in tiles of KV_TILE absolute positions counted from 0,
 *   softmax rescaled tile by tile, p.v over positions ascending; every KV_PIECE positions are
 *   summed on their own, and the pieces added in order;
 * - attend_latent, attend_expanded: the same, where the dims of q.k end with the rotated ones;
 * - combine: the choices of a token by rising expert from 0 on, and their sum (to y).
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
    K_I8,      /* int8; the scale of each row stands apart (struct k_part) */
    K_F8_E4M3, /* 8-bit float (no infinities); a scale for each 128 x 128 stands apart */
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
 * rounding of d*q + m where the format has one. Also what tests and loaders trust. K_I8 and
 * K_F8_E4M3 give the stored numbers, without the scales that stand apart. */
void k_dequant(enum k_type type, float *dst, const void *src, uint64_t n);

float k_half_to_float(uint16_t h);
uint16_t k_float_to_half(float f); /* nearest even */
float k_bf16_to_float(uint16_t b);
uint16_t k_float_to_bf16(float f); /* nearest even */
float k_f8_to_float(uint8_t b);    /* e4m3fn: 0x7f and 0xff are NaN */
uint8_t k_float_to_f8(float f);    /* nearest even; beyond 448 it is 448 */

/* How a matrix multiplies. */
enum k_math {
    K_MATH_FLOAT, /* float32 activations, weights dequantized exactly (--dtype float32) */
    K_MATH_FAST,  /* int8 activations in blocks of 32 where the weights are quantized in blocks,
                   * bfloat16 ones for bfloat16 weights where the CPU multiplies them */
};
/* K_I8 weights are made for int8 activations: both kinds of math multiply them so, exactly. */

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

/* One source of a packed matrix: rows of one type, `stride` bytes apart in the checkpoint, at any
 * address. Several
 * parts with equal cols may be packed as one matrix (q, k and v; gate and up): their outputs stand
 * side by side in the result. row_map, when not NULL, says which source row becomes row i. */
struct k_part {
    enum k_type type;
    const char *name; /* for messages; NULL: none */
    uint32_t rows;
    const void *data;
    size_t stride;
    const uint32_t *row_map;
    const float *scale; /* K_I8: [rows]; K_F8_E4M3: [ceil(rows / 128)][ceil(cols / 128)] */
    const struct k_static *fixed; /* K_I8: scales of activations that are the same for all tokens;
                                   * NULL: each token has its own */
    /* NULL, or called by any thread when result rows [from, to) have been packed, in roughly rising
     * order: the memory of a large part may go while the rest is packed. */
    void (*packed)(void *arg, uint32_t from, uint32_t to);
    void *packed_arg;
};
#define K_F8_BLOCK 128

/* A linear of int8 weights whose activations have one scale, found by calibration:
 *   q = clamp(rint(x / input_scale + input_offset), -128, 127)
 *   y = (q . w + bias) * deq
 * exactly in int32 up to the product with deq. All parts of a matrix have equal input_scale and
 * input_offset, or are packed apart. */
struct k_static {
    float input_scale, input_offset;
    const int32_t *bias; /* [rows], in units of deq; NULL: none */
    const float *deq;    /* [rows]; instead of scale */
};

/* Activations in the form(s) that linear() takes. Made once, used by every matrix that reads the same
 * input. The int8 of K_FORM_I8 is computed in float32, that of K_FORM_I8S in float64, so that nothing
 * counts as a tie that is none; ties go to even, and zeros stay zeros. K_FORM_I8S is made of the
 * floats and brings K_FORM_F32 with it. Forms are bits. */
struct k_act;
enum k_form {
    K_FORM_F32 = 1,
    K_FORM_Q8 = 2,   /* int8 in blocks of 32 with a scale and a sum a block */
    K_FORM_BF16 = 4, /* rounded to nearest even */
    K_FORM_I8 = 8,   /* int8 with one scale a token: max|x| / 127, q = rint(x / scale) */
    K_FORM_I8S = 16, /* int8 by the scale and offset of a struct k_static; see act_static */
};

/* The K and V planes of one layer in a block pool (kv/layout.h says where they stand):
 *   k: [block][kv_head][token / KV_GROUP][dim][KV_GROUP]   (keys transposed in groups of 16 tokens)
 *   v: [block][kv_head][token][dim]
 * so that a head range of a block is one run of bytes, and so is a whole block.
 *
 * Multi-head latent attention (latent > 0) keeps one vector a token that all heads share: its first
 * `latent` numbers are the compressed keys and values, the rest the rotated part of the key:
 *   k: [block][token][head_dim], v is NULL, kv_heads is 1 */
struct k_kv {
    void *k;
    void *v;
    enum k_type type; /* K_F32 or K_F16 */
    uint32_t block_tokens;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t latent; /* 0: keys and values */
};
#define K_MAX_LATENT_DIM 576 /* all dims of latent attention are multiples of 16, and not more */

/* Float vectors [row][head][dim], with the distances in floats. */
struct k_heads {
    float *p;
    size_t row, head;
};

/* A run of consecutive positions of one sequence inside a batch. */
struct k_seq {
    uint32_t row;           /* first row of the batch */
    uint32_t n;             /* rows */
    uint32_t pos;           /* position of the first row; keys 0 .. pos+n-1 are in the blocks */
    const uint32_t *blocks; /* block ids, in order of position */
};

/* Keys in several parts: of positions [from, to), the first of which is in row 0. Calls for rising
 * parts, without a gap and with the same rows and heads, give the bits of one call for all. from, and
 * to unless it is the end, are multiples of KV_PIECE. Between the calls out holds what is summed so
 * far, and sums [rows][heads][2] what belongs to it. */
struct k_span {
    uint32_t from, to;
    float *sums;
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

/* Mixture of experts: which experts a token goes to. Scores s = softmax or sigmoid of the logits;
 * selection by s + bias: groups of experts / groups neighbours each, of which the best top_groups
 * stay (a group counts by its two best with group_two, else by its best), then the best top_k of
 * them, the lower id on a tie. Weights are s (without bias), divided by their sum + 1e-20 if
 * `normalize`, times scale. DeepSeek-V3 technical report, 2.1.2 and 2.1.3; Qwen3-MoE: softmax,
 * groups 1. */
struct k_router {
    uint32_t experts, top_k;     /* at most K_MAX_EXPERTS, K_MAX_TOP_K */
    uint32_t groups, top_groups; /* 1, 1: no groups */
    bool sigmoid, group_two, normalize;
    float scale;
    const float *bias; /* [experts], NULL: none */
};
#define K_MAX_EXPERTS 1024
#define K_MAX_TOP_K   32

/* What route() found, and the tokens' rows sorted by expert: the k-th (token, choice) pair of expert
 * e, by rising token, is row first[e] + k of the sorted activations. Arrays are the backend's. */
struct k_routes {
    uint32_t max_tokens, top_k, experts;
    uint32_t *expert; /* [token][top_k], by falling selection score */
    float *weight;    /* [token][top_k] */
    uint32_t *row;    /* [token][top_k]: the sorted row of a pair */
    uint32_t *token;  /* [sorted row]: its token */
    uint32_t *first;  /* [experts + 1] */
    void *self;       /* the backend's own */
};

#define K_HOST_JOB 160 /* bytes that host() copies */

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

    /* [team] Calls fn with a copy of the job (at most K_HOST_JOB bytes) on one thread of the host, when all
     * results before it are complete; what comes after waits until it returns. For what is no
     * arithmetic: exchanges between ranks. */
    void (*host)(const struct kernels *k, void (*fn)(void *job), const void *job, size_t bytes);

    /* weights; pack reads each part once (front to back) and may be called outside run() only.
     * cols is a multiple of the block of each part's type. ERR_UNSUPPORTED, ERR_NOMEM; ERR_CORRUPT
     * with part, row and column if a number is not finite. */
    int (*pack)(const struct kernels *k, struct k_matrix **out, const struct k_part *parts,
                uint32_t n_parts, uint32_t cols, enum k_math math, struct err *e);
    /* What such a part will take packed; its data is not looked at. */
    size_t (*pack_bytes)(const struct kernels *k, const struct k_part *part, uint32_t cols);
    void (*unpack_free)(const struct kernels *k, struct k_matrix *m);
    uint32_t (*matrix_form)(const struct k_matrix *m); /* the k_form bits that linear() will read */
    size_t (*matrix_bytes)(const struct k_matrix *m);
    /* NULL, or what act_static needs before linear() (its bias and deq are NULL). */
    const struct k_static *(*matrix_static)(const struct k_matrix *m);

    /* activations: room for max_tokens x max_cols in the given forms. With K_FORM_Q8 cols are
     * multiples of 32. */
    int (*act_create)(const struct kernels *k, struct k_act **out, uint32_t max_tokens,
                      uint32_t max_cols, uint32_t forms);
    void (*act_destroy)(const struct kernels *k, struct k_act *a);

    /* [team] x is float [n][cols], rows ldx apart; a holds the result in every form it has room for
     * (but K_FORM_I8S) */
    void (*act_load)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     uint32_t n, uint32_t cols);
    /* [team] the same with row i from row rows[i] of x */
    void (*act_gather)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       const uint32_t *rows, uint32_t n, uint32_t cols);
    /* [team] a = rmsnorm(x) * gain (+ bias, unless it is NULL); sum of squares in float32 or better */
    void (*act_norm)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     const float *gain, const float *bias, uint32_t n, uint32_t cols, float eps);
    /* [team] K_FORM_I8S of the float form (which a must have), as s says; needed before each linear()
     * whose matrix_static() differs from the last */
    void (*act_static)(const struct kernels *k, struct k_act *a, uint32_t n,
                       const struct k_static *s);
    /* [team] a[i][j] = silu(x[i][j]) * x[i][cols + j]; rows of x are ldx apart */
    void (*act_swiglu)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       uint32_t n, uint32_t cols);
    /* The float rows of a, rows cols apart; NULL if it has no K_FORM_F32. For tests and probes. */
    const float *(*act_floats)(const struct k_act *a);

    /* [team] y[i][j] (= or +=) sum_k a[i][k] * w[j][k], i < n */
    void (*linear)(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                   const struct k_matrix *w, uint32_t n, bool accumulate);
    /* [team] One matrix a head, all of one shape: a holds [heads][n] rows; the n rows of head h
     * times w[h] go to y + h * y.head + i * y.row. */
    void (*linear_heads)(const struct kernels *k, struct k_heads y, const struct k_act *a,
                         const struct k_matrix *const *w, uint32_t heads, uint32_t n);
    /* [team] One matrix an expert, all of one shape: sorted row r times the matrix of its expert to
     * y + r * ldy. a holds the sorted rows of the n tokens of the route. */
    void (*linear_experts)(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                           const struct k_matrix *const *w, const struct k_routes *r, uint32_t n);

    /* experts: routes for up to max_tokens tokens */
    int (*routes_create)(const struct kernels *k, struct k_routes **out, uint32_t max_tokens,
                         uint32_t experts, uint32_t top_k);
    void (*routes_destroy)(const struct kernels *k, struct k_routes *r);
    /* [team] from logits [n][experts], ld apart */
    void (*route)(const struct kernels *k, struct k_routes *r, const float *logits, size_t ld,
                  uint32_t n, const struct k_router *how);
    /* Instead of route(), where the choice was made elsewhere (for routes of top_k 1): sorted row i is
     * row token[i] of what act_sorted reads, and rows [first[e], first[e + 1]) are expert e's. What
     * follows takes n = first[experts]; there is nothing to combine. Outside run() only. */
    void (*routes_given)(const struct kernels *k, struct k_routes *r, const uint32_t *token,
                         const uint32_t *first);
    /* [team] act_gather of the n tokens of the route: row r of a is row token[r] of x */
    void (*act_sorted)(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       const struct k_routes *r, uint32_t n, uint32_t cols);
    /* [team] y[i] (= or +=) the sum over the choices of token i, by rising expert id, of
     * weight * x[row] */
    void (*combine)(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                    const struct k_routes *r, uint32_t n, uint32_t cols, bool add);

    /* [team] y[i][j] += x[i][j] */
    void (*add_rows)(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                     uint32_t n, uint32_t cols);
    /* [team] y[i][j] += bias[j] */
    void (*add_bias)(const struct kernels *k, float *y, size_t ldy, const float *bias, uint32_t n,
                     uint32_t cols);
    /* [team] x[i][h] = rmsnorm(x[i][h]) * gain (+ bias) in place; gain and bias are [dim] */
    void (*norm_heads)(const struct kernels *k, struct k_heads x, uint32_t n, uint32_t heads,
                       uint32_t dim, const float *gain, const float *bias, float eps);
    /* [team] y[i] = row ids[i] of the table (dequantized exactly), zeros where that is negative */
    void (*embed)(const struct kernels *k, float *y, size_t ldy, const struct k_matrix *table,
                  const int32_t *ids, uint32_t n);
    /* [team] y[i] = x[rows[i]]: gathers rows */
    void (*gather)(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                   const uint32_t *rows, uint32_t n, uint32_t cols);
    /* [team] rotates heads [n][heads][head_dim] in place; row i is at position pos[i]. head_dim is
     * the distance of heads; of each the first rope->dim numbers turn. */
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
    /* [team] the same into a latent cache: c [row][latent], ldc apart, and pe [row][head_dim -
     * latent], ldpe apart */
    void (*latent_write)(const struct kernels *k, const struct k_kv *kv, const float *c, size_t ldc,
                         const float *pe, size_t ldpe, const struct k_seq *seqs, uint32_t n_seqs);
    /* [team] causal attention in absorbed form over a latent cache: for row i and head h
     *   score of a key = scale * (q[i][h] . its latent + pe[i][h] . its rotated part)
     *   out[i][h] = sum of softmax(scores) * latent
     * q and out hold vectors of `latent` numbers, pe of head_dim - latent. */
    void (*attend_latent)(const struct kernels *k, struct k_heads out, struct k_heads q,
                          struct k_heads pe, uint32_t heads, float scale, const struct k_kv *kv,
                          const struct k_seq *seqs, uint32_t n_seqs);
    /* [team] the latents (c, ldc apart) and rotated parts (pe, ldpe apart) of positions [from, to) of
     * a sequence, as floats */
    void (*latent_read)(const struct kernels *k, float *c, size_t ldc, float *pe, size_t ldpe,
                        const struct k_kv *kv, const struct k_seq *seq, uint32_t from, uint32_t to);
    /* [team] causal attention in expanded form of one sequence over keys and values that stand as
     * floats, position p in row p: key of head h = k_nope[p][h] (nope numbers), then k_pe[p] (rope
     * numbers, shared by the heads); value = v[p][h] (v_dim numbers). q holds nope + rope numbers.
     * span: NULL, or which of the keys stand there. */
    void (*attend_expanded)(const struct kernels *k, struct k_heads out, struct k_heads q,
                            struct k_heads k_nope, const float *k_pe, size_t ld_pe,
                            struct k_heads v, uint32_t heads, uint32_t nope, uint32_t rope,
                            uint32_t v_dim, float scale, const struct k_seq *seq,
                            const struct k_span *span);
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
