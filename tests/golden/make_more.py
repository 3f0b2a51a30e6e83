#!/usr/bin/env python3
"""Tiny models of the classes that the shared goldens lack, and what they must compute.

    make_more.py GOLDEN_DIR OUT_DIR

GOLDEN_DIR holds make_golden.py, whose forward pass in float64 is used (numpy); what these classes do
differently is written here a second time, apart from the C code: queries without a low rank,
selection by softmax with and without groups, biases on q, k, v and o. Writes OUT_DIR/models/NAME and
OUT_DIR/goldens/NAME.safetensors, in the layout that make_golden.py documents; and for a model of
GOLDEN_DIR with a multi-token prediction layer OUT_DIR/goldens/draft_chain.safetensors: the logits of
a draft whose state is that of the draft before it.
"""
import os
import sys

sys.path.insert(0, sys.argv[1])
import make_golden as g  # noqa: E402
import numpy as np  # noqa: E402

YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64, "type": "yarn"}


class Model(g.Model):
    """make_golden's, with the parts of DeepSeek-V2 and Qwen2 that it does not have."""

    def lin(self, x, name):
        y = super().lin(x, name)
        if name + ".bias" in self.t:
            y = y + self.val(name + ".bias")
        return y

    def mla(self, h, pre, pos):
        if self.cfg["q_lora_rank"] is not None:
            return super().mla(h, pre, pos)
        # The base class makes queries in two steps: hand it the one step's result as the second.
        lin, norm, q = self.lin, self.norm, self.lin(h, pre + "q_proj")
        self.lin = lambda x, n: q if n.endswith(("q_a_proj", "q_b_proj")) else lin(x, n)
        self.norm = lambda x, n, e=None: x if n.endswith("q_a_layernorm") else norm(x, n, e)
        out = super().mla(h, pre, pos)
        self.lin, self.norm = lin, norm
        return out

    def route(self, h, pre):
        c = self.cfg
        if not c["architectures"][0].startswith("DeepseekV2"):
            return super().route(h, pre)
        n, k = c["n_routed_experts"], c["num_experts_per_tok"]
        logit = h @ self.val(pre + "gate.weight").T
        p = np.exp(logit - logit.max(axis=-1, keepdims=True))
        p = p / p.sum(axis=-1, keepdims=True)
        choice, gap = p, np.inf
        if c["topk_method"] == "group_limited_greedy":
            best = p.reshape(len(h), c["n_group"], -1).max(axis=-1)
            groups, gap = self.top(best, c["topk_group"])
            keep = np.zeros(best.shape, dtype=bool)
            np.put_along_axis(keep, groups, True, axis=-1)
            choice = np.where(np.repeat(keep, n // c["n_group"], axis=-1), p, -np.inf)
        ids, gap_e = self.top(choice, k)
        return ids, np.take_along_axis(p, ids, axis=-1) * c["routed_scaling_factor"], np.minimum(gap, gap_e)


def v2_config(**over):
    c = g.ds_config(architectures=["DeepseekV2ForCausalLM"], hidden_size=32, intermediate_size=64,
                    num_hidden_layers=2, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
                    topk_group=2, norm_topk_prob=False, scoring_func="softmax", kv_lora_rank=32,
                    topk_method="group_limited_greedy", routed_scaling_factor=4.0, q_lora_rank=32,
                    rope_scaling=YARN, vocab_size=256, n_shared_experts=2)
    del c["auto_map"], c["num_nextn_predict_layers"]
    c.update(over)
    return c


def v2_weights(c, seed):
    low = c["q_lora_rank"]
    t = g.ds_weights(dict(c, q_lora_rank=low or 32), seed)
    r = g.Rand(seed + 1)
    rows = c["num_attention_heads"] * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    out = {}
    for name, x in t.items():
        if name.startswith(f"model.layers.{c['num_hidden_layers']}.") or "correction_bias" in name:
            continue
        if low is None and ".q_a_" in name:
            continue
        if low is None and ".q_b_proj" in name:
            name, x = name.replace("q_b_proj", "q_proj"), g.bf16(r.mat(rows, c["hidden_size"], 0.9))
        out[name] = x
    return out


def qwen2_config():
    c = g.qwen_config(False)
    c.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=256, hidden_size=32,
             num_hidden_layers=2)
    del c["attention_bias"]
    return c


def llama_config():
    c = qwen2_config()
    c.update(architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=True)
    return c


def bias_weights(c, seed):
    """Biases on q, k and v; on o where the configuration says so."""
    t = {k: v for k, v in g.gqa_weights(c, seed).items() if "_norm.weight" not in k or "layernorm" in k}
    r = np.random.Generator(np.random.PCG64(seed))
    for i in range(c["num_hidden_layers"]):
        for p in "qkvo" if c.get("attention_bias") else "qkv":
            rows = t[f"model.layers.{i}.self_attn.{p}_proj.weight"].shape[0]
            t[f"model.layers.{i}.self_attn.{p}_proj.bias"] = g.bf16(0.5 * r.standard_normal(rows))
    return t


def draft_chain(folder, ids):
    """Drafts at positions 0 .. n-3 as make_golden's mtp; then one at n-2 with token n-1 and the state
    that the layer left at n-3."""
    m = Model(folder)
    last, p = m.cfg["num_hidden_layers"], f"model.layers.{m.cfg['num_hidden_layers']}."
    e = m.val(p + "embed_tokens.weight")[np.asarray(ids)[1:]]

    def join(embed, state):
        z = np.concatenate([m.norm(embed, p + "enorm"), m.norm(state, p + "hnorm")], axis=-1)
        return m.lin(z, p + "eh_proj")

    n = len(ids)
    first = join(e[:-1], m.forward(ids)["norm"][:n - 2])
    state = m.layer(first, last, np.arange(n - 2), [])
    rows = np.concatenate([first, join(e[-1:], state[-1:])])
    x = m.layer(rows, last, np.arange(n - 1), [])[-1:]
    return m.norm(x, p + "shared_head.norm") @ m.val(p + "shared_head.head.weight").T


def main(out):
    g.Model = Model
    cases = {"deepseek_v2_tiny": (v2_config(), v2_weights, 21),
             "deepseek_v2_lite_tiny": (v2_config(q_lora_rank=None, topk_method="greedy", n_group=1,
                                                 topk_group=1, routed_scaling_factor=1.0), v2_weights, 22),
             "qwen2_tiny": (qwen2_config(), bias_weights, 23),
             "llama_bias_tiny": (llama_config(), bias_weights, 24)}
    for name, (config, weights, seed) in cases.items():
        folder = os.path.join(out, "models", name)
        os.makedirs(folder, exist_ok=True)
        g.json_write(os.path.join(folder, "config.json"), config)
        g.st_write(os.path.join(folder, "model.safetensors"), weights(config, seed), {"format": "pt"})
        prompts = {f"p{n}": g.pick([folder], n, 12, seed) for n in (1, 7, 70)}
        g.golden(out, name, prompts)
        os.remove(os.path.join(out, "goldens", name + ".json"))
    name = "deepseek_v3_mini_w8a8_v1"
    ids = g.st_read(os.path.join(sys.argv[1], "goldens", name + ".safetensors"))["p7.ids"].value()
    logits = draft_chain(os.path.join(sys.argv[1], "models", name), ids.astype(int))
    g.st_write(os.path.join(out, "goldens", "draft_chain.safetensors"),
               {"p7.ids": g.i32(ids), "p7.logits": g.f32(logits)})


main(sys.argv[2])
