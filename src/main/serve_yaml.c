/* --config FILE: a YAML mapping of options to arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "main/serve_flags.h"

#define MAX_DEPTH 32 /* an alias may point to what it is part of */
#define MAX_ARGS  4096

struct reading {
    yaml_document_t doc;
    char **args;
    int n;
    struct err *e;
};

static json_t *plain_scalar(const char *s)
{
    json_t *v;

    if (strcmp(s, "true") == 0 || strcmp(s, "True") == 0)
        return json_true();
    if (strcmp(s, "false") == 0 || strcmp(s, "False") == 0)
        return json_false();
    if (s[0] == '\0' || strcmp(s, "null") == 0 || strcmp(s, "~") == 0 || strcmp(s, "None") == 0)
        return json_null();
    if (strchr("-0123456789", s[0]) && json_read(&v, s, strlen(s), NULL, NULL) == 0)
        return v;
    return json_string(s);
}

static json_t *to_json(struct reading *r, int index, int depth)
{
    const yaml_node_t *n = yaml_document_get_node(&r->doc, index);
    json_t *out = NULL;

    if (!n || depth > MAX_DEPTH)
        return NULL;
    if (n->type == YAML_SCALAR_NODE) {
        const char *s = (const char *)n->data.scalar.value;

        return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain_scalar(s) : json_string(s);
    }
    out = n->type == YAML_SEQUENCE_NODE ? json_array() : json_object();
    if (n->type == YAML_SEQUENCE_NODE) {
        for (const yaml_node_item_t *i = n->data.sequence.items.start;
             i < n->data.sequence.items.top; i++)
            if (json_array_append_new(out, to_json(r, *i, depth + 1)) < 0)
                goto bad;
    } else if (n->type == YAML_MAPPING_NODE) {
        for (const yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top;
             p++) {
            const yaml_node_t *k = yaml_document_get_node(&r->doc, p->key);

            if (!k || k->type != YAML_SCALAR_NODE ||
                json_object_set_new(out, (const char *)k->data.scalar.value,
                                    to_json(r, p->value, depth + 1)) < 0)
                goto bad;
        }
    }
    return out;
bad:
    json_decref(out);
    return NULL;
}

/* Takes the buffer's bytes as the next argument. */
static int add_arg(struct reading *r, struct buf *b)
{
    char **p;

    if (b->status < 0 || r->n == MAX_ARGS)
        return b->status < 0 ? b->status : ERR_LIMIT;
    p = realloc(r->args, (size_t)(r->n + 1) * sizeof *p);
    if (!p)
        return ERR_NOMEM;
    r->args = p;
    p[r->n] = buf_take(b, NULL);
    if (!p[r->n])
        return ERR_NOMEM;
    r->n++;
    return 0;
}

static void put_scalar(struct buf *b, const json_t *v)
{
    if (json_is_string(v))
        buf_append(b, json_string_value(v), json_string_length(v));
    else
        json_put_value(b, v);
}

/* key: value to --key=value; a list of scalars to --key a b c. */
static int add_option(struct reading *r, const char *key, const json_t *v)
{
    const json_t *item;
    struct buf b;
    size_t i;
    int st;

    buf_init(&b, BUF_MAX_LINE);
    if (!json_is_array(v)) {
        buf_printf(&b, "--%s=", key);
        put_scalar(&b, v);
        st = add_arg(r, &b);
        buf_finish(&b);
        return st;
    }
    buf_printf(&b, "--%s", key);
    st = add_arg(r, &b);
    json_array_foreach(v, i, item)
    {
        if (st < 0)
            break;
        buf_finish(&b);
        put_scalar(&b, item);
        st = add_arg(r, &b);
    }
    buf_finish(&b);
    return st;
}

static int add_all(struct reading *r, json_t *root)
{
    const char *key;
    json_t *v;
    int st;

    json_object_foreach(root, key, v)
    {
        if (json_is_null(v))
            continue;
        if ((st = add_option(r, key, v)) < 0)
            return st;
    }
    return 0;
}

static int read_document(struct reading *r, FILE *f, const char *path)
{
    yaml_parser_t parser;
    json_t *root;
    int st;

    if (!yaml_parser_initialize(&parser))
        return ERR_NOMEM;
    yaml_parser_set_input_file(&parser, f);
    if (!yaml_parser_load(&parser, &r->doc)) {
        st = err_set(r->e, ERR_BADMSG, "--config %s: line %zu: %s", path,
                     parser.problem_mark.line + 1, parser.problem ? parser.problem : "not YAML");
        yaml_parser_delete(&parser);
        return st;
    }
    root = yaml_document_get_root_node(&r->doc) ? to_json(r, 1, 0) : json_object();
    if (json_is_object(root))
        st = add_all(r, root);
    else
        st = err_set(r->e, ERR_BADMSG, "--config %s: a mapping of options to values is wanted",
                     path);
    json_decref(root);
    yaml_document_delete(&r->doc);
    yaml_parser_delete(&parser);
    return st;
}

int serve_yaml_args(const char *path, char ***out, int *n, struct err *e)
{
    struct reading r = { .e = e };
    FILE *f = fopen(path, "re");
    int st;

    if (!f)
        return err_set(e, ERR_NOTFOUND, "--config %s: the file cannot be opened", path);
    st = read_document(&r, f, path);
    fclose(f);
    if (st < 0) {
        for (int i = 0; i < r.n; i++)
            free(r.args[i]);
        free(r.args);
        return st;
    }
    *out = r.args;
    *n = r.n;
    return 0;
}
