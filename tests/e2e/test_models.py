"""Tiny models of every architecture and checkpoint format: the greedy tokens that were computed elsewhere,
through one instance and through proxy, P and D, in float32."""
import json
import os
import shutil
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor

import client
import harness
from harness import E2E

OWN = os.path.join(harness.ROOT, "tests", "data", "golden")


def integers(path):
    """The I32 tensors of a safetensors file, by name, as lists."""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(size)), f.read()
    return {name: list(struct.unpack_from(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}i", data,
                                          t["data_offsets"][0]))
            for name, t in head.items() if name != "__metadata__" and t["dtype"] == "I32"}


def prompts_of(name):
    """(prompt's name, its ids, what follows) for each prompt of a golden file."""
    path = os.path.join(OWN, "goldens", f"{name}.safetensors")
    tensors = integers(path if os.path.exists(path) else
                       harness.shared("golden", "goldens", f"{name}.safetensors"))
    names = sorted((key[:-4] for key in tensors if key.endswith(".ids")), key=lambda n: int(n[1:]))
    return [(n, tensors[f"{n}.ids"], tensors[f"{n}.greedy"]) for n in names]


def folder_of(name):
    own = os.path.join(OWN, "models", name)
    return own if os.path.exists(own) else harness.shared("golden", "models", name)


