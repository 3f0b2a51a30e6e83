/* Quantizes a checkpoint to int8 weights and activations in ModelSlim's layout (W8A8). */
#ifndef SLUICE_OPS_QUANTIZE_H
#define SLUICE_OPS_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

struct err;

struct quantize_options {
    const char *in;  /* a HuggingFace folder in float or block-scaled FP8, or a GGUF file */
    const char *out; /* a folder: not there, or empty */
    bool fixed;      /* static scales for the linears of attention, by the calibration text */
    bool no_smooth;
    double alpha;            /* of smoothing, 0 to 1; below 0: chosen by trial for each site */
    double float_above;      /* linears whose error by trial is larger stay float */
    const char *calibration; /* a text file; NULL: a text that is built in */
    bool report;             /* errors of each layer, perplexity before and after, to stdout */
    const char *report_text; /* a text file; NULL: another text that is built in */
    uint64_t max_shard_bytes;
    uint32_t threads; /* 0: as kernels_open() takes it */
    bool force;       /* replace a checkpoint that stands in out */
    bool quiet;       /* no progress line */
};

/* Weights pass through some rows at a time. Without a report, smoothing or static scales the model is
 * never loaded. ERR_NOTFOUND, ERR_BADMSG, ERR_UNSUPPORTED, ERR_EXISTS, ERR_IO, ERR_NOMEM. */
int quantize(const struct quantize_options *opt, struct err *e);

#endif
