#include "model/part.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "model/blocks.h"

/* Feed-forward columns and vocabulary rows are parted every so many. */
#define COLUMNS 8
#define IDS     16
/* Blocks of 128 x 128 are kept whole where that costs the balance little. */
#define MANY 4

struct share share_of(uint32_t n, uint32_t unit, uint32_t rank, uint32_t size)
{
    uint32_t units = (n + unit - 1) / unit, each = units / size, more = units % size;
    uint32_t first = rank * each + (rank < more ? rank : more);
    uint64_t from = (uint64_t)first * unit, to = from + (uint64_t)(each + (rank < more)) * unit;

    from = from < n ? from : n;
    to = to < n ? to : n;
    return (struct share){ (uint32_t)from, (uint32_t)(to - from) };
}

static bool heads_fit(const struct model_config *c, uint32_t tp)
{
    if (c->heads % tp)
        return false;
    return c->kv_lora || c->kv_heads % tp == 0 || tp % c->kv_heads == 0;
}

/* ", " and a number to the list in out; what has no room is left out. */
static void list_add(char *out, size_t room, uint32_t number)
{
    size_t at = strlen(out);

    snprintf(out + at, room - at, "%s%u", at ? ", " : "", number);
}

static int refuse_heads(const struct model_config *c, uint32_t tp, struct err *e)
{
    char sizes[128] = "";

    for (uint32_t t = 1; t <= c->heads; t++)
        if (heads_fit(c, t))
            list_add(sizes, sizeof sizes, t);
    return err_set(
        e, ERR_UNSUPPORTED,
        "%u attention heads and %u KV heads cannot be shared by %u tensor-parallel ranks; "
        "--tensor-parallel-size %s would do",
        c->heads, c->kv_heads, tp, sizes);
}

static int choose_heads(struct model *m, struct err *e)
{
    const struct model_config *c = &m->cfg;
    uint32_t tp = m->part.tp_size, rank = m->part.tp_rank;

    if (!heads_fit(c, tp))
        return refuse_heads(c, tp, e);
    m->heads = c->heads / tp;
    m->first_head = rank * m->heads;
    m->kv_heads = c->kv_lora || c->kv_heads < tp ? 1 : c->kv_heads / tp;
    m->first_kv_head = c->kv_lora ? 0 : rank * c->kv_heads / tp;
    return 0;
}

/* Experts are whole on one rank each, or all of them in part on all tensor-parallel ranks. */
static int choose_experts(struct model *m, struct err *e)
{
    uint32_t n = m->cfg.experts, ep = m->part.ep_size;
    char sizes[128] = "";

    m->experts = (struct share){ 0, n };
    if (n == 0)
        m->part.ep_size = ep = 1;
    if (ep == 1)
        return 0;
    for (uint32_t i = 1; i <= n; i++)
        if (n % i == 0)
            list_add(sizes, sizeof sizes, i);
    if (n % ep)
        return err_set(e, ERR_UNSUPPORTED,
                       "%u experts cannot be shared by %u ranks (--data-parallel-size times "
                       "--tensor-parallel-size); %s ranks would do",
                       n, ep, sizes);
    m->experts = (struct share){ m->part.ep_rank * (n / ep), n / ep };
    return 0;
}

struct share part_ids(const struct model *m, uint32_t rank)
{
    return share_of(m->cfg.vocab, IDS, rank, m->part.tp_size);
}

struct share part_head_ids(const struct model *m, uint32_t rank)
{
    uint32_t tp = m->part.tp_size;

    return share_of(m->cfg.vocab, IDS, rank, tp > 1 ? tp : m->part.head_size);
}

