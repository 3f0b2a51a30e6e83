"""MooncakeLayerwiseConnector: KV goes to D layer by layer while P computes the prompt. The same tokens as one
plain process gives, and most of the KV is on its way before the prompt is whole. (test_matrix.py has the shapes.)"""
import json
import os
import signal
import threading

import client
import harness
import texts
from harness import E2E, wait_until
from test_models import folder_of, prompts_of, size
from test_ranks import ask_all, tp_size

LENGTHS = [1, 15, 16, 17, 33, 64, 100, 257, 700]
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 99}}
ARGS = ["--max-num-batched-tokens", 128, "--dtype", "float32"]
CONNECTOR = "MooncakeLayerwiseConnector"
TOGETHER = ["--kv-connector", CONNECTOR]


def shape(pp, tp):
    return (["-pp", pp] if pp > 1 else []) + (["-tp", tp] if tp > 1 else [])


def producer(args=(), **more):
    return harness.serve("P", [*ARGS, *args], "kv_producer", {"kv_connector": CONNECTOR, "kv_port": "0"}, **more)


def consumer(args=(), policy="fail", **more):
    return harness.serve("D", [*ARGS, *args], "kv_consumer",
                         {"kv_connector": CONNECTOR, "kv_load_failure_policy": policy}, **more)


def early(p):
    """The share of what P has sent that went before the last layer had its prompt."""
    m = p.metrics()
    return m.get("sluice:kv_early_bytes_total") / m.get("sluice:kv_transfer_bytes_total", direction="sent")


class Equal(E2E):
    """Policy fail: what is answered came over the wire, or was all cached."""

    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", ARGS)
        fleet = harness.Fleet(cls.plain).start()
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def same(self, p_shape, d_shape, p_args=(), d_args=()):
        prompts = texts.slices(self.ids, LENGTHS, shared=3)
        p, d = producer([*shape(*p_shape), *p_args]), consumer([*shape(*d_shape), *d_args])
        with self.running(p, d, harness.proxy([p], [d], TOGETHER)) as (p, d, proxy):
            for what, fields in SAMPLINGS.items():
                with self.subTest(what):
                    want = ask_all(self.plain.port, prompts, fields)
                    self.assertEqual(ask_all(proxy.port, prompts, fields), want)
            for s in (p, d):
                s.wait_idle()
            m = d.metrics()
            self.assertEqual(m.get("sluice:kv_transfer_failures_total"), 0, d.tail())
            self.assertEqual(m.get("sluice:kv_checksum_errors_total"), 0)
            received = m.get("sluice:kv_transfer_bytes_total", direction="received")
            self.assertEqual(p.metrics().get("sluice:kv_transfer_bytes_total", direction="sent"), received)
            self.assertGreater(early(p), 0)
            print(f"  P {p_shape} to D {d_shape}: {early(p):.0%} of the KV went before the last layer had its prompt")

    def test_one_to_one(self):
        self.same((1, 1), (1, 1))

    def test_stages_to_tensor_parallel(self):
        self.same((2, 1), (1, tp_size()), d_args=["--block-size", 32])

    def test_pressure(self):
        """Few blocks on P: prompts wait for others', and none that is pushed gives way."""
        few = ["--max-model-len", 1024, "--num-gpu-blocks-override", 72, "--block-size", 16]
        prompts = [self.ids[i:i + 300] for i in range(0, 1200, 150)]
        want = ask_all(self.plain.port, prompts, {})
        p, d = producer(size=few), consumer()
        with self.running(p, d, harness.proxy([p], [d], TOGETHER)) as (p, d, proxy):
            got = [None] * len(prompts)

            def ask(i):
                got[i] = client.tokens(client.complete(proxy.port, prompts[i], len(want[i])))

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(got, want)
            self.assertEqual(p.metrics().get("vllm:num_preemptions_total"), 0)
            for s in (p, d):
                s.wait_idle()

    def test_pull_from_a_producer_that_pushes(self):
        """One leg after the other, and a D with the other connector: KV is pulled when it is whole."""
        prompt = self.ids[:257]
        want = client.tokens(client.complete(self.plain.port, prompt, 8))
        p = producer()
        d = harness.serve("D", ARGS, "kv_consumer", {"kv_load_failure_policy": "fail"})
        with self.running(p, d, harness.proxy([p], [d])) as (p, d, proxy):
            self.assertEqual(client.tokens(client.complete(proxy.port, prompt, 8)), want)
            self.assertEqual(p.metrics().get("sluice:kv_early_bytes_total"), 0)


