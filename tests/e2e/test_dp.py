#!/usr/bin/env python3
"""Data-parallel groups: several instances that share experts give the tokens of one, through the launcher
and the proxy, and come together again when one of them has died."""
import os
import random
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import client
import harness
from harness import E2E, wait_until

MODEL = os.path.join(harness.ROOT, "tests", "data", "golden", "models", "qwen3_moe_tiny")
ARGS = ["--dtype", "float32", "--skip-tokenizer-init"]
SIZE = ["--max-model-len", 256, "--num-gpu-blocks-override", 96, "--block-size", 16]
PATIENCE = 60
N = 4


def prompts(n=12):
    return [[2 + (i * 2654435761 + k * 977 >> 8) % 200 for i in range(1 + 11 * k)] for k in range(n)]


def ask(port, prompt, n=8, **fields):
    return client.complete(port, prompt, n, timeout=PATIENCE * harness.Config.slow, **fields)


def ask_all(port, asked, at_once=8):
    """Tokens of each, greedy and seeded by turns."""
    def one(job):
        i, prompt = job
        fields = {"temperature": 0.8, "seed": 40 + i} if i % 3 == 1 else {}
        return client.tokens(ask(port, prompt, 3 + i % 6, **fields))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, enumerate(asked)))


def group(n, args=(), role=None, kv=None, base=ARGS, size=SIZE, model=MODEL):
    """The instances of a group on free ports, not started."""
    rpc = harness.free_ports(1)[0]
    kv_port = free_row(n) if role else None

    def one(rank):
        more = ["-dp", n, "--data-parallel-rank", rank, "--data-parallel-address", client.HOST,
                "--data-parallel-rpc-port", rpc]
        server = harness.serve(f"dp{rank}", [*base, *more, *args], role, kv, size=size, model=model,
                               kv_port=kv_port)
        if role:  # that of the group is its first rank's
            server.ports[1] = kv_port + rank
        return server

    return [one(rank) for rank in range(n)]


def free_row(n):
    """The first of n free ports in a row, below those that the kernel gives to outgoing connections."""
    while True:
        first = random.randrange(10000, 30000)
        if not any(harness.port_taken(first + i) for i in range(n)):
            return first


def cpu_seconds(server):
    with open(f"/proc/{server.child.pid}/stat", encoding="ascii", errors="replace") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Plain(E2E):
    """Has one plain instance to compare with."""

    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", ARGS, "kv_producer", size=SIZE, model=MODEL)
        return harness.Fleet(cls.plain).start()

    def expected(self, asked):
        return ask_all(self.plain.port, asked)


class SharedExperts(Plain):
    def up(self, server, rank):
        return server.metrics().get("sluice:dp_rank_up", rank=str(rank))

    def assert_in_step(self, servers):
        def equal():
            steps = {s.metrics().get("sluice:dp_steps") for s in servers}
            return len(steps) == 1 and steps.pop() > 0

        wait_until("equal step counters", PATIENCE, equal)

    def test_behind_the_proxy(self):
        """P on its own, D of four: the tokens of one instance, and every rank has its share."""
        asked = prompts()
        want = self.expected(asked)
        ranks = group(N, ["-ep"], "kv_consumer")
        with self.running(*ranks, harness.proxy([self.plain], ranks)) as servers:
            proxy = servers[-1]
            for _ in range(3):
                self.assertEqual(ask_all(proxy.port, asked), want)
            # a burst of equal requests: about a quarter each, as some end while others come
            before = [self.ended(s) for s in ranks]
            ask_all(proxy.port, [asked[2]] * 100, at_once=100)
            for s, n in zip(ranks, before):
                self.assertAlmostEqual(self.ended(s) - n, 25, delta=12)
            for s in ranks:
                s.wait_idle()
                self.assertEqual(s.metrics().get("sluice:kv_transfer_failures_total"), 0)
            self.assert_in_step(ranks)

    @staticmethod
    def ended(server):
        return server.metrics().get("vllm:request_success_total")

    def test_idle_group_sleeps(self):
        ranks = group(N, ["-ep"])
        with self.running(*ranks):
            self.assertEqual(client.tokens(ask(ranks[3].port, [5, 6, 7])),
                             client.tokens(ask(self.plain.port, [5, 6, 7])))
            time.sleep(0.5)
            before = [cpu_seconds(s) for s in ranks]
            time.sleep(2)
            for s, t in zip(ranks, before):
                self.assertLess(cpu_seconds(s) - t, 0.1)
            self.assert_in_step(ranks)

    def rank_dies_and_returns(self, victim):
        asked = prompts(6)
        want = self.expected(asked)
        ranks = group(N, ["-ep", "--step-delay", 0.02])
        name = f"data-parallel rank {victim}"
        alive = [s for i, s in enumerate(ranks) if i != victim]
        with self.running(*ranks):
            with ThreadPoolExecutor(N) as pool:
                busy = [pool.submit(ask, s.port, [3, 4, 5], 200) for s in alive]
                wait_until("steps", PATIENCE,
                           lambda: all(s.metrics().get("vllm:num_requests_running") for s in alive))
                ranks[victim].kill()
                for f in busy:
                    reply = f.result()
                    self.expect(reply, 503)
                    self.assertIn(name, reply.json()["error"]["message"])
            for s in alive:
                wait_until("not ready", PATIENCE, lambda s=s: s.status("/health") == 503)
                self.assertIn(name, client.get(s.port, "/health").json()["error"]["message"])
                reply = ask(s.port, [1], 1)
                self.expect(reply, 503)
                self.assertIn(name, reply.json()["error"]["message"])
                self.assertEqual(self.up(s, victim), 0)
                self.assertIn(name, s.text())
                s.wait_idle()
            ranks[victim].start()
            for s in ranks:
                s.wait_ready()
            for s in ranks:
                self.assertEqual(ask_all(s.port, asked), want)
                wait_until("all up", PATIENCE, lambda s=s: all(self.up(s, r) for r in range(N)))
            self.assert_in_step(ranks)

    def test_a_rank_dies_and_returns(self):
        self.rank_dies_and_returns(2)

    def test_rank_0_dies_and_returns(self):
        self.rank_dies_and_returns(0)

    def test_all_are_told_to_stop(self):
        """The one that has nothing to do does not take the experts from the one that has."""
        ranks = group(2, ["-ep", "--step-delay", 0.02, "--shutdown-timeout", 30])
        with self.running(*ranks):
            with ThreadPoolExecutor(1) as pool:
                busy = pool.submit(ask, ranks[1].port, [3, 4, 5], 60)
                wait_until("a step", PATIENCE,
                           lambda: ranks[1].metrics().get("vllm:num_requests_running"))
                for s in ranks:
                    s.signal(signal.SIGTERM)
                self.assertEqual(len(client.tokens(busy.result())), 60)
            for s in ranks:
                self.assertEqual(s.wait_end(), 0, s.tail())

    def test_told_to_stop_while_it_waits(self):
        for rank in group(2, ["-ep"]):
            rank.start()
            wait_until("an answer", PATIENCE, lambda r=rank: r.status("/health") == 503)
            rank.signal(signal.SIGTERM)
            self.assertEqual(rank.wait_end(), 0, rank.tail())

    def test_who_is_missing_is_named(self):
        rank = group(2, ["-ep"])[0]
        rank.env = {"HCCL_CONNECT_TIMEOUT": "1"}
        rank.start()
        self.assertEqual(rank.wait_end(), 1)
        self.assertIn("data-parallel rank 1 (is not there)", rank.tail())


