"""P and D on two hosts, and the cable between them pulled in the middle of a transfer: D goes by its policy,
P's blocks are free again, and both go on when the cable is back. Needs root, for a network namespace."""
import threading

import client
import harness
import legs
import netns
import texts
from harness import E2E, wait_until

# 23 KB a token: 20 MB at 5 MB/s. It is cut when a fifth has come.
PROMPT, RATE, ENOUGH = 900, "40mbit", 4 << 20
PATIENCE = 120
# Both are one machine to UCX, which would go through its memory.
ENV = {"UCX_TLS": "tcp,self"}
WAITS = {"pull_timeout": 3, "connect_timeout": 3}


class Cut(E2E):
    def setUp(self):
        if harness.Config.tiny:
            self.skipTest("the model's KV is too small to be cut off on its way")
        self.other = netns.OtherHost()
        self.addCleanup(self.other.remove)
        self.other.slow_down(RATE)

    def hosts(self, policy, args):
        """P there and D here, ready."""
        p = harness.serve("P", args, "kv_producer", self.config(netns.THERE), ENV)
        p.prefix = self.other.prefix()
        d = harness.serve("D", [], "kv_consumer", {**self.config(netns.HERE),
                                                   "kv_load_failure_policy": policy}, ENV)
        self.addCleanup(lambda: [s.kill() for s in (p, d) if s.running()])
        p.start()
        d.start().wait_ready()
        with self.other.inside():
            p.wait_ready()
        return p, d

    @staticmethod
    def config(ip):
        return {"kv_port": "0", "kv_ip": ip, "kv_connector_extra_config": WAITS}

    def cut_off(self, policy, args=()):
        """What D answers when the cable is pulled while it pulls; and what one process says."""
        p, d = self.hosts(policy, args)
        with self.other.inside():
            ids = texts.corpus(p.port)[:PROMPT + 60]
            prompt, next_prompt = ids[:PROMPT], ids[PROMPT:]
            want, then = [client.tokens(client.complete(p.port, x, 8)) for x in (prompt, next_prompt)]
            params = legs.prefill(p.port, prompt)
            self.assertEqual(p.metrics().get("sluice:kv_leases"), 1)
        replies, before = [], self.other.received()
        leg = threading.Thread(target=lambda: replies.append(legs.decode(d.port, prompt, params, 8, PATIENCE)))
        leg.start()
        wait_until("KV on its way", PATIENCE, lambda: self.other.received() - before > ENOUGH)
        self.assertEqual(d.metrics().get("sluice:kv_pulls"), 1)
        self.other.cut()
        leg.join()
        self.assertEqual(d.metrics().get("sluice:kv_transfer_failures_total"), 1)
        self.assertIn("KV pull of", d.text())
        d.wait_idle()
        with self.other.inside():
            p.wait_idle()
        self.again(p, d, next_prompt, then)
        self.assertEqual(d.metrics().get("sluice:kv_transfer_failures_total"), 1)
        for s in (d, p):
            s.stop()
        return replies[0], want

    def again(self, p, d, prompt, want):
        """The cable is back: KV is pulled as if nothing had been."""
        self.other.mend()
        came = d.metrics().get("sluice:kv_transfer_bytes_total", direction="received")
        with self.other.inside():
            params = legs.prefill(p.port, prompt)
        self.assertEqual(client.tokens(legs.decode(d.port, prompt, params, 8)), want)
        self.assertGreater(d.metrics().get("sluice:kv_transfer_bytes_total", direction="received"), came)
        d.wait_idle()
        with self.other.inside():
            p.wait_idle()

    def test_recompute(self):
        reply, want = self.cut_off("recompute", ["-pp", 2])
        self.assertEqual(client.tokens(reply), want)

    def test_fail(self):
        reply, _ = self.cut_off("fail")
        self.expect(reply, 500)
        self.assertIn("KV load failed:", reply.json()["error"]["message"])


if __name__ == "__main__":
    harness.main()
