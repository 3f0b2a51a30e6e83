"""The two forms in which vllm-router and vLLM's own proxies ask: Mooncake's, where P and D hear of a request
at the same time and D finds P through GET /query, and NIXL's, one after the other. Played here request by
request; with the real vllm-router too where one is installed (PATH, or VLLM_ROUTER=/path/of/it)."""
import json
import os
import shutil
import subprocess
import time
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import legs
import texts
from client import HOST
from harness import E2E, wait_until

LENGTHS = [1, 2, 15, 16, 17, 33, 64, 100, 129, 255, 400, 1000]
N = 8
LEASE_SECONDS = 5
ENV = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(LEASE_SECONDS)}


def producer(**more):
    """A P with a bootstrap port, as .bootstrap."""
    port = harness.free_ports(1)[0]
    p = harness.serve("P", role="kv_producer", env={**ENV, "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(port)},
                      **more)
    p.ports.append(port)
    p.bootstrap = port
    return p


def consumer(policy="recompute", extra=None, **more):
    kv = {"kv_load_failure_policy": policy, **({"extra": extra} if extra else {})}
    return harness.serve("D", role="kv_consumer", env=ENV, kv=kv, **more)


def request_id(p, d):
    return f"___prefill_addr_{HOST}:{p.port}___decode_addr_{HOST}:{d.port}_{uuid.uuid4().hex}"


class Mooncake:
    """What the router does for each request: both legs at once, D's answer is the client's."""

    def __init__(self, p, d):
        self.p, self.d = p, d
        reply = client.get(p.bootstrap, "/query")
        self.ranks = reply.json()
        self.engine = self.ranks["0"]["engine_id"]

    def prefill(self, prompt, transfer, headers=None):
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False,
                "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False,
                                       "transfer_id": transfer}}
        return client.post(self.p.port, "/v1/completions", body, headers=headers)

    def decode(self, prompt, transfer, n=N, headers=None):
        params = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer,
                  "remote_bootstrap_addr": f"http://{HOST}:{self.p.bootstrap}",
                  "remote_engine_id": self.engine}
        return client.complete(self.d.port, prompt, n, headers=headers, kv_transfer_params=params)

    def ask(self, prompt, n=N):
        headers = {"X-Request-Id": request_id(self.p, self.d), "X-data-parallel-rank": "0"}
        transfer = "xfer-" + headers["X-Request-Id"].rsplit("_", 1)[1]
        with ThreadPoolExecutor(1) as pool:
            leg = pool.submit(self.prefill, prompt, transfer, headers)
            reply = self.decode(prompt, transfer, n, headers)
            if leg.result().status != 200:
                raise AssertionError(f"prefill leg: {leg.result()}")
        return client.tokens(reply)


def nixl(p, d, prompt, n=N):
    headers = {"X-Request-Id": request_id(p, d)}
    params = legs.prefill(p.port, prompt, headers)
    return client.tokens(client.complete(d.port, prompt, n, headers=headers,
                                         kv_transfer_params=params))


