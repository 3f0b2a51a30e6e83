/* Bytes as the index of a checkpoint in several files. */
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct weight one = { .t = { .name = "a" }, .file = "dir/a.safetensors" };
    const struct weights w = { .w = &one, .n = 1 };
    struct file_list none = { .n = 0 };
    struct shard_index x;
    struct err e = { { 0 } };
    struct buf b;

    if (shard_index_parse(&x, (const char *)data, size, &e) < 0)
        return 0;
    buf_init(&b, BUF_MAX_LINE);
    file_list_others(&b, x.files, &none);
    buf_finish(&b);
    (void)shard_index_check(&x, &w, &e);
    shard_index_finish(&x);
    return 0;
}
