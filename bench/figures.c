#include "figures.h"

#include <stdio.h>

#include "base/status.h"

static void put_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, "\"%s\":\"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        if ((unsigned char)*text >= ' ')
            fputc(*text, out);
    }
    fputc('"', out);
}

int figures_write(const char *path, const struct figure *f, size_t n)
{
    FILE *out = fopen(path, "w");

    if (!out)
        return ERR_IO;
    fputs("{\"figures\":[", out);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ",\n{" : "\n{", out);
        put_text(out, "name", f[i].name);
        fprintf(out, ",\"value\":%.6g,", f[i].value);
        put_text(out, "unit", f[i].unit);
        fputc(',', out);
        put_text(out, "against", f[i].against);
        fprintf(out, ",\"ratio\":%.6g%s}", f[i].ratio, f[i].noisy ? ",\"noisy\":true" : "");
    }
    fputs("\n]}\n", out);
    return fclose(out) == 0 ? 0 : ERR_IO;
}
