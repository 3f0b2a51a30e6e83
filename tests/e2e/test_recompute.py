"""A decode instance without KV blocks gives requests back, and the proxy goes on with them: the client
sees one answer, with the tokens of a plain instance."""
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import texts
from harness import E2E

# Each request comes to need 10 to 12 blocks; D has 16. The steps are slow enough for several to be there.
SMALL = ["--max-model-len", 256, "--num-gpu-blocks-override", 16, "--block-size", 16]
LARGE = ["--max-model-len", 256, "--num-gpu-blocks-override", 200, "--block-size", 16]
RECOMPUTE = ["--additional-config", '{"recompute_scheduler_enable": true}', "--step-delay", 0.03,
             "--no-enable-prefix-caching"]
N_OUT = 110


class Recompute(E2E):
    @classmethod
    def setUpFleet(cls):
        fleet = harness.deployment(p_size=LARGE, d_size=SMALL, d_args=RECOMPUTE)
        cls.plain = fleet.add(harness.serve("plain").start().wait_ready())
        cls.ids = texts.corpus(cls.plain.port)
        return fleet

    def ask_all(self, port, ask, fields):
        prompts = texts.slices(self.ids, [50, 61, 64, 70], shared=1)

        def one(job):
            i, prompt = job
            more = dict(fields, seed=fields["seed"] + i) if "seed" in fields else fields
            return ask(port, {"prompt": prompt, "max_tokens": N_OUT, "ignore_eos": True, **more})

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(one, enumerate(prompts)))

    def whole(self, port, body):
        reply = client.post(port, "/v1/completions", {**body, "return_token_ids": True}, timeout=120)
        self.assertEqual(reply.status, 200, reply)
        choice, usage = reply.json()["choices"][0], reply.json()["usage"]
        self.assertIsNone(reply.json().get("kv_transfer_params"))
        return (choice["token_ids"], choice["text"], choice["finish_reason"], choice["stop_reason"],
                usage["prompt_tokens"], usage["completion_tokens"])

    def streamed(self, port, body):
        ids, text, ends = [], "", []
        body = {**body, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
        with client.Stream(port, "/v1/completions", body, timeout=120) as stream:
            for event in stream:
                if event.get("usage"):
                    usage = event["usage"]
                for c in event["choices"]:
                    ids += c["token_ids"] or []
                    text += c["text"]
                    ends += [(c["finish_reason"], c["stop_reason"])] if c["finish_reason"] else []
            self.assertTrue(stream.done)
        self.assertEqual(len(ends), 1)
        return ids, text, *ends[0], usage["prompt_tokens"], usage["completion_tokens"]

    def chat(self, port, body):
        """The text of a streamed chat, and how often a role was told."""
        words = {"messages": [{"role": "user", "content": f"Count to {body['seed']}."}]}
        body = {k: v for k, v in body.items() if k != "prompt"}
        text, roles = "", 0
        with client.Stream(port, "/v1/chat/completions", {**body, **words, "stream": True}, timeout=120) as s:
            for event in s:
                for c in event["choices"]:
                    text += c["delta"].get("content") or ""
                    roles += "role" in c["delta"]
            self.assertTrue(s.done)
        return text, roles

    def same(self, ask, fields):
        proxy = self.fleet.proxy
        before = proxy.metrics().get("sluice:proxy_given_back_total")
        want = self.ask_all(self.plain.port, ask, fields)
        self.assertEqual(self.ask_all(proxy.port, ask, fields), want)
        self.assertGreater(proxy.metrics().get("sluice:proxy_given_back_total"), before)
        m = self.fleet.d.metrics()
        self.assertEqual(m.get("vllm:num_preemptions_total"), 0)
        self.assertGreater(m.get("vllm:request_success_total", finished_reason="recomputed"), 0)
        self.fleet.wait_idle()

    def test_1_greedy(self):
        self.same(self.whole, {"temperature": 0})

    def test_2_seeded(self):
        """With penalties, which look at the output so far."""
        self.same(self.whole, {"temperature": 0.9, "seed": 77, "presence_penalty": 0.7, "frequency_penalty": 0.3})

    def test_3_streamed(self):
        self.same(self.streamed, {"temperature": 0.8, "top_p": 0.9, "seed": 5})

    def test_4_chat(self):
        self.same(self.chat, {"temperature": 0.8, "seed": 1000})


if __name__ == "__main__":
    harness.main()
