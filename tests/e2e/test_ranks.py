"""An instance of several processes: the tokens of one, and nothing left of it however it ends."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import netns
import texts
from harness import E2E, wait_until

# Real time is no matter here, but who waits for whom: 40 ms a step leave time for signals in between.
SLOW = ["--step-delay", 0.04]
PATIENCE = 60
LENGTHS = [1, 2, 15, 16, 17, 33, 64, 100, 257, 700]
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 4321}}
# Chunks of 128: a prompt of 700 tokens is six plans in a row.
ARGS = ["--max-num-batched-tokens", 128]


def children(pid):
    """The processes that pid has started and that run."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(p) for p in f.read().split()]


def alive(pid):
    """Whether the process runs; one that nobody has reaped does not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return f.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def all_gone(pids):
    return not [p for p in pids if alive(p)]


def run_to_end(args, env=None, timeout=PATIENCE):
    """A serve that should end by itself: its status and all it said."""
    done = subprocess.run([harness.Config.sluice, "serve", *map(str, args)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                          timeout=timeout * harness.Config.slow)
    return done.returncode, done.stdout


def ask_all(port, prompts, fields, at_once=4):
    def ask(job):
        i, prompt = job
        more = dict(fields, seed=fields["seed"] + i) if "seed" in fields else fields
        return client.tokens(client.complete(port, prompt, 4 + i % 7, **more))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, enumerate(prompts)))


def tp_size():
    """One that divides the heads of the model at hand."""
    return 2 if harness.Config.tiny else 3


class Equal(E2E):
    """One instance at a time beside a plain one: what it answers is what that answers."""
    args = ARGS

    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", cls.args)
        fleet = harness.Fleet(cls.plain).start()
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def same(self, name, args, env=None, n_ranks=2):
        prompts = texts.slices(self.ids, LENGTHS, shared=3)
        with self.running(harness.serve(name, [*self.args, *args], env=env)) as server:
            ranks = children(server.child.pid)
            self.assertEqual(len(ranks), n_ranks - 1)
            for what, fields in SAMPLINGS.items():
                with self.subTest(what):
                    want = ask_all(self.plain.port, prompts, fields)
                    self.assertEqual(ask_all(server.port, prompts, fields), want)
            with self.subTest("log-probabilities"):
                prompt = self.ids[300:350]
                replies = [client.complete(port, prompt, 6, logprobs=3).json()["choices"][0]["logprobs"]
                           for port in (self.plain.port, server.port)]
                self.assertEqual(replies[0]["tokens"], replies[1]["tokens"])
                for a, b in zip(replies[0]["token_logprobs"], replies[1]["token_logprobs"]):
                    self.assertAlmostEqual(a, b, delta=1e-3)
            server.wait_idle()
            m = server.metrics()
            self.assertEqual(m.get("sluice:ranks"), n_ranks)
            busy = [m.get("sluice:stage_busy_seconds_total", stage=str(s)) for s in range(self.stages(args))]
            self.assertTrue(all(b > 0 for b in busy), busy)
            if len(busy) > 1:  # its first chunk is late by what the first stage takes for it
                self.assertGreater(m.get("sluice:stage_bubble_seconds_total", stage="1"), 0)
        self.assertTrue(all_gone(ranks))
        return server

    @staticmethod
    def stages(args):
        return args[args.index("-pp") + 1] if "-pp" in args else 1


class Stages(Equal):
    def test_pp2(self):
        server = self.same("pp2", ["-pp", 2])
        self.assertRegex(server.text(), r"\[serve \(rank 1, pp1 tp0\)\]")

    def test_pp3(self):
        self.same("pp3", ["-pp", 3], n_ranks=3)

    def test_uneven_stages(self):
        layers = "1,2" if harness.Config.tiny else "10,20"
        self.same("pp2-uneven", ["-pp", 2], {"VLLM_PP_LAYER_PARTITION": layers})

    def test_timeline(self):
        """--trace shows the stages side by side: while one has a chunk, the other has the one before."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            with self.running(harness.serve("pp2-trace", [*ARGS, *SLOW, "-pp", 2, "--trace", path])) as server:
                client.complete(server.port, self.ids[:1000], 2)
            with open(path, encoding="ascii") as f:
                steps = [e for e in json.load(f) if e["ph"] == "X"]
        spans = {s: [(e["ts"], e["ts"] + e["dur"]) for e in steps if e["tid"] == s and e["args"]["prefill"]]
                 for s in (0, 1)}
        self.assertEqual([len(v) for v in spans.values()], [8, 8])
        histories = [e["args"]["requests"][0]["history"] for e in steps if e["tid"] == 1 and e["args"]["prefill"]]
        self.assertEqual(histories, list(range(0, 1000, 128)))
        together = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in spans[0] for b in spans[1])
        alone = sum(b - a for a, b in spans[1])
        self.assertGreater(together, 0.5 * alone)

    def test_one_request_at_a_time(self):
        """Plans wait for plans: with one running request that must not become for ever."""
        prompts = texts.slices(self.ids, LENGTHS[:4], shared=2)
        with self.running(harness.serve("pp2-one", [*ARGS, "-pp", 2, "--max-num-seqs", 1])) as server:
            self.assertEqual(ask_all(server.port, prompts, {}), ask_all(self.plain.port, prompts, {}))


