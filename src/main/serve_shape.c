/* The ranks of an instance, and its place in a data-parallel group: see engine/engine.h for what the
 * numbers mean. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"
#include "comm/group.h"
#include "main/serve_flags.h"
#include "serve/config.h"
#include "sys/topo.h"

#define MEET_SECONDS 120.0 /* as HCCL_CONNECT_TIMEOUT */
#define STEP_SECONDS 300.0 /* as VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS */

/* ---- the environment ---- */

static int seconds_from_env(double *out, const char *name, struct err *e)
{
    const char *text = getenv(name);
    char *end;

    if (!text || !text[0])
        return 0;
    *out = strtod(text, &end);
    if (*end || !(*out > 0) || !isfinite(*out))
        return err_set(e, ERR_INVAL, "%s: '%s' is not a time in seconds", name, text);
    return 0;
}

/* VLLM_PP_LAYER_PARTITION: "8,8,7", layers of each stage. Whether their sum is the model's is for
 * whoever knows the model. */
static int partition_from_env(struct engine_ranks *r, struct err *e)
{
    const char *text = getenv("VLLM_PP_LAYER_PARTITION"), *p = text;
    uint32_t n = 0;

    if (!text || !text[0])
        return 0;
    while (*p) {
        char *end;
        long layers = strtol(p, &end, 10);

        if (end == p || layers < 1 || layers > 100000 || (*end && *end != ',') ||
            (*end == ',' && !end[1]))
            return err_set(e, ERR_INVAL,
                           "VLLM_PP_LAYER_PARTITION: '%s' is not a list of layers such as 8,8,7",
                           text);
        if (n < r->pp)
            r->stage_layers[n] = (uint32_t)layers;
        n++;
        p = *end ? end + 1 : end;
    }
    if (n != r->pp)
        return err_set(e, ERR_INVAL,
                       "VLLM_PP_LAYER_PARTITION: '%s' has %u stages, but --pipeline-parallel-size "
                       "is %u",
                       text, n, r->pp);
    return 0;
}

static void flashcomm_from_env(struct engine_ranks *r)
{
    const char *text = getenv("VLLM_ASCEND_ENABLE_FLASHCOMM1");

    if (!text || !text[0] || strcmp(text, "0") == 0)
        return;
    r->sequence_parallel = r->tp > 1;
    if (!r->sequence_parallel)
        log_info("VLLM_ASCEND_ENABLE_FLASHCOMM1 has no effect: --tensor-parallel-size is 1, so "
                 "there are no rows to share out");
}

/* ---- the data-parallel group ---- */

static int check_dp(struct serve_config *c, const struct serve_args *a, struct err *e)
{
    bool rank = opts_given(serve_flags, &a->seen, "--data-parallel-rank");
    bool start = opts_given(serve_flags, &a->seen, "--data-parallel-start-rank");
    bool local = opts_given(serve_flags, &a->seen, "--data-parallel-size-local");

    if (rank && start && c->dp_rank != c->dp_start)
        return err_set(
            e, ERR_INVAL,
            "--data-parallel-rank %lld and --data-parallel-start-rank %lld differ; leave "
            "one out",
            (long long)c->dp_rank, (long long)c->dp_start);
    if (!rank)
        c->dp_rank = c->dp_start;
    if (c->dp_rank >= c->dp)
        return err_set(e, ERR_RANGE,
                       "%s %lld is not below --data-parallel-size %lld: ranks are counted from 0",
                       rank ? "--data-parallel-rank" : "--data-parallel-start-rank",
                       (long long)c->dp_rank, (long long)c->dp);
    if (local && c->dp_local == 1 && c->dp > 1 && !rank && !start)
        rank = true; /* the first of the group */
    if ((local && c->dp_local != 1 && !rank) || (c->dp > 1 && !rank && !start))
        return err_set(e, ERR_UNSUPPORTED,
                       "--data-parallel-size %lld with %lld ranks in one call: each rank is an "
                       "instance of its "
                       "own with --data-parallel-rank; `sluice launch --dp-size %lld "
                       "--dp-size-local %lld ...` "
                       "starts them, and `sluice proxy` is one address for all",
                       (long long)c->dp, (long long)(local ? c->dp_local : c->dp), (long long)c->dp,
                       (long long)(local ? c->dp_local : c->dp));
    if (!c->dp_host || !c->dp_host[0])
        c->dp_host = "127.0.0.1";
    return 0;
}

/* ---- hosts ---- */

/* --nnodes counts the hosts of the whole group, as vLLM does; an instance has its share of them. */
static int check_nodes(struct serve_config *c, struct err *e)
{
    uint32_t world = c->ranks.pp * c->ranks.tp;
    int64_t nodes = c->nnodes == 1 ? 1 : c->nnodes / c->dp, node;

    if (c->node_rank >= c->nnodes)
        return err_set(e, ERR_RANGE,
                       "--node-rank %lld is not below --nnodes %lld: hosts are counted from 0",
                       (long long)c->node_rank, (long long)c->nnodes);
    if (c->nnodes > 1 && (nodes == 0 || c->nnodes % c->dp))
        return err_set(e, ERR_INVAL,
                       "--nnodes %lld cannot be shared out evenly over --data-parallel-size %lld "
                       "instances",
                       (long long)c->nnodes, (long long)c->dp);
    if (world % nodes)
        return err_set(e, ERR_INVAL,
                       "--nnodes: %u ranks (--pipeline-parallel-size %u x --tensor-parallel-size "
                       "%u) cannot be shared out evenly over %lld hosts",
                       world, c->ranks.pp, c->ranks.tp, (long long)nodes);
    node = c->node_rank % nodes;
    c->n_local_ranks = world / (uint32_t)nodes;
    c->first_rank = c->n_local_ranks * (uint32_t)node;
    c->ranks.rank = c->first_rank;
    if (c->headless && c->first_rank == 0)
        return err_set(
            e, ERR_INVAL,
            "--headless is for the hosts of --nnodes other than the first, which has the "
            "API; here it is --node-rank %lld of %lld",
            (long long)c->node_rank, (long long)c->nnodes);
    if (!c->headless && c->first_rank > 0)
        log_info("host %lld of %lld of the instance: its API is at the first host only",
                 (long long)node, (long long)nodes);
    return 0;
}

