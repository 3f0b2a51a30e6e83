"""P of every shape with D of every shape, one leg after the other (pull) and both at once (push): the tokens of
one process, and nothing left on either side.

What does not add in another order, which is stages, data-parallel instances and experts on other ranks, is the
same to the last bit: greedy and seeded, in any number format. Tensor parallelism adds in another order; there
only prompts are taken of which every token wins by far more than that can move."""
import random
import signal
from typing import NamedTuple

import client
import harness
import texts
from harness import E2E
from test_dp import group
from test_models import folder_of
from test_ranks import all_gone, ask_all, children, tp_size

CONNECTOR = "MooncakeLayerwiseConnector"  # its instances can be asked for both ways
WAYS = {"push": ["--kv-connector", CONNECTOR], "pull": []}
SEEDED = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 11}
# In float32 the order of sums moves a log-probability by less than 0.001 (test_ranks.py). Twice that could
# change places; this is ten times as much again.
SAFE_MARGIN = 0.02
LONGEST = 10  # what ask_all() asks for at most


class Shape(NamedTuple):
    pp: int = 1
    tp: int = 1
    dp: int = 1
    ep: bool = False

    def args(self):
        sizes = [("-pp", self.pp), ("-tp", self.tp)]
        return [a for flag, n in sizes if n > 1 for a in (flag, n)] + ["-ep"] * self.ep

    def __str__(self):
        return f"pp{self.pp} tp{self.tp} dp{self.dp}{' ep' * self.ep}"


def margin(port, prompt, n):
    """By how much the least certain of n greedy tokens wins, in log-probability."""
    reply = client.complete(port, prompt, n, logprobs=2, return_tokens_as_token_ids=True)
    tops = reply.json()["choices"][0]["logprobs"]["top_logprobs"]
    return min(best - second for best, second in (sorted(t.values(), reverse=True)[:2] for t in tops))


class Matrix:
    model = None
    args = []
    size = harness.SIZE
    p_shapes, d_shapes = [], []
    lengths = [1, 16, 33, 257]  # as many as are asked at once

    @classmethod
    def setUpFleet(cls):
        cls.ps = {shape: cls.producer(shape) for shape in cls.p_shapes}
        cls.ds = {shape: cls.consumers(shape) for shape in cls.d_shapes}
        cls.plain = harness.serve("plain", cls.args, size=cls.size, model=cls.model)
        fleet = harness.Fleet(cls.plain, *cls.ps.values(), *(d for ds in cls.ds.values() for d in ds)).start()
        cls.ranks = [pid for s in fleet.servers for pid in children(s.child.pid)]
        try:
            cls.prompts = cls.choose_prompts()
            cls.greedy, cls.seeded = (ask_all(cls.plain.port, cls.prompts, f) for f in ({}, SEEDED))
        except BaseException:
            fleet.abandon()
            raise
        return fleet

    @classmethod
    def producer(cls, shape):
        return harness.serve(f"P-{shape}".replace(" ", "-"), [*cls.args, *shape.args()], "kv_producer",
                             {"kv_connector": CONNECTOR, "kv_port": "0"}, size=cls.size, model=cls.model)

    @classmethod
    def consumers(cls, shape):
        """Each pulls every prompt anew, and computes none itself."""
        args = [*cls.args, *shape.args(), "--no-enable-prefix-caching"]
        kv = {"kv_connector": CONNECTOR, "kv_port": "0", "kv_load_failure_policy": "fail"}
        if shape.dp > 1:
            return group(shape.dp, args, "kv_consumer", base=[], size=cls.size, model=cls.model, kv=kv)
        return [harness.serve(f"D-{shape}".replace(" ", "-"), args, "kv_consumer", kv, size=cls.size,
                              model=cls.model)]

    @classmethod
    def tearDownClass(cls):
        for ds in cls.ds.values():
            end_together(ds)
        super().tearDownClass()
        if not all_gone(cls.ranks):
            raise AssertionError("ranks are left")

    @classmethod
    def corpus(cls):
        return texts.corpus(cls.plain.port, 2000, 400)

    @classmethod
    def choose_prompts(cls):
        """For each length the first piece of the text that is safe."""
        ids = cls.corpus()

        def safe(n):
            pieces = (ids[at:at + n] for at in range(0, len(ids) - n, 17))
            return next(p for p in pieces if margin(cls.plain.port, p, LONGEST) > SAFE_MARGIN)

        return [safe(n) for n in cls.lengths]

    def test_1_ranks(self):
        """There are as many processes as the shapes say."""
        wanted = sum(s.pp * s.tp * s.dp for s in (*self.p_shapes, *self.d_shapes))
        self.assertEqual(len(self.ranks) + len(self.fleet.servers) - 1, wanted)

    def test_2_every_pair(self):
        """A P that meets its first D has no prompt cached, so that what it pushes goes layer by layer."""
        for p_shape, p in self.ps.items():
            for d_shape, ds in self.ds.items():
                for way, args in WAYS.items():
                    with self.subTest(f"P {p_shape}, D {d_shape}, {way}"):
                        with self.running(harness.proxy([p], ds, args)) as proxy:
                            self.same(p, ds, proxy, p_shape.tp == d_shape.tp == 1)
            self.assertGreater(p.metrics().get("sluice:kv_early_bytes_total"), 0)

    def same(self, p, ds, proxy, exact):
        before = [figures(s) for s in (p, *ds)]
        self.assertEqual(ask_all(proxy.port, self.prompts, {}), self.greedy)
        if exact:
            self.assertEqual(ask_all(proxy.port, self.prompts, SEEDED), self.seeded)
        for s in (p, *ds):
            s.wait_idle()
        sent, *received = [{k: v - b[k] for k, v in figures(s).items()} for s, b in zip((p, *ds), before)]
        for d in received:
            self.assertEqual((d["failures"], d["checksums"]), (0, 0))
            self.assertGreater(d["received"], 0)
        self.assertEqual(sent["sent"], sum(d["received"] for d in received))


