/* Where pre-tokenizers come from: the names that GGUF files use, and tokenizer.json. The patterns are
 * those of the models' published tokenizer.json files. */
#include <string.h>

#include "base/status.h"
#include "text/pretok.h"

#define GPT2                "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WORDS_BEFORE_DIGITS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define WORDS_AFTER_DIGITS  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3              WORDS_BEFORE_DIGITS "\\p{N}{1,3}" WORDS_AFTER_DIGITS
#define QWEN2               WORDS_BEFORE_DIGITS "\\p{N}" WORDS_AFTER_DIGITS
/* CJK ideographs, Hiragana, Katakana. */
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK_WORDS                                                                             \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                                        \
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+"        \
    "|\\s+(?!\\S)|\\s+"
/* DeepSeek's first models: ideographs and everything from U+0800, Hangul. */
#define DEEPSEEK_OLD_CJK "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Cased letters, as Unicode had them then. */
#define DEEPSEEK_OLD_LETTERS                                                                       \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"            \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"        \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"         \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                 \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+"
#define DEEPSEEK_OLD_MARKS                                                                         \
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"

#define NAME_STEPS 7

static const struct named {
    const char *names; /* separated by blanks */
    const char *step[NAME_STEPS];
    struct pretok_named how;
} table[] = {
    { "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling roberta-bpe", { GPT2 }, { 0 } },
    { "smollm starcoder refact command-r codeshell exaone minerva-7b mellum",
      { "\\p{N}", GPT2 },
      { 0 } },
    { "llama-bpe llama3 llama-v3 falcon3 pixtral dbrx smaug-bpe",
      { LLAMA3 },
      { .ignore_merges = true } },
    { "qwen2 deepseek-r1-qwen", { QWEN2 }, { .nfc = true } },
    { "deepseek-v3 deepseek-r1", { "\\p{N}{1,3}", DEEPSEEK_CJK, DEEPSEEK_WORDS }, { 0 } },
    { "deepseek-coder",
      { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_OLD_CJK, "\\p{N}" },
      { 0 } },
    { "deepseek-llm",
      { "[\\r\\n]", DEEPSEEK_OLD_LETTERS, DEEPSEEK_OLD_MARKS, "\\s+$", DEEPSEEK_OLD_CJK, "\\p{N}" },
      { 0 } },
    { "default",
      { "[\\p{P}\\$\\+<=>\\^~\\|]+",
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)", "\\p{N}+",
        "[0-9][0-9][0-9]" },
      { 0 } },
};

static bool has_name(const char *names, const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || strchr(name, ' '))
        return false;
    for (const char *p = names; (p = strstr(p, name)); p += n)
        if ((p == names || p[-1] == ' ') && (p[n] == '\0' || p[n] == ' '))
            return true;
    return false;
}

static const struct named *find_named(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (has_name(table[i].names, name))
            return &table[i];
    return NULL;
}

int pretok_add_named(struct pretok *p, const char *name, struct pretok_named *out, struct err *e)
{
    const struct named *t = find_named(name);

    if (!t)
        return err_set(
            e, ERR_UNSUPPORTED,
            "pre-tokenizer '%.100s' (tokenizer.ggml.pre) is not known; known are gpt-2, smollm, "
            "llama-bpe, qwen2, deepseek-v3, deepseek-llm, deepseek-coder and their relatives",
            name);
    for (int k = 0; k < NAME_STEPS && t->step[k]; k++) {
        int st = pretok_add(p, t->step[k], strlen(t->step[k]), false, PRETOK_ISOLATED, false, e);

        if (st < 0)
            return st;
    }
    *out = t->how;
    return 0;
}

/* The patterns one after another, then the bytes as characters. */
json_t *pretok_named_json(const char *name, struct pretok_named *out)
{
    const struct named *t = find_named(name);
    json_t *steps;

    if (!t)
        return NULL;
    steps = json_array();
    for (int k = 0; k < NAME_STEPS && t->step[k]; k++)
        json_array_append_new(steps,
                              json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                                        "Regex", t->step[k], "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps,
                          json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                                    0, "trim_offsets", 1, "use_regex", 0));
    *out = t->how;
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

static int add_split(struct pretok *p, json_t *j, struct err *e)
{
    static const char *const names[] = { [PRETOK_ISOLATED] = "Isolated",
                                         [PRETOK_REMOVED] = "Removed",
                                         [PRETOK_CONTIGUOUS] = "Contiguous",
                                         [PRETOK_PREVIOUS] = "MergedWithPrevious",
                                         [PRETOK_NEXT] = "MergedWithNext" };
    json_t *pattern = json_object_get(j, "pattern"), *regex = json_object_get(pattern, "Regex");
    json_t *text = regex ? regex : json_object_get(pattern, "String");
    const char *behavior = json_string_value(json_object_get(j, "behavior"));

    if (!json_is_string(text) || !behavior)
        return err_set(e, ERR_BADMSG,
                       "pre_tokenizer Split needs a pattern (Regex or String) and a behavior");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(behavior, names[i]) == 0)
            return pretok_add(p, json_string_value(text), json_string_length(text), !regex,
                              (enum pretok_split)i, json_is_true(json_object_get(j, "invert")), e);
    return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer Split: behavior '%.60s'", behavior);
}

static int add_digits(struct pretok *p, json_t *j, struct err *e)
{
    const char *one = "\\p{N}", *run = "\\p{N}+";
    const char *pattern = json_is_true(json_object_get(j, "individual_digits")) ? one : run;

    return pretok_add(p, pattern, strlen(pattern), false, PRETOK_ISOLATED, false, e);
}

/* Absent use_regex means true. */
static int add_byte_level(struct pretok *p, json_t *j, struct err *e)
{
    if (json_is_true(json_object_get(j, "add_prefix_space")))
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer ByteLevel with add_prefix_space");
    if (json_is_false(json_object_get(j, "use_regex")))
        return 0;
    return pretok_add(p, GPT2, strlen(GPT2), false, PRETOK_ISOLATED, false, e);
}

int pretok_add_json(struct pretok *p, json_t *j, struct err *e)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    json_t *part;
    size_t i;
    int st;

    if (!j || json_is_null(j))
        return 0;
    if (!type)
        return err_set(e, ERR_BADMSG, "pre_tokenizer has no type");
    if (strcmp(type, "Split") == 0)
        return add_split(p, j, e);
    if (strcmp(type, "Digits") == 0)
        return add_digits(p, j, e);
    if (strcmp(type, "ByteLevel") == 0)
        return add_byte_level(p, j, e);
    if (strcmp(type, "Sequence") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "pre_tokenizer '%.60s' is not known; known are Sequence, Split, Digits and "
                       "ByteLevel",
                       type);
    json_array_foreach(json_object_get(j, "pretokenizers"), i, part)
    {
        const char *sub = json_string_value(json_object_get(part, "type"));

        /* Sequences do not nest in practice; refusing keeps this bounded. */
        if (sub && strcmp(sub, "Sequence") == 0)
            return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer Sequence in a Sequence");
        if ((st = pretok_add_json(p, part, e)) < 0)
            return st;
    }
    return 0;
}
