#include "model/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/config_notes.h"
#include "model/config_parse.h"
#include "model/gguf.h"
#include "sys/map.h"

/* A new architecture is a file and a line here. */
static const struct arch *const archs[] = {
    &arch_llama, &arch_qwen2, &arch_qwen3, &arch_qwen3_moe, &arch_deepseek_v3, &arch_deepseek_v2,
};
#define N_ARCHS (sizeof archs / sizeof archs[0])

const struct arch *arch_by_hf(const char *name)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strcmp(archs[i]->hf, name) == 0)
            return archs[i];
    return NULL;
}

const struct arch *arch_by_gguf(const char *name, size_t n)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strlen(archs[i]->gguf) == n && memcmp(archs[i]->gguf, name, n) == 0)
            return archs[i];
    return NULL;
}

static int unknown_arch(const char *name, size_t n, struct err *e)
{
    char known[512] = "";

    for (size_t i = 0; i < N_ARCHS; i++) {
        size_t at = strlen(known);

        snprintf(known + at, sizeof known - at, "%s%s (GGUF: %s)", i ? ", " : "", archs[i]->hf,
                 archs[i]->gguf);
    }
    return err_set(e, ERR_UNSUPPORTED, "architecture \"%.*s\" is not supported; supported: %s",
                   (int)(n < 64 ? n : 64), name, known);
}

int source_is_gguf(bool *out, const char *path, struct err *e)
{
    struct stat sb;

    if (stat(path, &sb) < 0)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO,
                       "%s: no such model: expected a HuggingFace folder or a .gguf file (%s)",
                       path, strerror(errno));
    *out = !S_ISDIR(sb.st_mode);
    return 0;
}

int source_from_gguf(const struct arch **arch, struct model_config *out, const struct gguf *g,
                     struct err *e)
{
    const char *name;
    size_t n;
    int st = gguf_string(g, "general.architecture", &name, &n, e);

    if (st < 0)
        return st == ERR_NOTFOUND ? ERR_BADMSG : st;
    if (!(*arch = arch_by_gguf(name, n)))
        return unknown_arch(name, n, e);
    return config_from_gguf(out, g, (*arch)->hf, (*arch)->gguf, e);
}

/* dir/name mapped; m stays empty and 0 is returned when it is absent and may be. */
static int map_in(struct map *m, const char *dir, const char *name, bool optional, struct err *e)
{
    char *path;
    int st;

    *m = (struct map){ 0 };
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return err_set(e, ERR_NOMEM, "no memory");
    st = map_open(m, path, e);
    if (st == ERR_NOTFOUND && optional)
        st = 0;
    else if (st == ERR_NOTFOUND)
        err_set(e, st,
                "%s: no %s in the folder; a model is a HuggingFace folder (%s and "
                "*.safetensors) or a .gguf file",
                dir, name, name);
    free(path);
    return st;
}

int source_from_dir(const struct arch **arch, struct model_config *out, const char *dir,
                    const char *overrides, struct err *e)
{
    struct map config = { 0 }, gen = { 0 };
    int st;

    if ((st = map_in(&config, dir, "config.json", false, e)) == 0 &&
        (st = map_in(&gen, dir, "generation_config.json", true, e)) == 0 &&
        (st = config_from_json(out, (const char *)config.data, config.size, (const char *)gen.data,
                               gen.size, overrides, e)) < 0)
        err_prefix(e, st, "%s", dir);
    if (st == 0 && !(*arch = arch_by_hf(out->arch)))
        st = err_prefix(e, unknown_arch(out->arch, strlen(out->arch), e), "%s/config.json", dir);
    map_close(&config);
    map_close(&gen);
    return st;
}

void source_notes(struct config_notes *out, const char *dir, const char *overrides)
{
    struct map config;

    (void)map_in(&config, dir, "config.json", true, NULL);
    config_notes(out, (const char *)config.data, config.size, overrides);
    map_close(&config);
}
