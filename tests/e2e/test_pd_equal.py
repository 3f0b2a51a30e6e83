"""Prefill on P, KV moved, decode on D: the same tokens as one plain instance gives."""
import json
import unittest
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import texts
from harness import E2E

CONCURRENCY = 8

# 200 lengths: all short ones (so 15, 16, 17, 31, 32, 33 too), both sides of block boundaries further up,
# and long ones up to 2,000. The pools hold them all, so that the second pass finds them cached.
LENGTHS = [*range(1, 71)]
for edge in (80, 96, 112, 128, 144, 160, 192, 256, 320, 512):
    LENGTHS += [edge - 1, edge, edge + 1]
LENGTHS += [71 + (i * 41) % 60 for i in range(94)]
LENGTHS += [767, 1024, 1025, 1500, 1999, 2000]
POOL = ["--max-model-len", 2304, "--num-gpu-blocks-override", 1700, "--block-size", 16]

SAMPLINGS = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 1234},
}


def ask_all(port, prompts, fields):
    """The generated ids for each prompt, CONCURRENCY at a time. Each has its own seed and length."""
    def ask(job):
        i, prompt = job
        more = dict(fields, seed=fields["seed"] + i) if "seed" in fields else fields
        return client.tokens(client.complete(port, prompt, 4 + i % 9, **more))

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(ask, enumerate(prompts)))


class PdEqual(E2E):
    @classmethod
    def setUpFleet(cls):
        fleet = harness.deployment(n_decode=2, p_size=POOL, d_size=POOL)
        cls.plain = fleet.add(harness.serve("plain", size=POOL).start().wait_ready())
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def same(self, fields):
        prompts = texts.slices(self.ids, LENGTHS, shared=3)
        self.assertEqual(len(prompts), 200)
        want = ask_all(self.plain.port, prompts, fields)
        got = ask_all(self.fleet.proxy.port, prompts, fields)
        wrong = [(len(p), w, g) for p, w, g in zip(prompts, want, got) if w != g]
        self.assertEqual(wrong, [], "prompt length, plain, through P and D")
        self.fleet.wait_idle()

    def test_1_greedy(self):
        before = self.fleet.p.metrics().get("vllm:prompt_tokens_total")
        self.same(SAMPLINGS["greedy"])
        self.assertGreater(self.fleet.p.metrics().get("vllm:prompt_tokens_total") - before, 20000)
        for d in self.fleet.ds:
            m = d.metrics()
            self.assertGreater(m.get("sluice:kv_transfer_bytes_total"), 0, d.name)
            self.assertGreater(m.get("vllm:generation_tokens_total"), 0, d.name)

    def test_2_seeded(self):
        """The same prompts again: P and D have them cached now."""
        hits = self.fleet.p.metrics().get("vllm:prefix_cache_hits_total")
        self.same(SAMPLINGS["seeded"])
        self.assertGreater(self.fleet.p.metrics().get("vllm:prefix_cache_hits_total"), hits)

    def test_3_streamed(self):
        """A stream through the proxy carries the same ids, one event a token."""
        prompt = self.ids[:100]
        want = client.tokens(client.complete(self.plain.port, prompt, 12))
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True}
        with client.Stream(self.fleet.proxy.port, "/v1/completions", body) as stream:
            got = [i for event in stream for c in event["choices"] for i in c["token_ids"] or []]
            self.assertTrue(stream.done)
        self.assertEqual(got, want)

    def test_4_long_output(self):
        """Decode goes on over many blocks of its own."""
        prompt = self.ids[200:277]
        want = client.tokens(client.complete(self.plain.port, prompt, 200))
        self.assertEqual(client.tokens(client.complete(self.fleet.proxy.port, prompt, 200)), want)

    def test_5_logprobs(self):
        """Log-probabilities come from D, computed over moved KV: equal too."""
        prompt = self.ids[300:350]
        def logprobs(port):
            reply = client.complete(port, prompt, 6, logprobs=3)
            return reply.json()["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(logprobs(self.fleet.proxy.port), logprobs(self.plain.port))


class BlockSizes(E2E):
    """P and D whose blocks differ in size: the same tokens, whichever is larger."""

    def differing(self, p_block, d_block):
        size = ["--max-model-len", 1024, "--num-gpu-blocks-override", 256]
        fleet = harness.deployment(p_size=[*size, "--block-size", p_block],
                                   d_size=[*size, "--block-size", d_block])
        try:
            plain = fleet.add(harness.serve("plain").start().wait_ready())
            ids = texts.corpus(plain.port)
            prompts = texts.slices(ids, [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 500], shared=2)
            for _ in ("cold", "cached"):
                want = ask_all(plain.port, prompts, {})
                self.assertEqual(ask_all(fleet.proxy.port, prompts, {}), want)
            self.assertGreater(fleet.d.metrics().get("sluice:kv_transfer_bytes_total"), 0)
            fleet.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()

    def test_p16_d32(self):
        self.differing(16, 32)

    def test_p32_d16(self):
        self.differing(32, 16)


def golden(name):
    with open(harness.shared("golden", "smollm2", name), encoding="utf-8") as f:
        return json.load(f)


class Goldens(E2E):
    """Answers recorded from an independent engine on the same file, through P and D in float32."""

    @classmethod
    def setUpFleet(cls):
        if "SmolLM2-135M-Instruct.Q4_1" not in harness.Config.model:
            raise unittest.SkipTest("another model: these answers are SmolLM2's")
        cls.greedy = golden("greedy.json")["prompts"]
        cls.chats = golden("chat.json")["conversations"]
        args = ["--dtype", "float32"]
        return harness.deployment(p_args=args, d_args=args)

    def test_greedy(self):
        """As many tokens as are certain in float32 (`exact_prefix` at 0.001), 24 at most."""
        def ask(one):
            n = min(one["exact_prefix"]["0.001"], 24)
            got = client.tokens(client.complete(self.fleet.proxy.port, one["ids"], max(n, 1)))
            return one["name"], got[:n], one["greedy"][:n]

        some = [one for one in self.greedy if one["n_ids"] <= 130][::3]
        self.assertGreater(len(some), 8)
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for name, got, want in pool.map(ask, some):
                self.assertEqual(got, want, name)

    def test_chat_ids(self):
        """The template and the tokenizer give the recorded ids."""
        for one in self.chats:
            with self.subTest(one["name"]):
                body = {"messages": one["messages"], "max_tokens": 1, "return_token_ids": True}
                reply = client.post(self.fleet.p.port, "/v1/chat/completions", body)
                self.assertEqual(reply.status, 200, reply)
                self.assertEqual(reply.json()["prompt_token_ids"], one["with_generation_prompt"]["ids"])


if __name__ == "__main__":
    harness.main()