class Forms(E2E):
    """Policy fail: what is answered came over the wire, or was all cached."""

    @classmethod
    def setUpFleet(cls):
        cls.p, cls.d, cls.plain = producer(), consumer("fail"), harness.serve("plain")
        fleet = harness.Fleet(cls.p, cls.d, cls.plain).start()
        ids = texts.corpus(cls.plain.port)
        cls.prompts = [[i + 100] + ids[:n - 1] for i, n in enumerate(LENGTHS)]
        cls.want = [client.tokens(client.complete(cls.plain.port, q, N)) for q in cls.prompts]
        cls.router = Mooncake(cls.p, cls.d)
        return fleet

    def fetched(self):
        return self.d.metrics().get("vllm:external_prefix_cache_hits_total")

    def test_1_query(self):
        rank = self.router.ranks["0"]
        self.assertEqual(rank["worker_addr"], {"0": {"0": f"tcp://{HOST}:{self.p.ports[1]}"}})
        self.assertTrue(rank["engine_id"])
        self.assertEqual(client.get(self.p.port, "/query").json(), self.router.ranks)
        self.assertEqual(client.get(self.d.port, "/query").status, 404)
        self.assertEqual(client.get(self.p.bootstrap, "/v1/models").status, 404)

    def test_2_mooncake_equals_plain(self):
        before = self.fetched()
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(self.router.ask, self.prompts))
        self.assertEqual(got, self.want)
        self.assertEqual(self.fetched() - before, sum(LENGTHS) - len(LENGTHS))
        self.assertEqual([self.router.ask(q) for q in self.prompts], self.want)  # from D's cache
        self.fleet.wait_idle()

    def test_3_nixl_equals_plain(self):
        client.post(self.d.port, "/reset_prefix_cache", {})
        before = self.fetched()
        self.assertEqual([nixl(self.p, self.d, q) for q in self.prompts], self.want)
        self.assertEqual(self.fetched() - before, sum(LENGTHS) - len(LENGTHS))
        self.fleet.wait_idle()

    def test_4_a_name_used_twice(self):
        """Two prompts of one length under one name: nobody gets the other's KV."""
        a, b = [7] + self.prompts[7][1:], [8] + self.prompts[7][1:]
        want = client.tokens(client.complete(self.plain.port, a, N))
        with ThreadPoolExecutor(2) as pool:
            right = pool.submit(self.router.decode, a, "twice")
            wrong = pool.submit(self.router.decode, b, "twice")
            time.sleep(0.2)
            self.assertEqual(self.router.prefill(a, "twice").status, 200)
            self.assertEqual(client.tokens(right.result()), want)
            self.assertEqual(wrong.result().status, 500)
        self.fleet.wait_idle()

    def test_5_a_refused_prefill_ends_the_wait(self):
        """P answers 400: D is told, and does not wait for the time to run out."""
        prompt = [9] + self.prompts[7][1:]
        with ThreadPoolExecutor(1) as pool:
            leg = pool.submit(self.router.decode, prompt, "refused")
            time.sleep(0.2)
            began = time.monotonic()
            bad = client.post(self.p.port, "/v1/completions",
                              {"prompt": prompt, "max_tokens": 100000, "kv_transfer_params":
                               {"do_remote_decode": True, "transfer_id": "refused"}})
            self.assertEqual(bad.status, 400)
            self.assertEqual(leg.result().status, 500)
            self.assertIn("KV load failed", leg.result().json()["error"]["message"])
            self.assertLess(time.monotonic() - began, 2)
        self.fleet.wait_idle()

    def test_6_a_client_that_leaves_before_the_prefill(self):
        """D's client hangs up while D waits; the prefill comes later and its blocks are not kept."""
        prompt = [10] + self.prompts[7][1:]
        body = {"prompt": prompt, "max_tokens": 5, "kv_transfer_params": {
            "do_remote_prefill": True, "transfer_id": "gone", "remote_engine_id": self.router.engine,
            "remote_bootstrap_addr": f"http://{HOST}:{self.p.bootstrap}"}}
        connection = client.http.client.HTTPConnection(HOST, self.d.port)
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        wait_until("D waits", 5, lambda: self.d.metrics().get("sluice:kv_pulls") == 1)
        connection.close()
        wait_until("D has let go", 5, lambda: self.d.metrics().get("sluice:kv_pulls") == 0)
        self.assertEqual(self.router.prefill(prompt, "gone").status, 200)
        self.p.wait_idle(LEASE_SECONDS / 2)


class Deaths(E2E):
    """Policy recompute: whatever becomes of P, D answers with the right tokens, and soon."""

    @classmethod
    def setUpFleet(cls):
        cls.p, cls.d = producer(), consumer()
        fleet = harness.Fleet(cls.p, cls.d).start()
        cls.ids = texts.corpus(cls.d.port)
        cls.router = Mooncake(cls.p, cls.d)
        return fleet

    def right(self, prompt, reply):
        self.assertEqual(client.tokens(reply), client.tokens(client.complete(self.d.port, prompt, N)))

    def test_1_killed_while_d_waits_and_restarted(self):
        prompt = [101] + self.ids[:200]
        with ThreadPoolExecutor(1) as pool:
            leg = pool.submit(self.router.decode, prompt, "never")
            wait_until("D waits", 5, lambda: self.d.metrics().get("sluice:kv_pulls") == 1)
            self.p.kill()
            self.right(prompt, leg.result(10))
        prompt = [102] + self.ids[:200]
        self.right(prompt, self.router.decode(prompt, "nobody"))  # nobody there at all
        self.p.start().wait_ready()
        # The router still has the engine id of the run before; nothing is told to D.
        prompt = [103] + self.ids[:200]
        before = self.d.metrics().get("vllm:external_prefix_cache_hits_total")
        self.assertEqual(len(self.router.ask(prompt)), N)
        self.assertEqual(self.d.metrics().get("vllm:external_prefix_cache_hits_total") - before, 200)
        self.fleet.wait_idle()

    def test_2_d_killed_while_it_waits(self):
        prompt = [104] + self.ids[:200]
        with ThreadPoolExecutor(1) as pool:
            leg = pool.submit(self.router.decode, prompt, "lost")
            wait_until("D waits", 5, lambda: self.d.metrics().get("sluice:kv_pulls") == 1)
            self.d.kill()
            self.assertIsInstance(leg.exception(10), OSError)
        self.assertEqual(self.router.prefill(prompt, "lost").status, 200)
        self.p.wait_idle(LEASE_SECONDS + 5)  # the lease runs out: nobody said that D has gone
        self.d.start().wait_ready()
        self.assertEqual(len(self.router.ask(prompt)), N)
        self.fleet.wait_idle()


