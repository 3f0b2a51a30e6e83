"""Many short requests through the deployment: no failure, no leak, memory flat."""
import random
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import texts
from harness import E2E

SLACK = 4 << 20  # bytes that a process may still grow by in the second half
# Small pools: the first half touches all of their memory.
POOL = ["--max-model-len", 256, "--num-gpu-blocks-override", 96, "--block-size", 16]


class Soak(E2E):
    @classmethod
    def setUpFleet(cls):
        fleet = harness.deployment(n_decode=2, p_size=POOL, d_size=POOL)
        cls.ids = texts.corpus(fleet.p.port, piece=400)
        return fleet

    def prompt(self, i):
        """20 to 60 tokens; every fourth has a prefix that others had."""
        rng = random.Random(i)
        n = rng.randrange(20, 61)
        at = 0 if i % 4 == 0 else rng.randrange(len(self.ids) - n)
        return self.ids[at:at + n]

    def burst(self, first, n, concurrency):
        def ask(i):
            fields = {"temperature": 0.8, "seed": i} if i % 2 else {}
            if i % 5:
                return len(client.tokens(client.complete(self.fleet.proxy.port, self.prompt(i), 4, **fields)))
            body = {"prompt": self.prompt(i), "max_tokens": 4, "ignore_eos": True,
                    "return_token_ids": True, **fields}
            with client.Stream(self.fleet.proxy.port, "/v1/completions", body) as stream:
                got = sum(len(c["token_ids"] or []) for e in stream for c in e["choices"])
                return got if stream.done else 0

        with ThreadPoolExecutor(concurrency) as pool:
            counts = list(pool.map(ask, range(first, first + n)))
        self.assertEqual([i for i, c in enumerate(counts) if c != 4], [])

    def measure(self):
        return {s.name: (s.resident(), s.open_files()) for s in self.fleet.servers}

    def soak(self, n, concurrency):
        self.burst(0, n // 2, concurrency)  # caches, arenas and connection pools fill
        self.fleet.wait_idle()
        before = self.measure()
        self.burst(n // 2, n - n // 2, concurrency)
        self.fleet.wait_idle()
        for name, (resident, files) in self.measure().items():
            if not harness.Config.sanitized:  # which keeps freed memory; leaks show at the end
                self.assertLessEqual(resident, before[name][0] + SLACK, f"{name}: memory grew")
            # Idle connections come and go; a leak would be one a request.
            self.assertLessEqual(files, before[name][1] + concurrency, f"{name}: open files grew")
        for s in self.fleet.instances():
            m = s.metrics()
            self.assertEqual(m.get("vllm:request_success_total", finished_reason="error"), 0, s.name)
            self.assertEqual(m.get("vllm:request_success_total", finished_reason="abort"), 0, s.name)

    def test_1_concurrency_8(self):
        self.soak(2000, 8)

    def test_2_concurrency_16(self):
        self.soak(2000, 16)


if __name__ == "__main__":
    harness.main()