def size(block):
    return ["--max-model-len", 512, "--num-gpu-blocks-override", 2048 // block, "--block-size", block]


class Golden:
    """What is true of each model. A class of tests names it."""
    model = ""
    p_block, d_block = 16, 32
    args = ["--dtype", "float32"]

    @classmethod
    def setUpFleet(cls):
        cls.folder = folder_of(cls.model)
        cls.prompts = prompts_of(cls.model)
        fleet = harness.deployment(p_args=cls.args, d_args=cls.args, p_size=size(cls.p_block),
                                   d_size=size(cls.d_block), model=cls.folder)
        # Long prompts go through it in pieces.
        cls.plain = fleet.add(harness.serve("plain", [*cls.args, "--max-num-batched-tokens", 48],
                                            size=size(16), model=cls.folder).start().wait_ready())
        return fleet

    def same(self, port, prompts=None):
        def ask(one):
            name, ids, want = one
            return name, client.tokens(client.complete(port, ids, len(want))), want

        prompts = prompts or self.prompts
        self.assertGreaterEqual(len(prompts), 3)
        with ThreadPoolExecutor(len(prompts)) as pool:
            for name, got, want in pool.map(ask, prompts):
                self.assertEqual(got, want, name)

    def test_1_plain(self):
        self.same(self.plain.port)
        self.same(self.plain.port)  # cached now

    def test_2_through_p_and_d(self):
        self.same(self.fleet.proxy.port)
        before = self.fleet.d.metrics()
        self.assertGreater(before.get("sluice:kv_transfer_bytes_total", direction="received"), 0)
        self.assertEqual(before.get("sluice:kv_transfer_failures_total"), 0)
        self.same(self.fleet.proxy.port)
        self.assertGreater(self.fleet.d.metrics().get("vllm:prefix_cache_hits_total"),
                           before.get("vllm:prefix_cache_hits_total"))
        self.fleet.wait_idle()


class Drafts(Golden):
    """With a multi-token prediction layer: speculation changes nothing but the number of steps."""
    method = "deepseek_mtp"

    def spec(self, n):
        config = {"method": self.method, "num_speculative_tokens": n}
        return ["--speculative-config", json.dumps(config)]

    def test_3_on_one_instance(self):
        """Greedy and sampled: the same tokens and log-probabilities, over several blocks."""
        ids = self.prompts[1][1]
        some = [{}, {"seed": 7, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5},
                {"logprobs": 2, "min_tokens": 20, "stop_token_ids": [self.prompts[1][2][3]]}]

        def ask(port, fields):
            choice = client.complete(port, ids, 300, **fields).json()["choices"][0]
            return {key: choice[key] for key in ("token_ids", "logprobs", "finish_reason", "stop_reason")}

        want = [ask(self.plain.port, fields) for fields in some]
        for n in (1, 3):
            with self.running(harness.serve(f"drafts-{n}", [*self.args, *self.spec(n)], size=size(16),
                                            model=self.folder)) as server:
                self.same(server.port)
                self.assertEqual([ask(server.port, fields) for fields in some], want)
                self.check_counts(server.metrics(), n)
                server.wait_idle()

    def check_counts(self, m, n):
        drafted = m.get("vllm:spec_decode_num_draft_tokens_total")
        accepted = m.get("vllm:spec_decode_num_accepted_tokens_total")
        by_position = [m.get("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i))
                       for i in range(n)]
        self.assertGreater(m.get("vllm:spec_decode_num_drafts_total"), 0)
        self.assertGreater(accepted, 0)
        self.assertLessEqual(accepted, drafted)
        self.assertEqual(sum(by_position), accepted)
        self.assertEqual(by_position, sorted(by_position, reverse=True))

    def test_4_through_p_and_d(self):
        """With the layer on both sides, on D alone, and on P alone."""
        for p_spec, d_spec in ((self.spec(1), self.spec(2)), ([], self.spec(1)), (self.spec(1), [])):
            fleet = harness.deployment(p_args=[*self.args, *p_spec], d_args=[*self.args, *d_spec],
                                       p_size=size(self.p_block), d_size=size(self.d_block),
                                       model=self.folder)
            try:
                self.same(fleet.proxy.port)
                m = fleet.d.metrics()
                self.assertGreater(m.get("sluice:kv_transfer_bytes_total", direction="received"), 0)
                self.assertEqual(m.get("sluice:kv_transfer_failures_total"), 0)
                self.assertEqual(m.get("vllm:spec_decode_num_drafts_total") > 0, bool(d_spec))
                fleet.wait_idle()
            except BaseException:
                fleet.abandon()
                raise
            fleet.stop()


class LlamaTiny(Golden, E2E):
    model = "llama_tiny"


class Qwen3Tiny(Golden, E2E):
    model = "qwen3_tiny"
    p_block, d_block = 32, 16

    def test_chat(self):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}
        reply = client.post(self.fleet.proxy.port, "/v1/chat/completions", body)
        self.assertEqual(reply.status, 200, reply)
        self.assertEqual(reply.json()["usage"]["completion_tokens"], 4)


class Qwen3MoeTiny(Golden, E2E):
    model = "qwen3_moe_tiny"


class DeepseekV3Tiny(Drafts, E2E):
    model = "deepseek_v3_tiny"


class DeepseekV3TinyFp8(Drafts, E2E):
    model = "deepseek_v3_tiny_fp8"
    p_block, d_block = 32, 16
    args = [*Golden.args, "--quantization", "fp8"]


class DeepseekV3TinyW8a8(Golden, E2E):
    model = "deepseek_v3_tiny_w8a8"
    p_block, d_block = 32, 16
    args = [*Golden.args, "--quantization", "ascend"]


class DeepseekV3MiniW8a8(Drafts, E2E):
    """The newer layout, without a tokenizer, with a quantized MTP layer."""
    model = "deepseek_v3_mini_w8a8_v1"
    args = [*Golden.args, "--skip-tokenizer-init"]
    method = "mtp"


class FastNumbers(E2E):
    """--dtype auto: whatever the rounding, P and D give the tokens of one instance."""

    def routes_agree(self, model):
        folder, prompts = folder_of(model), [ids for _, ids, _ in prompts_of(model)]
        fleet = harness.deployment(p_size=size(16), d_size=size(32), model=folder)
        try:
            plain = fleet.add(harness.serve("plain", size=size(16), model=folder).start().wait_ready())
            for ids in prompts:
                self.assertEqual(client.tokens(client.complete(fleet.proxy.port, ids, 32)),
                                 client.tokens(client.complete(plain.port, ids, 32)))
            self.assertEqual(fleet.d.metrics().get("sluice:kv_transfer_failures_total"), 0)
            fleet.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()

    def test_latent_bf16(self):
        self.routes_agree("deepseek_v3_tiny")

    def test_latent_int8(self):
        self.routes_agree("deepseek_v3_tiny_w8a8")

    def test_heads_and_experts(self):
        self.routes_agree("qwen3_moe_tiny")


class WithoutTokenizer(E2E):
    """--skip-tokenizer-init: ids in, ids out, also through the proxy."""

    @classmethod
    def setUpFleet(cls):
        cls.folder = tempfile.mkdtemp(prefix="sluice-ids-only-")
        for name in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(folder_of("llama_tiny"), name), cls.folder)
        cls.prompts = prompts_of("llama_tiny")
        args = ["--dtype", "float32", "--skip-tokenizer-init"]
        return harness.deployment(p_args=args, d_args=args, p_size=size(16), d_size=size(16),
                                  model=cls.folder)

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        shutil.rmtree(cls.folder)

    def test_ids_go_in_and_out(self):
        for port in (self.fleet.p.port, self.fleet.proxy.port):
            for _, ids, want in self.prompts:
                reply = client.complete(port, ids, len(want))
                self.assertEqual(client.tokens(reply), want)
                choice, usage = reply.json()["choices"][0], reply.json()["usage"]
                self.assertEqual(choice["text"], "")
                self.assertEqual(choice["prompt_token_ids"], ids)
                self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]),
                                 (len(ids), len(want)))

    def test_streams(self):
        _, ids, want = self.prompts[1]
        body = {"prompt": ids, "max_tokens": len(want), "temperature": 0, "return_token_ids": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}
        with client.Stream(self.fleet.proxy.port, "/v1/completions", body) as stream:
            events = list(stream)
            self.assertTrue(stream.done)
        got = [i for e in events for c in e["choices"] for i in c["token_ids"] or []]
        self.assertEqual(got, want)
        self.assertEqual(events[-1]["usage"]["completion_tokens"], len(want))

    def test_texts_are_refused(self):
        for port in (self.fleet.p.port, self.fleet.proxy.port):
            reply = client.post(port, "/v1/completions", {"prompt": "Hi"})
            self.expect(reply, 400, "prompt")
            self.assertIn("--skip-tokenizer-init", reply.json()["error"]["message"])
            self.expect(client.post(port, "/v1/completions", {"prompt": [5], "stop": "x"}), 400, "stop")
            chat = {"messages": [{"role": "user", "content": "Hi"}]}
            self.expect(client.post(port, "/v1/chat/completions", chat), 400, "messages")
        self.expect(client.post(self.fleet.p.port, "/tokenize", {"prompt": "Hi"}), 400)
        self.expect(client.post(self.fleet.p.port, "/detokenize", {"tokens": [5]}), 400)
        self.fleet.wait_idle()

    def test_models_are_listed(self):
        for port in (self.fleet.p.port, self.fleet.proxy.port):
            reply = client.get(port, "/v1/models")
            self.assertEqual(reply.status, 200, reply)
            self.assertEqual(reply.json()["data"][0]["id"], harness.MODEL_NAME)

    def test_without_the_option_it_is_named(self):
        server = harness.serve("no-tokenizer", size=size(16), model=self.folder).start()
        self.assertEqual(server.wait_end(), 1)
        self.assertIn("--skip-tokenizer-init", server.tail(1))


