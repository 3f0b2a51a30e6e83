/* Any bytes: decoded or refused; what is decoded encodes to the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transfer/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char again[MESSAGE_MAX];
    struct message m;

    if (message_decode(&m, data, size) < 0)
        return 0;
    if (message_encode(again, &m) != size || memcmp(again, data, size) != 0)
        abort();
    return 0;
}
