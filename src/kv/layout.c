#include "kv/layout.h"

uint64_t kv_layout_head_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->block_tokens * l->head_dim * l->elem_bytes;
}

uint64_t kv_layout_block_bytes(const struct kv_layout *l)
{
    return l->kv_heads * kv_layout_head_bytes(l);
}

uint64_t kv_layout_token_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->planes * l->n_layers * l->kv_heads * l->head_dim * l->elem_bytes;
}

uint64_t kv_layout_pool_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->planes * l->n_layers * l->n_blocks * kv_layout_block_bytes(l);
}

uint64_t kv_layout_offset(const struct kv_layout *l, uint32_t layer, uint32_t kv, uint32_t block)
{
    return (((uint64_t)l->planes * layer + kv) * l->n_blocks + block) * kv_layout_block_bytes(l);
}
