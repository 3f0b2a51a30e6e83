#include "ops/size.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

int size_parse(uint64_t *out, const char *option, const char *text, struct err *e)
{
    static const char letters[] = "KMGT";
    char *rest;
    double v = strtod(text, &rest), base = 1000;
    const char *unit = *rest ? strchr(letters, toupper((unsigned char)*rest)) : NULL;

    if (unit) {
        rest++;
        if (*rest == 'i') {
            base = 1024;
            rest++;
        }
        v *= pow(base, (double)(unit - letters) + 1);
    }
    if (*rest == 'B')
        rest++;
    if (rest == text || *rest || !(v >= 1 && v < 9e18))
        return err_set(e, ERR_INVAL, "%s %s: expected a size such as 5GB, 500MB or 2GiB", option,
                       text);
    *out = (uint64_t)v;
    return 0;
}
