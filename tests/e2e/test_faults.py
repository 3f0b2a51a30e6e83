"""Peers that die, hang or lie, and clients that leave: every pool returns to empty, no wrong token is
ever given, and the next request works."""
import contextlib
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import legs
import texts
from harness import E2E, wait_until

LEASE_SECONDS = 3  # a lease that nobody ends; long against a pull, short against a test
ENV = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(LEASE_SECONDS)}
N = 8


# Chunks and tokens take their time, so that a fault can come between two of them.
SLOW_PREFILL = ["--max-num-batched-tokens", 128, "--step-delay", 0.05]
SLOW_DECODE = ["--step-delay", 0.003]


class FaultCase(E2E):
    policy, p_args, d_args, proxy_args = "recompute", None, SLOW_DECODE, None

    @classmethod
    def setUpFleet(cls):
        fleet = harness.deployment(env=ENV, p_args=cls.p_args, d_args=cls.d_args,
                                   proxy_args=cls.proxy_args,
                                   d_kv={"kv_load_failure_policy": cls.policy})
        cls.p, cls.d, cls.proxy = fleet.p, fleet.d, fleet.proxy
        ids = texts.corpus(cls.d.port)
        # Prompts that differ in their first block, so that no test finds another's KV in a cache.
        cls.long = [[i + 100] + ids[:1499] for i in range(64)]
        cls.short = [[i + 200] + ids[:99] for i in range(64)]
        cls.next = 0
        return fleet

    def setUp(self):
        for s in self.fleet.servers:  # those that a test before left dead
            if not s.running():
                self.bring_back(s)

    def fresh(self, prompts):
        type(self).next += 1
        return prompts[type(self).next % len(prompts)]

    def works_again(self):
        """A request through the proxy succeeds soon, and leaves nothing behind."""
        prompt = self.fresh(self.short)
        def ask():
            return client.complete(self.proxy.port, prompt, N).status == 200
        wait_until("a request succeeds again", 10, ask, 0.1)
        self.fleet.wait_idle(LEASE_SECONDS + 10)

    def plain(self, prompt):
        """What D gives by itself. Asked after the faulty request: it fills D's cache."""
        return client.tokens(client.complete(self.d.port, prompt, N))

    @contextlib.contextmanager
    def d_standing_still(self):
        """D takes connections but does nothing, so that P's lease stays."""
        self.d.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.d.signal(signal.SIGCONT)

    def bring_back(self, server):
        server.start().wait_ready()


