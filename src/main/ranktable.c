/* sluice ranktable: options and wiring. */
#include "ops/ranktable.h"

#include <stddef.h>
#include <stdio.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"
#include "main/tool.h"

struct settings {
    struct opt_list ips;
    int64_t per_node, prefill, decode;
    const char *interface, *ids, *output;
    bool help;
};

#define AT(member) offsetof(struct settings, member)

/* All but --output are the reference script's. */
static const struct opt_spec specs[] = {
    { "--ips", OPT_LIST, AT(ips), NULL, NULL, 0, 0, "addresses of the hosts, prefill first" },
    { "--npus-per-node", OPT_INT, AT(per_node), "8", NULL, 1, 4096, "devices (ranks) of a host" },
    { "--network-card-name", OPT_STRING, AT(interface), NULL, NULL, 0, 0,
      "this host's interface, which has one of the addresses" },
    { "--prefill-device-cnt", OPT_INT, AT(prefill), NULL, NULL, 0, RANKTABLE_MAX_DEVICES,
      "devices that prefill: the first ones" },
    { "--decode-device-cnt", OPT_INT, AT(decode), NULL, NULL, 0, RANKTABLE_MAX_DEVICES,
      "devices that decode: the others" },
    { "--local-device-ids", OPT_STRING, AT(ids), NULL, NULL, 0, 0,
      "which devices of a host, as 0,1,2; default: the first ones" },
    { "--output", OPT_STRING, AT(output), "ranktable.json", NULL, 0, 0, "file to write" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static int run(const void *settings, const char *const *args, struct err *e)
{
    const struct settings *s = settings;
    const struct ranktable_options o = {
        .hosts = s->ips.v,
        .n_hosts = s->ips.n,
        .devices_per_host = (uint32_t)s->per_node,
        .device_ids = s->ids,
        .interface = s->interface,
        .n_prefill = (uint32_t)s->prefill,
        .n_decode = (uint32_t)s->decode,
    };
    struct ranktable t = { 0 }, again = { 0 };
    int st = ranktable_make(&t, &o, e);

    (void)args;
    if (st == 0 && (st = ranktable_save(&t, s->output, e)) == 0)
        st = ranktable_load(&again, s->output, e);
    ranktable_finish(&again);
    ranktable_finish(&t);
    return st;
}

int main_ranktable(int argc, char **argv)
{
    static const struct tool tool = {
        "ranktable", specs,
        "sluice ranktable --ips A B --prefill-device-cnt N --decode-device-cnt M", 0, run
    };
    struct settings s = { 0 };

    return tool_main(&tool, &s, &s.help, argc, argv);
}