class Mismatch(E2E):
    """P and D that do not match: D is not ready and says why; it never answers from P's KV."""

    def status(self, d):
        """The status and the text of readiness; (0, "") before anything listens."""
        try:
            reply = client.get(d.port, "/ready")
        except OSError:
            return 0, ""
        return reply.status, reply.body.decode()

    def until_loaded(self, d):
        wait_until("D is loaded", 60, lambda: "being loaded" not in self.status(d)[1] and
                   self.status(d)[0])

    def test_known_before_the_first_request(self):
        p = producer(args=["--kv-cache-dtype", "float32"])
        with self.running(p):
            d = consumer(extra={"kv_peers": [f"{HOST}:{p.ports[1]}"]})
            d.start()
            try:
                self.until_loaded(d)
                status, text = self.status(d)
                self.assertEqual(status, 503)
                self.assertIn("KV dtype", text)
                prompt = "A question that D computes by itself."
                want = client.tokens(client.complete(d.port, prompt, N))
                router = Mooncake(p, d)
                self.assertEqual(client.tokens(router.decode(prompt, "x")), want)
            finally:
                d.stop()

    def test_known_after_the_first_request_until_p_has_gone(self):
        p, d = producer(args=["--kv-cache-dtype", "float32"]), consumer("fail")
        with self.running(d):
            p.start().wait_ready()
            reply = Mooncake(p, d).decode("Another question.", "y")
            self.assertEqual(reply.status, 500)
            self.assertIn("KV dtype", reply.json()["error"]["message"])
            self.assertEqual(self.status(d)[0], 503)
            p.stop()
            wait_until("D is ready again", 15, lambda: self.status(d)[0] == 200)


class RealRouter(E2E):
    """The vllm-router program itself."""

    @classmethod
    def setUpFleet(cls):
        cls.program = os.environ.get("VLLM_ROUTER") or shutil.which("vllm-router")
        if not cls.program:
            raise unittest.SkipTest("vllm-router is not installed")
        cls.p, cls.d, cls.plain = producer(), consumer("fail"), harness.serve("plain")
        return harness.Fleet(cls.p, cls.d, cls.plain).start()

    def through(self, connector):
        port, metrics = harness.free_ports(2)
        log = os.path.join(harness.Config.logs, f"vllm-router-{connector}.log")
        command = [self.program, "--host", HOST, "--port", port, "--prometheus-port", metrics,
                   "--vllm-pd-disaggregation", "--kv-connector", connector, "--policy", "round_robin",
                   "--prefill", f"http://{HOST}:{self.p.port}", self.p.bootstrap,
                   "--decode", f"http://{HOST}:{self.d.port}",
                   "--worker-startup-timeout-secs", 30, "--worker-startup-check-interval", 1]
        with open(log, "ab") as out:
            router = subprocess.Popen([str(a) for a in command], stdout=out, stderr=out,
                                      preexec_fn=harness.die_with_parent)
        try:
            wait_until("the router is ready", 40, lambda: harness.port_taken(port)
                       and client.get(port, "/health").status == 200, 0.1)
            ids = texts.corpus(self.plain.port)
            prompts = [[i + 100] + ids[:n] for i, n in enumerate((20, 33, 100, 300) * 4)]
            want = [client.tokens(client.complete(self.plain.port, q, N)) for q in prompts]
            before = self.d.metrics().get("vllm:external_prefix_cache_hits_total")
            with ThreadPoolExecutor(4) as pool:
                got = list(pool.map(lambda q: self.answer(port, q), prompts))
            self.assertEqual(got, want)
            self.assertGreater(self.d.metrics().get("vllm:external_prefix_cache_hits_total"), before)
            stream = client.Stream(port, "/v1/chat/completions", {
                "model": harness.MODEL_NAME, "max_tokens": 5, "temperature": 0,
                "messages": [{"role": "user", "content": "Say hello."}]})
            self.assertEqual(stream.status, 200)
            text = [e["choices"][0]["delta"].get("content") for e in stream]
            self.assertTrue("".join(t for t in text if t))
            self.assertTrue(stream.done)
            stream.close()
            self.fleet.wait_idle()
        finally:
            router.kill()
            router.wait()
        client.post(self.d.port, "/reset_prefix_cache", {})

    def answer(self, port, prompt):
        reply = client.complete(port, prompt, N, model=harness.MODEL_NAME)
        return client.tokens(reply)

    def test_mooncake(self):
        self.through("mooncake")

    def test_nixl(self):
        self.through("nixl")


if __name__ == "__main__":
    harness.main()
