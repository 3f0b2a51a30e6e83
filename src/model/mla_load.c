/* The weights of multi-head latent attention. kv_b, which makes keys and values of latents, is
 * packed head by head, and its key half also transposed: so that queries can be taken to the
 * latents. */
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

int mla_check(const struct model_config *c, struct err *e)
{
    const struct {
        const char *name;
        uint32_t value, step;
    } sizes[] = {
        { "q_lora_rank", c->q_lora, 32 },        { "kv_lora_rank", c->kv_lora, 32 },
        { "qk_nope_head_dim", c->nope_dim, 32 }, { "qk_rope_head_dim", c->rope_dim, 16 },
        { "v_head_dim", c->v_dim, 16 },          { "heads x v_head_dim", c->heads * c->v_dim, 32 },
    };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value % sizes[i].step)
            return err_set(e, ERR_UNSUPPORTED, "%s %u is not supported; multiples of %u are",
                           sizes[i].name, sizes[i].value, sizes[i].step);
    if (c->kv_lora + c->rope_dim > K_MAX_LATENT_DIM)
        return err_set(e, ERR_UNSUPPORTED,
                       "a latent of %u and %u rotated numbers a token are not supported; up to %d "
                       "together are",
                       c->kv_lora, c->rope_dim, K_MAX_LATENT_DIM);
    if (c->nope_dim > K_MAX_HEAD_DIM || c->v_dim > K_MAX_HEAD_DIM)
        return err_set(e, ERR_UNSUPPORTED, "heads of %u and %u numbers: up to %d are supported",
                       c->nope_dim, c->v_dim, K_MAX_HEAD_DIM);
    return 0;
}

/* The rows of kv_b that belong to this rank's heads, `each` a head. */
static struct load_part heads_part(const struct model *m, const char *name, uint32_t each)
{
    return (struct load_part){ .name = name,
                               .rows = m->cfg.heads * each,
                               .only_rows = { m->first_head * each, m->heads * each } };
}

/* The parts of kv_b as numbers: of this rank's heads, head h has key rows [nope_dim][latent] at key + h * key_step, and
 * value rows [v_dim][latent] at value + h * value_step. */
struct halves {
    float *own[2]; /* to be freed */
    const float *key, *value;
    size_t key_step, value_step;
    bool key_transposed; /* [latent][nope_dim] instead, as newer GGUF files have it */
    enum k_type type;
};

static int read_whole(struct load *l, struct halves *h, const char *name)
{
    const struct model_config *c = &l->m->cfg;
    uint32_t rows = c->nope_dim + c->v_dim;
    struct load_part part = heads_part(l->m, name, rows);
    int st = load_floats(l, &h->own[0], &part, c->kv_lora);

    h->key = h->own[0];
    h->value = h->own[0] ? h->own[0] + (size_t)c->nope_dim * c->kv_lora : NULL;
    h->key_step = h->value_step = (size_t)rows * c->kv_lora;
    return st;
}

static int read_split(struct load *l, struct halves *h, const char *key, const char *value)
{
    const struct model_config *c = &l->m->cfg;
    struct load_part keys = heads_part(l->m, key, c->kv_lora);
    struct load_part values = heads_part(l->m, value, c->v_dim);
    int st = load_floats(l, &h->own[0], &keys, c->nope_dim);

    if (st == 0)
        st = load_floats(l, &h->own[1], &values, c->kv_lora);
    h->key = h->own[0];
    h->value = h->own[1];
    h->key_step = (size_t)c->nope_dim * c->kv_lora;
    h->value_step = (size_t)c->v_dim * c->kv_lora;
    h->key_transposed = true;
    return st;
}

/* What the numbers are packed as: bfloat16 where that is what they are or rounding is allowed. */
static int choose_type(struct load *l, struct halves *h, const char *name)
{
    enum k_type found;
    int st = load_type(l, name, &found);

    if (st < 0)
        return st;
    h->type = found == K_BF16 || (l->m->math == K_MATH_FAST && found != K_F32) ? K_BF16 : K_F32;
    return 0;
}

static int read_halves(struct load *l, struct halves *h, uint32_t id)
{
    char whole[TENSOR_MAX_NAME], key[TENSOR_MAX_NAME], value[TENSOR_MAX_NAME];
    int st;

    load_name(whole, id, "self_attn.kv_b_proj.weight");
    load_name(key, id, "self_attn.k_b_proj.weight");
    load_name(value, id, "self_attn.v_b_proj.weight");
    if (!weights_find(l->w, whole) && weights_find(l->w, key))
        return (st = choose_type(l, h, key)) < 0 ? st : read_split(l, h, key, value);
    return (st = choose_type(l, h, whole)) < 0 ? st : read_whole(l, h, whole);
}