class TensorParallel(Equal):
    """In float32, where another order of sums moves a log-probability by less than any two tokens that
    are close; with int8 activations it would move roundings."""
    args = [*ARGS, "--dtype", "float32"]

    def test_tp(self):
        tp = tp_size()
        self.same("tp", ["-tp", tp], n_ranks=tp)

    def test_tp_with_sequence_parallel(self):
        tp = tp_size()
        self.same("tp-fc1", ["-tp", tp], {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}, n_ranks=tp)

    def test_pp_and_tp(self):
        tp = tp_size()
        self.same("pp2tp", ["-pp", 2, "-tp", tp], n_ranks=2 * tp)


class Deaths(E2E):
    def begin(self, *args, env=None):
        """A server of two stages with a stream of many tokens in the middle."""
        server = harness.serve("pp2", ["-pp", 2, *SLOW, *args], env=env).start().wait_ready()
        self.addCleanup(lambda: server.running() and server.kill())
        self.ranks = children(server.child.pid)
        self.assertEqual(len(self.ranks), 1)
        return server

    def stream(self, server, n):
        body = {"prompt": "Once upon a time", "max_tokens": n, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True}
        stream = client.Stream(server.port, "/v1/completions", body)
        events = iter(stream)
        return stream, [next(events) for _ in range(3)], events

    def test_killed_rank(self):
        """kill -9 of a rank: the stream ends with an error that says so, the server with 1."""
        server = self.begin()
        stream, _, events = self.stream(server, 1000)
        os.kill(self.ranks[0], signal.SIGKILL)
        rest = list(events)
        self.assertFalse(stream.done)
        self.assertIn("error", rest[-1])
        self.assertIn("rank 1", rest[-1]["error"]["message"])
        self.assertEqual(server.wait_end(), 1)
        self.assertIn(f"rank 1 (pp1 tp0, pid {self.ranks[0]}) was ended by signal 9", server.text())
        self.assertTrue(all_gone(self.ranks))

    def test_killed_idle_rank(self):
        server = self.begin()
        os.kill(self.ranks[0], signal.SIGKILL)
        self.assertEqual(server.wait_end(), 1)
        self.assertIn("was ended by signal 9", server.text())

    def test_killed_parent(self):
        """kill -9 of the process that was started: its ranks die with it, and the port is free again."""
        server = self.begin()
        for _ in range(3):
            server.kill()
            wait_until("no rank left", 2, lambda: all_gone(self.ranks))
            server.start().wait_ready()
            self.ranks = children(server.child.pid)
        server.stop()
        self.assertTrue(all_gone(self.ranks))

    def test_drain(self):
        """SIGTERM while a stream is under way: it is finished, then all ranks end."""
        server = self.begin("--shutdown-timeout", 60)
        stream, read, events = self.stream(server, 40)
        server.signal(signal.SIGTERM)
        tokens = sum(len(c["token_ids"] or []) for e in [*read, *events] for c in e["choices"])
        self.assertEqual(tokens, 40)
        self.assertTrue(stream.done)
        self.assertEqual(server.wait_end(), 0)
        self.assertTrue(all_gone(self.ranks))

    def test_second_signal(self):
        server = self.begin("--shutdown-timeout", 600)
        self.stream(server, 2000)
        server.signal(signal.SIGTERM)
        wait_until("draining", 10, lambda: server.status("/health") != 200)
        server.signal(signal.SIGTERM)
        server.wait_end()
        self.assertTrue(all_gone(self.ranks))

    def test_interrupt_of_the_group(self):
        """What Ctrl-C does: SIGINT to every process. The ranks leave that to the first."""
        server = self.begin()
        for pid in [*self.ranks, server.child.pid]:
            os.kill(pid, signal.SIGINT)
        self.assertEqual(server.wait_end(), 0)
        self.assertTrue(all_gone(self.ranks))

    def test_stopped_rank(self):
        """A rank that hangs ends the instance by the time that a step may take."""
        server = self.begin(env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "10"})
        stream, _, events = self.stream(server, 1000)
        os.kill(self.ranks[0], signal.SIGSTOP)
        rest = list(events)
        self.assertFalse(stream.done)
        self.assertIn("error", rest[-1])
        self.assertEqual(server.wait_end(60), 1)
        wait_until("no rank left", 5, lambda: all_gone(self.ranks))

    def test_killed_while_loading(self):
        server = harness.serve("pp2", ["-pp", 2]).start()
        self.addCleanup(lambda: server.running() and server.kill())
        ranks = wait_until("rank 1", 20, lambda: children(server.child.pid), 0.001)
        os.kill(ranks[0], signal.SIGKILL)
        self.assertEqual(server.wait_end(), 1)
        self.assertTrue(all_gone(ranks))

    def test_told_to_stop_while_waiting_for_ranks(self):
        """Rank 1 is on a host that never comes."""
        port = harness.free_ports(1)[0]
        server = harness.serve("node0", ["-pp", 2, "--nnodes", 2, "--master-port", port]).start()
        self.addCleanup(lambda: server.running() and server.kill())
        wait_until("meeting", 20, lambda: "ports:" in server.text())
        wait_until("up", 20, lambda: server.status("/health") == 503)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait_end(), 0)