def end_together(group):
    """Those that share experts cannot do without each other."""
    for s in group:
        s.signal(signal.SIGTERM)
    ended = [(s.name, s.wait_end()) for s in group]
    if any(status for _, status in ended):
        raise AssertionError(f"ended with {ended}")


def figures(server):
    """What the server has counted so far."""
    m = server.metrics()
    return {"failures": m.get("sluice:kv_transfer_failures_total"),
            "checksums": m.get("sluice:kv_checksum_errors_total"),
            "sent": m.get("sluice:kv_transfer_bytes_total", direction="sent"),
            "received": m.get("sluice:kv_transfer_bytes_total", direction="received")}


class Dense(Matrix, E2E):
    """The demo model: with 9 heads and 3 KV heads it can be shared by 3."""
    args = ["--dtype", "float32", "--max-num-batched-tokens", 128]

    @classmethod
    def setUpFleet(cls):
        tp = tp_size()
        cls.p_shapes = [Shape(1, 1), Shape(2, 1), Shape(1, tp), Shape(2, tp)]
        cls.d_shapes = [Shape(), Shape(tp=tp), Shape(dp=2)]
        return super().setUpFleet()


class DenseAuto(Matrix, E2E):
    """In the number format that is chosen without --dtype, with which even roundings are the same."""
    args = ["--max-num-batched-tokens", 128]
    p_shapes = [Shape(1, 1), Shape(2, 1)]
    d_shapes = [Shape(), Shape(dp=2)]


class Experts(Matrix):
    """Tiny models with experts: tensor-parallel, data-parallel, and both with the experts shared out."""
    args = ["--dtype", "float32", "--max-num-batched-tokens", 48, "--skip-tokenizer-init"]
    lengths = [1, 15, 16, 17, 33, 64, 100, 257, 300]
    size = ["--max-model-len", 512, "--num-gpu-blocks-override", 256, "--block-size", 16]
    p_shapes = [Shape(1, 1), Shape(2, 1), Shape(1, 2), Shape(2, 2), Shape(2, 2, ep=True)]
    d_shapes = [Shape(), Shape(tp=2), Shape(tp=2, ep=True), Shape(dp=2), Shape(dp=2, ep=True),
                Shape(tp=2, dp=2, ep=True)]
    name = ""

    @classmethod
    def setUpFleet(cls):
        cls.model = folder_of(cls.name)
        return super().setUpFleet()

    @classmethod
    def corpus(cls):
        return random.Random(1).choices(range(8, 256), k=1000)


class ExpertsQwen(Experts, E2E):
    name = "qwen3_moe_tiny"


class ExpertsDeepseek(Experts, E2E):
    """Latent attention: every tensor-parallel rank has all of the KV."""
    name = "deepseek_v2_tiny"


class ExpertsAuto(Experts, E2E):
    """int8 weights and activations: each row is rounded by itself, wherever its experts are."""
    args = ["--max-num-batched-tokens", 48, "--skip-tokenizer-init"]
    p_shapes = [Shape(1, 1), Shape(2, 1)]
    d_shapes = [Shape(), Shape(dp=2), Shape(dp=2, ep=True)]
    name = "deepseek_v3_mini_w8a8_v1"


if __name__ == "__main__":
    harness.main()
