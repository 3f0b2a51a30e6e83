#include "kv/layout.h"

uint32_t kv_layout_main_layers(const struct kv_layout *l)
{
    return l->n_draft < l->n_layers ? l->n_layers - l->n_draft : 0;
}

uint32_t kv_layout_all_layers(const struct kv_layout *l)
{
    return l->all_layers ? l->all_layers : l->first_layer + kv_layout_main_layers(l);
}

uint32_t kv_layout_all_heads(const struct kv_layout *l)
{
    return l->all_heads ? l->all_heads : l->first_head + l->kv_heads;
}

bool kv_layout_is_sound(const struct kv_layout *l)
{
    uint64_t layers = kv_layout_all_layers(l), main = kv_layout_main_layers(l);

    if (main == 0 || l->kv_heads == 0 || l->n_draft > KV_LAYOUT_MAX_DRAFT)
        return false;
    if (l->first_layer + main > layers || (l->n_draft && l->first_layer + main != layers))
        return false;
    return (uint64_t)l->first_head + l->kv_heads <= kv_layout_all_heads(l);
}

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