class TwoHosts(E2E):
    """--nnodes 2 on two loopback addresses."""

    def nodes(self, *args, env=None):
        api, master = harness.free_ports(2)
        base = ["-pp", 2, "--nnodes", 2, "--master-addr", "127.0.1.1", "--master-port", master, *args]
        env = env or {}
        first = harness.serve("node0", base, port=api, env={"HCCL_IF_IP": "127.0.1.1", **env})
        other = harness.serve("node1", [*base, "--node-rank", 1, "--headless"],
                              env={"HCCL_IF_IP": "127.0.1.2", "GLOO_SOCKET_IFNAME": "lo", **env})
        self.addCleanup(lambda: [s.kill() for s in (first, other) if s.running()])
        return first, other

    def test_same_tokens(self):
        first, other = self.nodes()
        plain = harness.serve("plain")
        for s in (plain, other, first):  # in any order
            s.start()
        for s in (plain, first):
            s.wait_ready()
        self.assertEqual(len(children(first.child.pid)), 0)
        self.assertEqual(len(children(other.child.pid)), 1)
        prompts = texts.slices(texts.corpus(plain.port), [5, 40, 300], shared=2)
        self.assertEqual(ask_all(first.port, prompts, {}), ask_all(plain.port, prompts, {}))
        plain.stop()
        first.stop()
        self.assertEqual(other.wait_end(), 0)  # told by rank 0

    def test_secret(self):
        """A host with another secret does not get in."""
        first, other = self.nodes(env={"HCCL_CONNECT_TIMEOUT": "3"})
        first.env = {**first.env, "SLUICE_RANKS_SECRET": "one"}
        other.env = {**other.env, "SLUICE_RANKS_SECRET": "two"}
        first.start()
        other.start()
        self.assertEqual(other.wait_end(30), 1)
        self.assertIn("secret", other.text())
        self.assertEqual(first.wait_end(30), 1)
        self.assertIn("did not come", first.text())

    def test_other_host_dies(self):
        first, other = self.nodes()
        first.start()
        other.start()
        first.wait_ready()
        ranks = children(other.child.pid)
        other.kill()
        self.assertEqual(first.wait_end(30), 1)
        self.assertIn("rank 1", first.text())
        self.assertTrue(all_gone(ranks))

    def test_first_host_dies(self):
        first, other = self.nodes()
        first.start()
        other.start()
        first.wait_ready()
        ranks = children(other.child.pid)
        first.kill()
        self.assertEqual(other.wait_end(30), 1)
        self.assertTrue(all_gone(ranks))


