/* safetensors: the table of tensors at the start of a file, read from bytes in memory.
 *
 * The layout is that of the format's own README: u64 (little endian) length of the header; the
 * header, a JSON object name -> {dtype, shape, data_offsets}; the data. Pure: nothing outside
 * [data, data+len) is read, and every offset is checked before it is used. Gaps between tensors and
 * tensors that share bytes are accepted; bytes outside the file are not. */
#ifndef SLUICE_MODEL_SAFETENSORS_H
#define SLUICE_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "model/tensor.h"

struct err;
struct safetensors;

#define SAFETENSORS_MAX_HEADER (100u << 20) /* the format's own limit is 100 MB */

/* data must outlive *out. ERR_BADMSG with the tensor, the offset and the reason; ERR_UNSUPPORTED
 * for a dtype that is not known; ERR_NOMEM. */
int safetensors_parse(struct safetensors **out, const void *data, size_t len, struct err *e);
void safetensors_free(struct safetensors *s); /* NULL is fine */

/* Sorted by name; names are unique. Owned by s. */
const struct tensor *safetensors_tensors(const struct safetensors *s, size_t *n);

#endif
