/* Rows of a checkpoint to the layout of a panel. */
#include "kernel/ref/ref.h"

#include <string.h>

void ref_turn(uint8_t *q, const uint8_t *const *row, uint32_t lanes, uint32_t n, uint32_t unit,
              uint32_t flip)
{
    for (uint32_t i = 0; i < n; i++, q += 4 * lanes)
        for (uint32_t lane = 0; lane < lanes; lane++) {
            uint32_t v;

            memcpy(&v, row[lane] + 4 * (size_t)i, sizeof v);
            v ^= flip;
            for (uint32_t b = 0; b < 4; b += unit) {
                memcpy(q + (size_t)b * lanes + (size_t)unit * lane, &v, unit);
                v = unit < 4 ? v >> 8 * unit : 0;
            }
        }
}