class Cable(E2E):
    """Two hosts that have nothing but a cable in common."""

    def setUp(self):
        self.wire = netns.OtherHost()
        self.addCleanup(self.wire.remove)
        api, master = harness.free_ports(2)
        base = [*SLOW, "-pp", 2, "--nnodes", 2, "--master-addr", netns.HERE, "--master-port", master]
        # Both are one machine to UCX, which would go through its memory.
        env = {"UCX_TLS": "tcp,self", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "15"}
        self.first = harness.serve("node0", base, port=api, env={**env, "HCCL_SOCKET_IFNAME": self.wire.here})
        self.other = harness.serve("node1", [*base, "--node-rank", 1, "--headless"],
                                   env={**env, "HCCL_SOCKET_IFNAME": self.wire.there})
        self.other.prefix = self.wire.prefix()
        self.addCleanup(lambda: [s.kill() for s in (self.first, self.other) if s.running()])
        self.first.start()
        self.other.start()
        self.first.wait_ready()
        self.ranks = children(self.other.child.pid)

    def test_answers(self):
        reply = client.complete(self.first.port, "Once upon a time", 8)
        self.assertEqual(len(client.tokens(reply)), 8)
        self.first.stop()
        self.assertEqual(self.other.wait_end(), 0)

    def test_cut(self):
        """The cable is pulled in the middle of a stream: the client is told, both hosts end with a cause."""
        body = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
        stream = client.Stream(self.first.port, "/v1/completions", body)
        events = iter(stream)
        next(events)
        self.wire.cut()
        rest = list(events)
        self.assertFalse(stream.done)
        self.assertIn("error", rest[-1])
        self.assertEqual(self.first.wait_end(60), 1)
        self.assertRegex(self.first.text(), r"ERROR .*(rank 1|step \d+)")
        self.assertEqual(self.other.wait_end(60), 1)
        self.assertRegex(self.other.text(), r"ERROR .*(rank 0|states of step)")
        self.assertTrue(all_gone(self.ranks))


class Refused(E2E):
    """What is wrong is said before anything is started."""

    def refused(self, args, says, env=None, status=1):
        code, said = run_to_end([harness.Config.model, "--host", client.HOST, "--port", 0, *harness.SIZE,
                                 *args], env)
        self.assertEqual(code, status, said)
        self.assertIn(says, said)

    def test_parts_that_do_not_fit(self):
        self.refused(["-pp", 64], "--pipeline-parallel-size 64 is more than the")
        self.refused(["-tp", 5], "--tensor-parallel-size 5 does not divide the")
        self.refused(["-pp", 2], "the stages have 8 layers together", {"VLLM_PP_LAYER_PARTITION": "3,5"})

    def test_addresses(self):
        self.refused(["-pp", 2], "there is no interface 'nosuch0'", {"GLOO_SOCKET_IFNAME": "nosuch0"}, 2)
        self.refused(["-pp", 2], "192.0.2.9 is not an address of this host", {"HCCL_IF_IP": "192.0.2.9"}, 2)

    def test_taken_port(self):
        with socket.socket() as taken:
            taken.bind((client.HOST, 0))
            taken.listen()
            port = taken.getsockname()[1]
            began = time.monotonic()
            self.refused(["-pp", 2, "--master-port", port], f":{port}: Address already in use (held by pid")
            self.assertLess(time.monotonic() - began, 5 * harness.Config.slow)

    def test_check(self):
        """--check says which ports it would take, and starts nothing."""
        first = harness.free_ports(1)[0]
        args = [harness.Config.model, "--host", client.HOST, "--port", first, "-pp", 2, "--check",
                *harness.kv_config("kv_producer", first)]
        code, said = run_to_end(args)
        self.assertEqual(code, 1, said)
        self.assertIn(f"port {first} is wanted twice", said)
        code, said = run_to_end(args[:-2])
        self.assertEqual(code, 0, said)
        self.assertRegex(said, re.compile(rf"^API \(--port\) {re.escape(client.HOST)}:{first}$", re.M))


if __name__ == "__main__":
    harness.main()