class Independent(Plain):
    """Without expert parallelism nothing waits for anything."""

    def test_nobody_waits(self):
        asked = prompts(6)
        want = self.expected(asked)
        ranks = group(2)
        with self.running(ranks[1]):
            self.assertEqual(ask_all(ranks[1].port, asked), want)
            ranks[0].start().wait_ready()
            try:
                wait_until("seen", PATIENCE, lambda: ranks[1].metrics().get(
                    "sluice:dp_rank_up", rank="0"))
                ranks[0].kill()
                wait_until("missed", PATIENCE, lambda: not ranks[1].metrics().get(
                    "sluice:dp_rank_up", rank="0"))
            finally:
                if ranks[0].running():
                    ranks[0].kill()
            self.assertEqual(ask_all(ranks[1].port, asked), want)
            self.assertEqual(ranks[1].status("/health"), 200)


TEMPLATE = """#!/bin/sh
exec "$SLUICE" serve "$MODEL" --host 127.0.0.1 --port $2 -dp $3 --data-parallel-rank $4 \\
    --data-parallel-address $5 --data-parallel-rpc-port $6 -tp $7 -ep --served-model-name model \\
    --dtype float32 --skip-tokenizer-init --max-model-len 256 --num-gpu-blocks-override 96 \\
    --kv-transfer-config '{"kv_connector":"MooncakeConnectorV1","kv_role":"kv_consumer","kv_port":"'$KV_PORT'"}'
"""


class Launched(Plain):
    def test_launch_and_proxy(self):
        asked = prompts()
        want = self.expected(asked)
        first, rpc = free_row(N), harness.free_ports(1)[0]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "run_dp_template.sh"), "w", encoding="utf-8") as f:
                f.write(TEMPLATE)
            launcher = Launcher(folder, first, rpc)
            with self.running(launcher) as _:
                ranks = [harness.Server(f"rank{i}", [first + i], [], "/health") for i in range(N)]
                front = harness.proxy([self.plain], ranks)
                with self.running(front):
                    self.assertEqual(ask_all(front.port, asked), want)
                for r in ranks:
                    self.assertEqual(ask_all(r.port, asked[:4]), want[:4])
                    r.wait_idle()


class Launcher(harness.Server):
    """sluice launch in a folder with a template."""

    def __init__(self, folder, first, rpc):
        super().__init__("launch", [first + i for i in range(N)],
                         ["launch", "--dp-size", N, "--dp-address", client.HOST, "--dp-rpc-port", rpc,
                          "--vllm-start-port", first,
                          "--template", os.path.join(folder, "run_dp_template.sh")], "/health",
                         {"SLUICE": harness.Config.sluice, "MODEL": MODEL, "KV_PORT": str(free_row(N))})

    def is_ready(self):
        super().is_ready()
        return all(answers(p) for p in self.ports)


def answers(port):
    try:
        return client.get(port, "/health", timeout=5).status == 200
    except OSError:
        return False


if __name__ == "__main__":
    harness.main()