class Mistakes(E2E):
    """What the options ask for and the model does not have: one sentence, exit status 1."""

    def refused(self, args, words, model="llama_tiny"):
        server = harness.serve("refused", args, model=folder_of(model)).start()
        self.assertEqual(server.wait_end(), 1)
        last = server.tail(1)
        self.assertTrue(last.startswith("ERROR"), server.tail())
        self.assertIn(words, last)

    def test_a_longer_context(self):
        self.refused(["--max-model-len", 8193], "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")

    def test_speculation_without_a_layer(self):
        spec = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
        self.refused(["--speculative-config", spec], "has no multi-token prediction layer")

    def test_speculation_without_tensors(self):
        """ModelSlim leaves the layer out by default, and the configuration still counts it."""
        spec = json.dumps({"method": "deepseek_mtp", "num_speculative_tokens": 1})
        self.refused(["--speculative-config", spec], "model.layers.4.", "deepseek_v3_tiny_w8a8")

    def test_another_quantization(self):
        self.refused(["--quantization", "fp8"], "pass --quantization ascend", "deepseek_v3_tiny_w8a8")
        self.refused(["--quantization", "ascend"], "pass --quantization fp8", "deepseek_v3_tiny_fp8")
        self.refused(["--quantization", "awq"], "--quantization awq")

    def test_overrides_are_applied(self):
        """The position limit of the model is the override's."""
        self.refused(["--hf-overrides", '{"max_position_embeddings": 100}', "--max-model-len", 101],
                     "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")


if __name__ == "__main__":
    harness.main()
