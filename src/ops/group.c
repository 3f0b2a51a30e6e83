#include "ops/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static const char *rest_of(const char *name)
{
    const char *p = strchr(name + strlen("model.layers."), '.');

    return p ? p + 1 : name;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Where a matrix of a layer reads; SITES: nowhere that is watched. */
static enum site site_of(const char *name)
{
    static const struct {
        const char *rest;
        enum site site;
    } table[] = {
        { "self_attn.q_proj.weight", SITE_ATTN_IN },
        { "self_attn.k_proj.weight", SITE_ATTN_IN },
        { "self_attn.v_proj.weight", SITE_ATTN_IN },
        { "self_attn.q_a_proj.weight", SITE_ATTN_IN },
        { "self_attn.kv_a_proj_with_mqa.weight", SITE_ATTN_IN },
        { "self_attn.q_b_proj.weight", SITE_Q_B_IN },
        { "self_attn.o_proj.weight", SITE_ATTN_OUT },
        { "mlp.gate.weight", SITE_FFN_IN },
        { "mlp.down_proj.weight", SITE_FFN_OUT },
        { "mlp.shared_experts.down_proj.weight", SITE_SHARED_OUT },
    };
    const char *rest = rest_of(name);

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(rest, table[i].rest) == 0)
            return table[i].site;
    return ends_with(rest, ".gate_proj.weight") || ends_with(rest, ".up_proj.weight") ? SITE_FFN_IN
                                                                                      : SITES;
}

/* "mlp.experts.7.up_proj.weight" of the group's expert into out. Returns out. */
static const char *of_expert(const struct group *g, const char *what, char out[64])
{
    snprintf(out, 64, "mlp.experts.%u.%s_proj.weight", g->expert, what);
    return out;
}

bool group_reads(const struct group *g, size_t i)
{
    const struct blue_tensor *t = &g->in->blue.t[i];
    char down[64];

    if (t->kind != BLUE_MATRIX || t->cols != g->cols)
        return false;
    if (g->site == SITE_EXPERT_OUT)
        return strcmp(rest_of(t->name), of_expert(g, "down", down)) == 0;
    return site_of(t->name) == g->site;
}

bool group_quantizes(const struct group *g, size_t i)
{
    return group_reads(g, i) && g->in->blue.t[i].role != BLUE_FLOAT;
}

/* The three matrices of the experts go through one operation: they are of one type. */
bool group_takes_along(const struct group *g, size_t i)
{
    const char *rest = rest_of(g->in->blue.t[i].name);

    return g->site == SITE_FFN_IN && strncmp(rest, "mlp.experts.", 12) == 0 &&
           ends_with(rest, ".down_proj.weight");
}

static size_t find(const struct group *g, const char *rest)
{
    size_t i = g->first;

    while (i < g->end && strcmp(rest_of(g->in->blue.t[i].name), rest) != 0)
        i++;
    return i;
}

/* The channel that makes a column: query heads share the values of their group's head. */
uint32_t group_channel(const struct group *g, uint32_t col)
{
    const struct model_config *c = &g->in->from.cfg;
    uint32_t head = col / c->head_dim;

    if (g->site != SITE_ATTN_OUT || c->kv_lora)
        return col;
    return head / (c->heads / c->kv_heads) * c->head_dim + col % c->head_dim;
}

uint32_t group_count_channels(const struct group *g)
{
    const struct model_config *c = &g->in->from.cfg;

    return g->site == SITE_ATTN_OUT && !c->kv_lora ? c->kv_heads * c->head_dim : g->cols;
}

/* kv_b has for each head the rows of the key, then those of the value. */
uint32_t group_maker_row(const struct group *g, uint32_t channel)
{
    const struct model_config *c = &g->in->from.cfg;

    if (g->site != SITE_ATTN_OUT || !c->kv_lora)
        return channel;
    return channel / c->v_dim * (c->nope_dim + c->v_dim) + c->nope_dim + channel % c->v_dim;
}

size_t group_maker(const struct group *g)
{
    static const char *const makers[SITES] = {
        [SITE_ATTN_IN] = "input_layernorm.weight",
        [SITE_Q_B_IN] = "self_attn.q_a_layernorm.weight",
        [SITE_ATTN_OUT] = "self_attn.v_proj.weight",
        [SITE_FFN_IN] = "post_attention_layernorm.weight",
        [SITE_FFN_OUT] = "mlp.up_proj.weight",
        [SITE_SHARED_OUT] = "mlp.shared_experts.up_proj.weight",
    };
    char up[64];

    if (g->site == SITE_ATTN_OUT && g->in->from.cfg.kv_lora)
        return find(g, "self_attn.kv_b_proj.weight");
    return find(g, g->site == SITE_EXPERT_OUT ? of_expert(g, "up", up) : makers[g->site]);
}

size_t group_maker_bias(const struct group *g)
{
    return g->site == SITE_ATTN_OUT ? find(g, "self_attn.v_proj.bias") : g->end;
}

static void add_rows(struct group *g, const float *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < g->cols; j++) {
            float *m = &g->w_max[group_channel(g, j)];

            *m = fmaxf(*m, fabsf(rows[(size_t)i * g->cols + j]));
        }
}

/* The largest activation and the largest weight of each channel; reads what is quantized once, in
 * pieces. */
static int measure_channels(struct group *g)
{
    float *rows = malloc((size_t)TRIAL_ROWS * g->cols * sizeof *rows);
    int st = rows ? 0 : plan_no_memory(g->e);

    for (uint32_t j = 0; j < g->cols; j++) {
        float *m = &g->x_max[group_channel(g, j)];

        *m = fmaxf(*m, seen_max(g->seen, j));
    }
    for (size_t i = g->first; st == 0 && i < g->end; i++) {
        uint32_t total = g->in->blue.t[i].rows;

        for (uint32_t at = 0; st == 0 && group_quantizes(g, i) && at < total; at += TRIAL_ROWS) {
            uint32_t n = total - at < TRIAL_ROWS ? total - at : TRIAL_ROWS;

            if ((st = intake_rows(g->in, i, at, n, rows, g->e)) == 0)
                add_rows(g, rows, n);
        }
    }
    free(rows);
    return st;
}

/* Some rows of tensor i to try. */
static int take_linear(struct group *g, size_t i)
{
    const struct blue_tensor *t = &g->in->blue.t[i];
    uint32_t n = t->rows < TRIAL_ROWS ? t->rows : TRIAL_ROWS;
    float *w = malloc((size_t)n * t->cols * sizeof *w);
    int st = w ? 0 : plan_no_memory(g->e);

    for (uint32_t r = 0; st == 0 && r < n; r++)
        st = intake_rows(g->in, i, (uint32_t)((uint64_t)r * t->rows / n), 1,
                         w + (size_t)r * t->cols, g->e);
    if (st < 0) {
        free(w);
        return st;
    }
    g->index[g->n_linears] = i;
    g->taken[g->n_linears] = w;
    g->linear[g->n_linears++] = (struct trial_linear){
        .w = w, .rows = n, .cols = t->cols, .x = g->seen->rows, .n = g->seen->n_rows
    };
    return 0;
}

static int take_linears(struct group *g)
{
    int st = 0;

    for (size_t i = g->first; st == 0 && i < g->end && g->n_linears < TRIAL_LINEARS; i++)
        if (group_quantizes(g, i))
            st = take_linear(g, i);
    return st;
}

int group_read(struct group *g)
{
    int st = measure_channels(g);

    return st < 0 ? st : take_linears(g);
}
