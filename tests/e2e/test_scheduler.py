"""Small pools, cached prompts and equal request ids: every request ends, with the tokens it should."""
import time
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import texts
from harness import E2E

ROOMY = ["--max-model-len", 1024, "--num-gpu-blocks-override", 128, "--block-size", 16]


def pool(blocks, max_len):
    return ["--max-model-len", max_len, "--num-gpu-blocks-override", blocks, "--block-size", 16]


def cached(reply):
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


class SmallPools(E2E):
    """`solo` has room for everything; its answers are the reference."""

    @classmethod
    def setUpFleet(cls):
        cls.solo = harness.serve("solo", size=ROOMY)
        fleet = harness.Fleet(cls.solo).start()
        cls.ids = texts.corpus(cls.solo.port)
        return fleet

    def test_prompt_that_never_fits(self):
        """A context that the pool cannot hold is refused at start or capped; nobody is blocked."""
        server = harness.serve("tiny", size=pool(8, 256))
        server.start()
        try:
            harness.wait_until("ready or ended", 30,
                               lambda: not server.running() or server.status("/health") == 200)
            if not server.running():
                self.assertNotEqual(server.child.returncode, 0)
                self.assertIn("256", server.tail())
                return
            began = time.monotonic()
            self.expect(client.complete(server.port, self.ids[:200], 1, timeout=10), 400)
            self.assertLess(time.monotonic() - began, 1 * harness.Config.slow)
            self.assertEqual(client.complete(server.port, self.ids[:10], 4).status, 200)
        finally:
            server.stop()

    def contend(self, port):
        """Six clients whose requests together need 42 blocks of the 12 there are."""
        prompts = [self.ids[i * 50:i * 50 + 40] for i in range(6)]
        want = [client.tokens(client.complete(self.solo.port, p, 60)) for p in prompts]
        with ThreadPoolExecutor(6) as clients:
            got = list(clients.map(
                lambda p: client.tokens(client.complete(port, p, 60, timeout=60)), prompts))
        self.assertEqual(got, want)

    def test_decode_runs_out_of_blocks(self):
        with self.running(harness.serve("small", size=pool(12, 192))) as server:
            self.contend(server.port)
            self.assertGreater(server.metrics().get("vllm:num_preemptions_total"), 0)
            server.wait_idle()

    def test_d_runs_out_of_blocks(self):
        fleet = harness.deployment(p_size=ROOMY, d_size=pool(12, 192))
        try:
            self.contend(fleet.proxy.port)
            fleet.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()

    def test_churn_through_p_and_d(self):
        """More prompts with shared prefixes than the pools hold, in random order: evicted blocks are
        never taken for what they held."""
        fleet = harness.deployment(p_size=pool(16, 192), d_size=pool(16, 192))
        try:
            prompts = [self.ids[(i % 5) * 100:(i % 5) * 100 + 32] + self.ids[i * 20:i * 20 + 13 + i]
                       for i in range(20)]
            want = [client.tokens(client.complete(self.solo.port, p, 5)) for p in prompts]
            order = [(i * 7 + i * i) % 20 for i in range(120)]
            with ThreadPoolExecutor(4) as clients:
                got = list(clients.map(
                    lambda i: client.tokens(client.complete(fleet.proxy.port, prompts[i], 5)), order))
            self.assertEqual([i for i, g in zip(order, got) if g != want[i]], [])
            fleet.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()


class PrefixCache(E2E):
    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", size=ROOMY)
        fleet = harness.Fleet(cls.plain).start()
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def test_salt(self):
        """Another salt: no hit; the same: a hit. The last token is always computed."""
        prompt = self.ids[500:564]
        got = [cached(client.complete(self.plain.port, prompt, 1, **({"cache_salt": s} if s else {})))
               for s in ("a", "a", "b", None)]
        self.assertEqual(got, [0, 48, 0, 0])

    def test_hit_rate_counts_each_request_once(self):
        before = self.plain.metrics()
        prompt = self.ids[600:650]
        for _ in range(3):
            client.complete(self.plain.port, prompt, 1)
        after = self.plain.metrics()
        self.assertEqual(after.get("vllm:prefix_cache_queries_total")
                         - before.get("vllm:prefix_cache_queries_total"), 150)
        self.assertEqual(after.get("vllm:prefix_cache_hits_total")
                         - before.get("vllm:prefix_cache_hits_total"), 96)

    def full_hits(self, p_cache, d_cache):
        """Prompts around the block size, three times each, while either side may have them cached."""
        def flags(on):
            return ["--enable-prefix-caching" if on else "--no-enable-prefix-caching"]
        fleet = harness.deployment(p_args=flags(p_cache), d_args=flags(d_cache), p_size=ROOMY, d_size=ROOMY)
        try:
            for n in (15, 16, 17, 32):
                prompt = self.ids[n * 10:n * 11]
                want = client.tokens(client.complete(self.plain.port, prompt, 6))
                for _ in range(3):
                    reply = client.complete(fleet.proxy.port, prompt, 6)
                    self.assertEqual(client.tokens(reply), want, n)
                    self.assertLess(cached(reply), n)
            fleet.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()

    def test_p_and_d_cache(self):
        self.full_hits(True, True)

    def test_only_p_caches(self):
        self.full_hits(True, False)

    def test_only_d_caches(self):
        self.full_hits(False, True)

    def test_none_caches(self):
        self.full_hits(False, False)


class SharedIds(E2E):
    """What callers may repeat, and what they may ask for several times."""

    @classmethod
    def setUpFleet(cls):
        fleet = harness.deployment(p_size=ROOMY, d_size=ROOMY)
        cls.plain = fleet.add(harness.serve("plain", size=ROOMY).start().wait_ready())
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def test_equal_request_ids(self):
        prompts = [self.ids[i * 30:i * 30 + 25 + i] for i in range(20)]
        want = [client.tokens(client.complete(self.plain.port, p, 6)) for p in prompts]
        with ThreadPoolExecutor(20) as clients:
            got = list(clients.map(lambda p: client.tokens(client.complete(
                self.fleet.proxy.port, p, 6, headers={"X-Request-Id": "x"})), prompts))
        self.assertEqual(got, want)
        self.fleet.wait_idle()
        for s in self.fleet.instances():
            self.assertEqual([v for _, _, v in s.metrics().samples if v < 0], [], s.name)

    def choices(self, **fields):
        body = {"prompt": self.ids[700:740], "max_tokens": 6, "n": 3, "ignore_eos": True, **fields}
        return client.post(self.fleet.proxy.port, "/v1/completions", body)

    def test_several_choices(self):
        """Three choices of one prompt: prefilled and moved once, or refused by name."""
        before = self.fleet.p.metrics().get("vllm:prompt_tokens_total")
        reply = self.choices(temperature=0.9, seed=7)
        if reply.status == 400:
            self.expect(reply, 400, "n")
            return
        self.assertEqual(reply.status, 200, reply)
        texts_of = lambda r: [c["text"] for c in sorted(r.json()["choices"], key=lambda c: c["index"])]
        first = texts_of(reply)
        self.assertEqual(len(set(first)), 3)
        self.assertEqual(reply.json()["usage"]["prompt_tokens"], 40)
        self.assertEqual(self.fleet.p.metrics().get("vllm:prompt_tokens_total") - before, 40)
        self.assertEqual(texts_of(self.choices(temperature=0.9, seed=7)), first)
        self.fleet.wait_idle()


if __name__ == "__main__":
    harness.main()