class Latents(E2E):
    """A tiny DeepSeek with a layer for drafts on both sides, which goes last: the recorded tokens."""

    @classmethod
    def setUpFleet(cls):
        spec = json.dumps({"method": "deepseek_mtp", "num_speculative_tokens": 2})
        more = {"size": size(16), "model": folder_of("deepseek_v3_tiny")}
        cls.p = producer(["-pp", 2, "--speculative-config", spec], **more)
        cls.d = consumer(["--speculative-config", spec], **more)
        return harness.Fleet(cls.p, cls.d, harness.proxy([cls.p], [cls.d], TOGETHER)).start()

    def test_recorded_tokens(self):
        proxy = self.fleet.servers[-1]
        for name, ids, greedy in prompts_of("deepseek_v3_tiny"):
            with self.subTest(name):
                self.assertEqual(client.tokens(client.complete(proxy.port, ids, len(greedy))), greedy)
        self.fleet.wait_idle()
        m = self.d.metrics()
        self.assertEqual(m.get("sluice:kv_transfer_failures_total"), 0, self.d.tail())
        self.assertGreater(m.get("vllm:spec_decode_num_accepted_tokens_total"), 0)


class Faults(E2E):
    """While KV is on its way: P's steps take a while here."""

    SLOW = ["--step-delay", 0.3]

    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", ARGS)
        fleet = harness.Fleet(cls.plain).start()
        cls.prompt = texts.corpus(cls.plain.port)[:1000]
        cls.want = client.tokens(client.complete(cls.plain.port, cls.prompt, 8))
        return fleet

    def begun(self, p):
        wait_until("P sends", 30, lambda: p.metrics().get("sluice:kv_early_bytes_total") > 0 or None)

    def test_p_dies(self):
        p, d = producer(["-pp", 2, *self.SLOW]), consumer(policy="recompute")
        with self.running(d):
            p.start().wait_ready()
            proxy = harness.proxy([p], [d], TOGETHER).start()
            proxy.wait_ready()
            replies = []
            t = threading.Thread(target=lambda: replies.append(client.complete(proxy.port, self.prompt, 8)))
            t.start()
            self.begun(p)
            os.kill(p.child.pid, signal.SIGKILL)
            t.join()
            p.wait_end(60)
            self.assertEqual(client.tokens(replies[0]), self.want)
            self.assertEqual(d.metrics().get("sluice:kv_transfer_failures_total"), 1)
            d.wait_idle()
            proxy.stop()

    def test_d_dies(self):
        p, d = producer(self.SLOW), consumer()
        with self.running(p):
            d.start().wait_ready()
            proxy = harness.proxy([p], [d], [*TOGETHER, "--max-retries", 0]).start()
            proxy.wait_ready()
            replies = []
            t = threading.Thread(target=lambda: replies.append(client.post(
                proxy.port, "/v1/completions", {"prompt": self.prompt, "max_tokens": 8})))
            t.start()
            self.begun(p)
            d.kill()
            t.join()
            self.assertEqual(replies[0].status, 502)
            p.wait_idle()
            self.assertEqual(client.tokens(client.complete(p.port, self.prompt, 8)), self.want)
            proxy.stop()

    def test_the_client_leaves(self):
        p, d = producer(self.SLOW), consumer()
        with self.running(p, d, harness.proxy([p], [d], TOGETHER)) as (p, d, proxy):
            gone = client.send_only(proxy.port, "/v1/completions", {"prompt": self.prompt, "max_tokens": 8})
            self.begun(p)
            gone.close()
            for s in (p, d):
                s.wait_idle()
            self.assertEqual(client.tokens(client.complete(proxy.port, self.prompt, 8)), self.want)
            for s in (p, d):
                s.wait_idle()


if __name__ == "__main__":
    harness.main()