class Faults(FaultCase):
    """kv_load_failure_policy recompute: D prefills itself what it could not get."""

    def test_d_killed_while_it_pulls(self):
        prompt = self.fresh(self.long)
        params = legs.prefill(self.p.port, prompt)
        self.assertEqual(self.p.metrics().get("sluice:kv_leases"), 1)
        self.p.signal(signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(1) as pool:
                leg = pool.submit(lambda: legs.decode(self.d.port, prompt, params, N))
                time.sleep(0.3)
                self.assertFalse(leg.done(), "the pull ended although P stands still")
                self.d.kill()
                self.assertIsInstance(leg.exception(10), OSError)
        finally:
            self.p.signal(signal.SIGCONT)
        self.p.wait_idle(LEASE_SECONDS + 5)
        self.bring_back(self.d)
        self.works_again()

    def test_d_killed_at_any_moment(self):
        """kill -9 of D at a random point of a request through the proxy: an error or a broken stream,
        never a normal end with wrong tokens."""
        rng = random.Random(5)
        for _ in range(4):
            prompt = self.fresh(self.long)
            body = {"prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
            with ThreadPoolExecutor(1) as pool:
                def ask():
                    with client.Stream(self.proxy.port, "/v1/completions", body) as stream:
                        events = list(stream)
                        return stream.status, stream.done, events
                leg = pool.submit(ask)
                wait_until("P has the request", 20, lambda: self.p.usage() or leg.done(), 0.005)
                time.sleep(rng.uniform(0, 0.5))
                self.d.kill()
                try:
                    status, done, events = leg.result(20)
                    self.assertFalse(done, "a stream whose D died ended as if all were well")
                    self.assertTrue(status >= 500 or "error" in events[-1], (status, events[-1:]))
                except OSError:
                    self.fail("the proxy broke the connection instead of saying what happened")
            self.p.wait_idle(LEASE_SECONDS + 5)
            self.bring_back(self.d)
        self.works_again()

    def test_p_killed_before_the_pull(self):
        prompt = self.fresh(self.long)
        params = legs.prefill(self.p.port, prompt)
        self.p.kill()
        got = client.tokens(legs.decode(self.d.port, prompt, params, N))
        self.assertEqual(got, self.plain(prompt))
        self.d.wait_idle()
        self.bring_back(self.p)
        self.works_again()

    def test_p_killed_while_it_prefills(self):
        prompt = self.fresh(self.long)
        with ThreadPoolExecutor(1) as pool:
            leg = pool.submit(lambda: client.complete(self.proxy.port, prompt, N))
            wait_until("P runs it", 20, lambda: self.p.usage(), 0.005)
            self.p.kill()
            reply = leg.result(20)
        self.expect(reply, reply.status)
        self.assertIn(reply.status, (502, 503), reply)
        self.d.wait_idle()
        self.bring_back(self.p)
        self.works_again()

    def test_p_restarts_on_the_same_port(self):
        """D and the proxy need no hint: the first request after the restart works."""
        for _ in range(3):
            self.p.kill()
            self.bring_back(self.p)
            prompt = self.fresh(self.short)
            def ask():
                return client.complete(self.proxy.port, prompt, N)
            reply = wait_until("the proxy sees P again", 5,
                               lambda: (r := ask()).status == 200 and r, 0.1)
            moved = self.d.metrics().get("sluice:kv_transfer_bytes_total")
            prompt = self.fresh(self.short)
            got = client.tokens(ask())
            self.assertGreater(self.d.metrics().get("sluice:kv_transfer_bytes_total"), moved)
            self.assertEqual(got, self.plain(prompt))
            self.assertEqual(reply.status, 200)
        self.fleet.wait_idle(LEASE_SECONDS + 5)

    def test_old_parameters_after_a_restart(self):
        """What P promised before it was killed is not taken from the P that came after."""
        prompt = self.fresh(self.long)
        params = legs.prefill(self.p.port, prompt)
        self.p.kill()
        self.bring_back(self.p)
        legs.prefill(self.p.port, self.fresh(self.long))  # other KV in the same blocks
        got = client.tokens(legs.decode(self.d.port, prompt, params, N))
        self.assertEqual(got, self.plain(prompt))
        self.fleet.wait_idle(LEASE_SECONDS + 5)

    def test_parameters_that_lie(self):
        """A wrong port, request, engine or block list: D computes the prompt itself."""
        closed = harness.free_ports(1)[0]
        lies = [{"remote_port": closed}, {"remote_request_id": "nobody-knows-this"},
                {"remote_engine_id": "another-engine"}, {"remote_block_ids": [999999] * 7},
                {"remote_block_ids": []}]
        for lie in lies:
            with self.subTest(lie):
                prompt = self.fresh(self.short)
                params = legs.prefill(self.p.port, prompt)
                reply = legs.decode(self.d.port, prompt, {**params, **lie}, N)
                if reply.status == 400:  # refused outright is as good
                    self.expect(reply, 400)
                else:
                    self.assertEqual(client.tokens(reply), self.plain(prompt))
        self.fleet.wait_idle(LEASE_SECONDS + 5)

    def test_decode_never_comes(self):
        """The proxy (or D) is gone between the legs: the lease expires."""
        legs.prefill(self.p.port, self.fresh(self.long))
        self.assertEqual(self.p.metrics().get("sluice:kv_leases"), 1)
        self.p.wait_idle(LEASE_SECONDS + 5)
        self.works_again()

    def test_proxy_killed_between_the_legs(self):
        with self.d_standing_still(), ThreadPoolExecutor(1) as pool:
            leg = pool.submit(lambda: client.complete(self.proxy.port, self.fresh(self.long), 200))
            wait_until("P has a lease", 30, lambda: self.p.metrics().get("sluice:kv_leases"))
            self.proxy.kill()
            self.assertIsInstance(leg.exception(10), OSError)
        self.fleet.wait_idle(LEASE_SECONDS + 10)
        self.bring_back(self.proxy)
        self.works_again()


class Policy(FaultCase):
    """kv_load_failure_policy fail: the request fails, saying so."""
    policy = "fail"

    def test_p_killed_before_the_pull(self):
        prompt = self.fresh(self.long)
        params = legs.prefill(self.p.port, prompt)
        self.p.kill()
        reply = legs.decode(self.d.port, prompt, params, N)
        self.expect(reply, reply.status)
        self.assertGreaterEqual(reply.status, 500)
        self.assertIn("kv", reply.json()["error"]["message"].lower())
        self.d.wait_idle()
        self.bring_back(self.p)
        self.works_again()


class ClientLeaves(FaultCase):
    """The client closes its socket at each phase: no block stays, and the next request works."""
    p_args = SLOW_PREFILL
    # Else a D that stands still, or a machine that is busy, would end requests before their moment.
    proxy_args = ["--disable-health-check"]

    def leave_when(self, prompt, n, moment):
        sock = client.send_only(self.proxy.port, "/v1/completions",
                                {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True})
        try:
            wait_until("the moment to leave", 30, moment, 0.002)
        finally:
            sock.close()

    def test_while_p_prefills(self):
        aborted = self.p.metrics().get("vllm:request_success_total", finished_reason="abort")
        self.leave_when(self.fresh(self.long), N, lambda: self.p.metrics().get("vllm:num_requests_running"))
        wait_until("P stops computing", 2, lambda: not self.p.usage(), 0.02)
        self.assertEqual(self.p.metrics().get("vllm:request_success_total", finished_reason="abort"),
                         aborted + 1)
        self.works_again()

    def test_between_the_legs(self):
        """D has not answered yet: the proxy ends the lease at once, long before it would expire."""
        with self.d_standing_still():
            self.leave_when(self.fresh(self.long), N, lambda: self.p.metrics().get("sluice:kv_leases"))
            self.p.wait_idle(1)
        self.fleet.wait_idle()
        self.works_again()

    def test_while_d_decodes(self):
        self.leave_when(self.fresh(self.short), 1000,
                        lambda: self.d.metrics().get("vllm:num_requests_running"))
        wait_until("D stops computing", 2, lambda: not self.d.usage(), 0.02)
        self.works_again()

    def test_while_d_streams(self):
        body = {"prompt": self.fresh(self.short), "max_tokens": 1000, "temperature": 0, "ignore_eos": True}
        stream = client.Stream(self.proxy.port, "/v1/completions", body)
        next(iter(stream))
        stream.hang_up()
        wait_until("D stops computing", 2, lambda: not self.d.usage(), 0.02)
        self.works_again()

    def test_while_queued(self):
        """P runs one request at a time; the second client leaves while it waits."""
        p = harness.serve("P1", ["--max-num-seqs", 1, *SLOW_PREFILL], "kv_producer", env=ENV)
        d = harness.serve("D", role="kv_consumer", env=ENV)
        with self.running(p, d):
            front = harness.proxy([p], [d]).start().wait_ready()
            first, second = self.fresh(self.long), self.fresh(self.long)
            with ThreadPoolExecutor(1) as pool:
                leg = pool.submit(lambda: client.complete(front.port, first, N))
                wait_until("the first runs", 20, lambda: p.metrics().get("vllm:num_requests_running"), 0.005)
                sock = client.send_only(front.port, "/v1/completions", {"prompt": second, "max_tokens": N})
                wait_until("the second waits", 20,
                           lambda: p.metrics().get("vllm:num_requests_waiting"), 0.002)
                sock.close()
                wait_until("it is gone", 2, lambda: not p.metrics().get("vllm:num_requests_waiting"))
                self.assertEqual(leg.result(30).status, 200)
            p.wait_idle()
            d.wait_idle()
            front.stop()

    def test_at_random_moments(self):
        """Eight clients, each hangs up after a random time."""
        def one(i):
            rng = random.Random(i)
            for _ in range(12):
                prompt = [rng.randrange(17, 500)] + self.long[0][:rng.choice([20, 100, 400])]
                sock = client.send_only(self.proxy.port, "/v1/completions",
                                        {"prompt": prompt, "max_tokens": 40, "stream": i % 2 == 0})
                time.sleep(rng.uniform(0, 0.25))
                sock.close()

        clients = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for t in clients:
            t.start()
        for t in clients:
            t.join()
        self.fleet.wait_idle(LEASE_SECONDS + 10)
        self.works_again()


class Mismatch(E2E):
    """Instances that must not exchange KV refuse each other, with both sides' values in the log."""

    def refused(self, what, p, d, words):
        with self.running(p, d):
            ids = texts.corpus(d.port)[:70]
            params = legs.prefill(p.port, ids)
            reply = legs.decode(d.port, ids, params, N)
            self.expect(reply, reply.status)
            self.assertGreaterEqual(reply.status, 500, what)
            for word in words:
                self.assertIn(word, reply.json()["error"]["message"] + d.text(), what)
            d.wait_idle()
            p.wait_idle(LEASE_SECONDS + 5)

    def pair(self, p_args=None, d_args=None, p_kv=None, d_kv=None):
        p = harness.serve("P", p_args, "kv_producer", p_kv, ENV)
        d = harness.serve("D", d_args, "kv_consumer", {"kv_load_failure_policy": "fail", **(d_kv or {})}, ENV)
        return p, d

    def test_dtype(self):
        self.refused("dtype", *self.pair(p_args=["--dtype", "float32"]), ["KV dtype", "F32", "F16"])

    def test_secret(self):
        def secret(word):
            return {"kv_connector_extra_config": {"kv_secret": word}}
        for p_kv, d_kv in ((secret("a"), secret("b")), (secret("a"), None), (None, secret("b"))):
            with self.subTest(f"P {p_kv}, D {d_kv}"):
                self.refused("secret", *self.pair(p_kv=p_kv, d_kv=d_kv), ["secret"])

    def test_equal_secrets(self):
        kv = {"kv_connector_extra_config": {"kv_secret": "one and the same"}}
        p, d = self.pair(p_kv=kv, d_kv=kv)
        with self.running(p, d):
            ids = texts.corpus(d.port)[:70]
            self.assertEqual(len(client.tokens(legs.decode(d.port, ids, legs.prefill(p.port, ids), N))), N)


if __name__ == "__main__":
    harness.main()