static void transpose(float *out, const float *in, uint32_t rows, uint32_t cols)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < cols; j++)
            out[(size_t)j * rows + i] = in[(size_t)i * cols + j];
}

/* `other` has room for the transposed key rows of a head. */
static int pack_head(struct load *l, struct mla *y, const struct halves *h, uint32_t head,
                     float *other)
{
    const struct model_config *c = &l->m->cfg;
    const float *key = h->key + head * h->key_step, *up = key, *down = other;
    uint64_t *bytes = &l->m->weight_bytes;
    int st;

    if (h->key_transposed) {
        up = other;
        down = key;
        transpose(other, key, c->kv_lora, c->nope_dim);
    } else {
        transpose(other, key, c->nope_dim, c->kv_lora);
    }
    st = load_made(l, &y->key_down[head], down, c->kv_lora, c->nope_dim, h->type, bytes);
    if (st == 0 && y->key_up)
        st = load_made(l, &y->key_up[head], up, c->nope_dim, c->kv_lora, h->type, bytes);
    if (st < 0)
        return st;
    return load_made(l, &y->value_up[head], h->value + head * h->value_step, c->v_dim, c->kv_lora,
                     h->type, bytes);
}

static int load_heads(struct load *l, struct mla *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    uint32_t heads = l->m->heads;
    struct halves h = { 0 };
    float *other = malloc((size_t)c->nope_dim * c->kv_lora * sizeof *other);
    int st = 0;

    y->key_down = calloc(heads, sizeof *y->key_down);
    y->value_up = calloc(heads, sizeof *y->value_up);
    if (mla_expands(l->m))
        y->key_up = calloc(heads, sizeof *y->key_up);
    if (!other || !y->key_down || !y->value_up || (mla_expands(l->m) && !y->key_up))
        st = err_set(l->e, ERR_NOMEM, "no memory for %u heads of layer %u", heads, id);
    if (st == 0)
        st = read_halves(l, &h, id);
    for (uint32_t i = 0; st == 0 && i < heads; i++)
        st = pack_head(l, y, &h, i, other);
    free(h.own[0]);
    free(h.own[1]);
    free(other);
    return st;
}

/* Everything that reads the layer's input, but for queries that are made in one step. */
static int load_a(struct load *l, struct mla *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    char q[TENSOR_MAX_NAME], kv[TENSOR_MAX_NAME];
    const struct load_part parts[] = {
        { .name = load_name(q, id, "self_attn.q_a_proj.weight"), .rows = c->q_lora },
        { .name = load_name(kv, id, "self_attn.kv_a_proj_with_mqa.weight"),
          .rows = c->kv_lora + c->rope_dim },
    };
    uint32_t skip = c->q_lora == 0;
    int st = load_matrix(l, &y->a, parts + skip, 2 - skip, c->hidden, &l->m->weight_bytes);

    load_name(q, id, "self_attn.q_a_layernorm");
    if (st == 0 && c->q_lora)
        st = norm_load(l, &y->q_a_norm, q, c->q_lora);
    load_name(kv, id, "self_attn.kv_a_layernorm");
    return st < 0 ? st : norm_load(l, &y->kv_a_norm, kv, c->kv_lora);
}

int mla_load(struct load *l, struct mla *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    const char *rest = c->q_lora ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight";
    char name[TENSOR_MAX_NAME];
    const struct load_part q = heads_part(l->m, name, c->head_dim);
    struct load_part o = { .name = name, .rows = c->hidden };
    uint64_t *bytes = &l->m->weight_bytes;
    int st = load_a(l, y, id);

    load_name(name, id, rest);
    if (st < 0 ||
        (st = load_matrix(l, &y->q_b, &q, 1, c->q_lora ? c->q_lora : c->hidden, bytes)) < 0 ||
        (st = load_heads(l, y, id)) < 0)
        return st;
    load_name(name, id, "self_attn.o_proj.weight");
    if ((st = part_heads(l, &o.only_cols, name, c->heads, c->v_dim)) < 0)
        return st;
    return load_matrix(l, &y->o, &o, 1, c->heads * c->v_dim, bytes);
}

static void free_heads(const struct model *m, struct k_matrix **heads)
{
    for (uint32_t i = 0; heads && i < m->heads; i++)
        m->k->unpack_free(m->k, heads[i]);
    free(heads);
}

void mla_unload(const struct model *m, struct mla *y)
{
    const struct kernels *k = m->k;

    k->unpack_free(k, y->a);
    k->unpack_free(k, y->q_b);
    k->unpack_free(k, y->o);
    norm_free(m, &y->q_a_norm, m->cfg.q_lora);
    norm_free(m, &y->kv_a_norm, m->cfg.kv_lora);
    free_heads(m, y->key_down);
    free_heads(m, y->key_up);
    free_heads(m, y->value_up);
}
