/* What a person should hear of a config.json that was read without an error. Inside the folder
 * only. */
#ifndef SLUICE_MODEL_CONFIG_NOTES_H
#define SLUICE_MODEL_CONFIG_NOTES_H

#include <stdbool.h>
#include <stddef.h>

#define CONFIG_NOTE 256

struct config_notes {
    char dtype[32];   /* what it says the weights were made in; "" if nothing */
    const char *key;  /* the key that says so: "torch_dtype" or "dtype" */
    bool overridden;  /* not in the file but in the overrides */
    bool dtype_known; /* also if there is none */
    char unread[128]; /* the first key of the overrides that changes nothing, as a.b; "" if none */
    char near[64];    /* the key that it may have been meant to be; "" if none is near */
};

/* The bytes of config.json and a JSON object over it (NULL: none); what cannot be parsed leaves
 * nothing to note. */
void config_notes(struct config_notes *out, const char *json, size_t len, const char *overrides);

#endif
