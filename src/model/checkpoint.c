#include "model/checkpoint.h"

#include "base/status.h"
#include "model/arch.h"
#include "model/source.h"

static int open_gguf(struct checkpoint *c, const char *path, struct err *e)
{
    const struct arch *arch;
    int st = weights_open_gguf(&c->w, path, e);

    if (st < 0)
        return st;
    c->gguf = true;
    if ((st = source_from_gguf(&arch, &c->cfg, weights_gguf(c->w), e)) < 0)
        return err_prefix(e, st, "%s", path);
    c->pairs = arch->gguf_pairs;
    return weights_translate(c->w, gguf_names, e);
}

int checkpoint_open(struct checkpoint *c, const char *path, struct err *e)
{
    const struct arch *arch;
    bool is_gguf;
    int st = source_is_gguf(&is_gguf, path, e);

    *c = (struct checkpoint){ 0 };
    if (st == 0 && is_gguf)
        st = open_gguf(c, path, e);
    else if (st == 0 && (st = source_from_dir(&arch, &c->cfg, path, NULL, e)) == 0)
        st = weights_open_dir(&c->w, path, e);
    if (st < 0)
        checkpoint_close(c);
    return st;
}

void checkpoint_close(struct checkpoint *c)
{
    weights_close(c->w);
    c->w = NULL;
}

uint32_t checkpoint_row(uint32_t row, uint32_t dim)
{
    uint32_t in = row % dim;

    return row - in + (in < dim / 2 ? 2 * in : 2 * (in - dim / 2) + 1);
}
