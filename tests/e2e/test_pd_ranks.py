"""P and D of several ranks each, split differently: what test_matrix.py, which has the other shapes, does not
show. D has stages too, blocks of another size, sizes in the configuration; ranks die, and sizes are wrong.

In float32 where a tensor-parallel instance takes part, since the order of its sums is another one."""
import os
import signal

import client
import harness
import legs
import texts
from harness import E2E
from test_ranks import ask_all, children, all_gone, run_to_end, tp_size

LENGTHS = [1, 15, 16, 17, 33, 64, 100, 257, 700]
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 99}}
ARGS = ["--max-num-batched-tokens", 128, "--dtype", "float32"]


def shape(pp, tp):
    return (["-pp", pp] if pp > 1 else []) + (["-tp", tp] if tp > 1 else [])


class Pairs(E2E):
    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", ARGS)
        fleet = harness.Fleet(cls.plain).start()
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def pair(self, p_shape, d_shape, p_args=(), d_args=()):
        """P, D and a proxy of these shapes, (pp, tp)."""
        p = harness.serve("P", [*ARGS, *shape(*p_shape), *p_args], "kv_producer",
                          {"kv_port": "0", **self.sides(p_shape, d_shape)})
        d = harness.serve("D", [*ARGS, *shape(*d_shape), *d_args], "kv_consumer",
                          self.sides(p_shape, d_shape))
        return p, d, harness.proxy([p], [d])

    @staticmethod
    def sides(p_shape, d_shape):
        sides = {"prefill": {"pp_size": p_shape[0], "tp_size": p_shape[1], "dp_size": 1},
                 "decode": {"tp_size": d_shape[1], "dp_size": 1}}
        return {"kv_connector_extra_config": sides}

    def same(self, p_shape, d_shape, **more):
        prompts = texts.slices(self.ids, LENGTHS, shared=3)
        with self.running(*self.pair(p_shape, d_shape, **more)) as (p, d, proxy):
            ranks = children(p.child.pid) + children(d.child.pid)
            self.assertEqual(len(ranks), p_shape[0] * p_shape[1] + d_shape[0] * d_shape[1] - 2)
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
            self.assertGreater(received, 0)
            self.assertEqual(p.metrics().get("sluice:kv_transfer_bytes_total", direction="sent"), received)
            params = legs.prefill(p.port, prompts[-1])
            self.assertEqual((params["remote_pp_size"], params["remote_ptp_size"]), p_shape)
            self.assertEqual(client.tokens(legs.decode(d.port, prompts[-1], params, 5)),
                             client.tokens(client.complete(self.plain.port, prompts[-1], 5)))
            for s in (p, d):
                s.wait_idle()
        self.assertTrue(all_gone(ranks))

    def test_stages_of_tensor_parallel_to_tensor_parallel(self):
        self.same((2, tp_size()), (1, tp_size()), d_args=["--block-size", 32])

    def test_stages_to_other_stages(self):
        self.same((3, 1), (2, 1))


class Deaths(E2E):
    def test_rank_of_p(self):
        """A rank of P dies between the legs, and P with it: D computes the prompt itself."""
        p = harness.serve("P", [*ARGS, "-pp", 2], "kv_producer", {"kv_port": "0"})
        d = harness.serve("D", [*ARGS, "-pp", 2], "kv_consumer")
        with self.running(d):
            p.start().wait_ready()
            prompt = list(range(5, 105))
            want = client.tokens(client.complete(d.port, prompt, 8))
            params = legs.prefill(p.port, prompt)
            os.kill(children(p.child.pid)[0], signal.SIGKILL)
            self.assertEqual(p.wait_end(60), 1, p.tail())
            self.assertEqual(client.tokens(legs.decode(d.port, prompt, params, 8)), want)
            self.assertGreaterEqual(d.metrics().get("sluice:kv_transfer_failures_total"), 1)
            d.wait_idle()

    def test_p_is_started_again(self):
        """A P that takes the place of another one is found by the D that knew that."""
        port, = harness.free_ports(1)
        d = harness.serve("D", ARGS, "kv_consumer")
        with self.running(d):
            for prompt in (list(range(5, 105)), list(range(205, 305))):
                p = harness.serve("P", [*ARGS, "-pp", 2], "kv_producer", {"kv_port": "0"}, port=port)
                p.start().wait_ready()
                want = client.tokens(client.complete(p.port, prompt, 8))
                params = legs.prefill(p.port, prompt)
                self.assertEqual(client.tokens(legs.decode(d.port, prompt, params, 8)), want)
                p.wait_idle()
                p.stop()
            self.assertEqual(d.metrics().get("sluice:kv_transfer_failures_total"), 0)


class Lies(E2E):
    def test_about_itself(self):
        """Sizes in the configuration are the instance's own, or it does not start."""
        extra = {"prefill": {"pp_size": 2, "tp_size": 1}}
        code, text = run_to_end([harness.Config.model, "--port", 0,
                                 *harness.kv_config("kv_producer", 0, extra)])
        self.assertNotEqual(code, 0)
        self.assertIn("prefill.pp_size is 2, but this instance, which is on that side, has "
                      "--pipeline-parallel-size 1", text)

    def test_about_the_other_side(self):
        """D was told of another P: it is not ready once it has met this one, and computes the prompt itself."""
        p = harness.serve("P", ARGS, "kv_producer")
        d = harness.serve("D", ARGS, "kv_consumer",
                          {"kv_connector_extra_config": {"prefill": {"tp_size": 4, "pp_size": 2}}})
        with self.running(p, d):
            prompt = list(range(5, 70))
            params = legs.prefill(p.port, prompt)
            reply = client.complete(d.port, prompt, 4, kv_transfer_params=params)
            self.assertEqual(len(client.tokens(reply)), 4)
            self.assertEqual(d.status("/health"), 503)
            said = "pipeline-parallel size: the configuration of the consumer says 2, the other side has 1"
            self.assertIn(said, d.text())
            self.assertIn(said, p.text())
            p.wait_idle()


if __name__ == "__main__":
    harness.main()