/* ---- addresses ---- */

/* Where the ranks of this host can be reached: as the environment says, else as the way to where they
 * meet has it, else only from this host. */
static int choose_own_host(struct serve_config *c, struct err *e)
{
    struct engine_ranks *r = &c->ranks;
    bool alone = c->n_local_ranks == r->pp * r->tp;
    const char *peer = !alone ? r->master_host : r->dp_size > 1 ? r->dp_host : "127.0.0.1";

    r->host = c->own_host;
    if (c->address[0]) {
        snprintf(c->own_host, sizeof c->own_host, "%s", c->address);
        return 0;
    }
    if (serve_route_address(c->own_host, sizeof c->own_host, peer) < 0)
        return err_set(
            e, ERR_NOTFOUND,
            "%s: there is no way to it from this host; set VLLM_HOST_IP or HCCL_IF_IP to "
            "this host's address on that network",
            peer);
    return 0;
}

static int check_addresses(struct serve_config *c, const struct serve_args *a, struct err *e)
{
    struct engine_ranks *r = &c->ranks;
    bool alone = c->n_local_ranks == r->pp * r->tp;
    int st;

    r->dp_host = c->dp_host;
    r->dp_port = (uint16_t)c->dp_port;
    r->master_host = c->master_host;
    if ((st = choose_own_host(c, e)) < 0)
        return st;
    if (alone && !opts_given(serve_flags, &a->seen, "--master-addr"))
        r->master_host = c->own_host;
    if (!alone || opts_given(serve_flags, &a->seen, "--master-port"))
        r->master_port = (uint16_t)c->master_port;
    return 0;
}

/* ---- all of it ---- */

static int check_world(const struct serve_config *c, struct err *e)
{
    uint64_t world = (uint64_t)c->pp * (uint64_t)c->tp;
    bool meet = c->dp > 1 && c->expert_parallel;

    if (c->dcp != 1 || c->pcp != 1)
        return err_set(e, ERR_UNSUPPORTED, "%s %lld: a request's context is not split over ranks",
                       c->dcp != 1 ? "--decode-context-parallel-size"
                                   : "--prefill-context-parallel-size",
                       (long long)(c->dcp != 1 ? c->dcp : c->pcp));
    if (world * (meet ? (uint64_t)c->dp : 1) > GROUP_MAX_RANKS)
        return err_set(e, ERR_LIMIT,
                       "--pipeline-parallel-size %lld x --tensor-parallel-size %lld%s are %llu "
                       "ranks; at most %d can meet",
                       (long long)c->pp, (long long)c->tp, meet ? " x --data-parallel-size" : "",
                       (unsigned long long)(world * (meet ? (uint64_t)c->dp : 1)), GROUP_MAX_RANKS);
    return 0;
}

/* A thread for every CPU in each of several processes would only make them wait for each other. */
static void share_cpus(struct serve_config *c)
{
    const char *omp = getenv("OMP_NUM_THREADS");
    uint32_t each = topo_cpus() / c->n_local_ranks;

    if (c->n_local_ranks == 1 || c->threads > 0 || (omp && omp[0]))
        return;
    c->threads = each > 0 ? each : 1;
    log_info("%lld threads for each of %u ranks on %u CPUs; OMP_NUM_THREADS says otherwise",
             (long long)c->threads, c->n_local_ranks, topo_cpus());
}

int serve_check_shape(struct serve_config *c, const struct serve_args *a, struct err *e)
{
    struct engine_ranks *r = &c->ranks;
    int st;

    if ((st = check_world(c, e)) < 0 || (st = check_dp(c, a, e)) < 0)
        return st;
    *r = (struct engine_ranks){ .pp = (uint32_t)c->pp,
                                .tp = (uint32_t)c->tp,
                                .listen_fd = -1,
                                .meet_seconds = MEET_SECONDS,
                                .step_seconds = STEP_SECONDS,
                                .expert_parallel = c->expert_parallel,
                                .dp_size = (uint32_t)c->dp,
                                .dp_rank = (uint32_t)c->dp_rank };
    if ((st = seconds_from_env(&r->meet_seconds, "HCCL_CONNECT_TIMEOUT", e)) < 0 ||
        (st = seconds_from_env(&r->step_seconds, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", e)) < 0 ||
        (st = partition_from_env(r, e)) < 0 || (st = check_nodes(c, e)) < 0 ||
        (st = check_addresses(c, a, e)) < 0)
        return st;
    flashcomm_from_env(r);
    share_cpus(c);
    if (c->api_servers > 1)
        log_info("--api-server-count %lld: one front thread serves all connections; more of them "
                 "would not make it faster",
                 (long long)c->api_servers);
    return 0;
}
