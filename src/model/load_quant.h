/* The tensors beside a quantized weight. Inside the folder only. */
#ifndef SLUICE_MODEL_LOAD_QUANT_H
#define SLUICE_MODEL_LOAD_QUANT_H

#include "model/load.h"
#include "model/quant.h"

/* What struct k_part points to while a matrix is packed. */
struct load_sides {
    float *scale; /* a row's, or a block's; deq_scale of a static linear */
    int32_t *bias;
    struct k_static fixed;
};

/* Reads what a weight of this type [rows][cols] has beside it; shapes and dtypes are checked. Nothing
 * for QUANT_FLOAT. s was zeroed, and is freed by load_sides_free also after a failure. */
int load_sides(struct load *l, const struct weight *w, enum quant_type t, uint32_t rows,
               uint32_t cols, struct load_sides *s);
/* The warning due at the end for scales that are zeros only: what they belong to gives nothing. False
 * if there are none. */
bool load_zero_scales(char out[QUANT_TEXT], const struct load *l);
void load_sides_free(struct load_sides *s);
/* Leaves what belongs to these columns of the weight [rows][cols], which begin with a block of scales if
 * it has such. A bias stays with the first columns: it counts once in the sum of all. */
void load_sides_cut(struct load_sides *s, enum quant_type t, uint32_t rows, uint32_t cols,
                    struct share only);
/* Stored numbers of these rows and columns of a weight of `across` columns to what they stand for. */
void load_sides_apply(const struct load_sides *s, enum quant_type t, float *x, struct share rows,
                      struct share cols, uint32_t across);

#endif