/* Whose rows of embedding and head these are. */
static int choose_ids(struct model *m, struct err *e)
{
    const struct model_part *p = &m->part;
    uint32_t units = (m->cfg.vocab + IDS - 1) / IDS;

    if (p->tp_size > 1 && p->head_size > 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "%u tensor-parallel ranks share the head already: "
                       "lmhead_tensor_parallel_size %u needs --tensor-parallel-size 1",
                       p->tp_size, p->head_size);
    if (units < p->tp_size || units < p->head_size)
        return err_set(e, ERR_UNSUPPORTED,
                       "a vocabulary of %u cannot be shared by %u ranks; up to %u can",
                       m->cfg.vocab, p->tp_size > 1 ? p->tp_size : p->head_size, units);
    m->ids = part_ids(m, p->tp_rank);
    m->head_ids = part_head_ids(m, p->tp_size > 1 ? p->tp_rank : p->head_rank);
    return 0;
}

int part_choose(struct model *m, struct err *e)
{
    struct model_part *p = &m->part;
    int st;

    p->tp_size = p->tp_size ? p->tp_size : 1;
    p->ep_size = p->ep_size ? p->ep_size : 1;
    p->head_size = p->head_size ? p->head_size : 1;
    p->sequence_parallel = p->sequence_parallel && p->tp_size > 1;
    if (p->tp_rank >= p->tp_size || p->ep_rank >= p->ep_size || p->head_rank >= p->head_size)
        return err_set(e, ERR_INVAL, "rank %u of %u (experts: %u of %u, head: %u of %u)",
                       p->tp_rank, p->tp_size, p->ep_rank, p->ep_size, p->head_rank, p->head_size);
    if ((st = choose_ids(m, e)) < 0 || (st = choose_heads(m, e)) < 0)
        return st;
    return choose_experts(m, e);
}

/* Where a matrix of this type may be parted: a GGUF file's activations have blocks of 32 too. */
static uint32_t unit_of(const struct load *l, enum k_type type)
{
    uint32_t block = k_type_info[type].block, least = l->w->gguf ? 32 : COLUMNS;

    return block > least ? block : least;
}

static bool columns_fit(uint32_t heads, uint32_t dim, uint32_t unit, uint32_t tp)
{
    return heads % tp == 0 && (tp == 1 || heads / tp * dim % unit == 0);
}

int part_heads(struct load *l, struct share *out, const char *name, uint32_t heads, uint32_t dim)
{
    const struct model *m = l->m;
    uint32_t tp = m->part.tp_size, unit;
    enum k_type type;
    char sizes[128] = "";
    int st = load_type(l, name, &type);

    if (st < 0)
        return st;
    *out = (struct share){ m->first_head * dim, m->heads * dim };
    unit = unit_of(l, type);
    if (columns_fit(heads, dim, unit, tp))
        return 0;
    for (uint32_t t = 1; t <= heads; t++)
        if (heads_fit(&m->cfg, t) && columns_fit(heads, dim, unit, t))
            list_add(sizes, sizeof sizes, t);
    return err_set(
        l->e, ERR_UNSUPPORTED,
        "%s: tensor %s: %u heads of %u in %s, whose blocks are of %u, cannot be shared by "
        "%u tensor-parallel ranks; --tensor-parallel-size %s would do",
        l->w->path, name, heads, dim, k_type_info[type].name, unit, tp, sizes);
}

int part_ffn(struct load *l, struct share *out, const char *down, uint32_t ffn)
{
    const struct model_part *p = &l->m->part;
    enum k_type type;
    uint32_t unit;
    int st;

    *out = (struct share){ 0, ffn };
    if (p->tp_size <= 1)
        return 0;
    if ((st = load_type(l, down, &type)) < 0)
        return st;
    unit = unit_of(l, type);
    if (type == K_F8_E4M3 && ffn / K_F8_BLOCK >= MANY * p->tp_size)
        unit = K_F8_BLOCK;
    if ((ffn + unit - 1) / unit < p->tp_size)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "%s: tensor %s: %u columns in %s, parted every %u at most, cannot be shared "
                       "by %u tensor-parallel ranks; up to %u can",
                       l->w->path, down, ffn, k_type_info[type].name, unit, p->tp_size,
                       (ffn + unit - 1) / unit);
    *out = share_of(ffn, unit, p->tp_rank, p->tp_size);
    return 0;
}
