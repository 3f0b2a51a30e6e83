/* Which linears a compressed-tensors checkpoint says are quantized: those that a group's "targets" name,
 * without those that "ignore" names. An entry is a module's name, a regular expression over it ("re:"
 * before it, matched from its beginning), or the class of modules that is meant: "Linear". Inside the
 * quantization files only. */
#ifndef SLUICE_MODEL_QUANT_TARGETS_H
#define SLUICE_MODEL_QUANT_TARGETS_H

struct err;
struct json_t;
struct quant_targets;

/* Of a quantization_config whose config_groups is an object. Groups without targets mean every Linear.
 * ERR_BADMSG with file and entry, ERR_LIMIT, ERR_NOMEM. */
int quant_targets_read(struct quant_targets **out, const struct json_t *config, const char *file,
                       struct err *e);
void quant_targets_free(struct quant_targets *t); /* NULL is fine */

enum quant_wanted {
    QUANT_WANTED,     /* a target names it, or its class */
    QUANT_IGNORED,    /* an entry of "ignore" names it */
    QUANT_NOT_TARGET, /* no entry does */
    QUANT_UNSURE,     /* only its class is named, and whether it is of that class no file says */
};
/* Of a module: "model.layers.0.mlp.down_proj". *entry is what decided, "" if nothing did; borrowed. */
enum quant_wanted quant_targets_of(const struct quant_targets *t, const char *module,
                                   const char **entry);

#endif
