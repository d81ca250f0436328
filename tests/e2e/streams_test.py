"""GLM-5.3-Flash and DeepSeek-V4, whose residual has several streams, against plain float64 forward passes in numpy."""
import json
import os
import struct

import numpy as np

import harness
from shapes_test import softmax, to_bf16

TOKENS = 83
COMMON = {
    "vocab_size": 256, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "q_lora_rank": 20,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": 2, "hc_mult": 3, "hc_sinkhorn_iters": 4, "hc_eps": 1e-6, "swiglu_limit": 0.9,
    "index_n_heads": 6, "index_head_dim": 12,
}  # fmt: skip
GLM_TEXT = {
    **COMMON, "model_type": "glm5_next_text", "intermediate_size": 72, "num_key_value_heads": 4, "kv_lora_rank": 24,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 0, "v_head_dim": 10, "index_kpool": 4, "index_topk": 12,
    "index_kpool_always_select_tail": True, "indexer_types": ["full", "full", "shared", "full"],
    "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"], "first_k_dense_replace": 1,
    "linear_attn_config": {"head_dim": 14, "num_heads": 3, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
    "n_group": 2, "topk_group": 1,
}  # fmt: skip
GLM = {"model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"], "text_config": GLM_TEXT}
DEEPSEEK = {
    **COMMON, "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "num_key_value_heads": 1,
    "head_dim": 20, "qk_rope_head_dim": 8, "sliding_window": 9, "o_groups": 2, "o_lora_rank": 14, "num_hash_layers": 1,
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "compress_ratios": [0, 4, 128, 4, 0], "index_topk": 5, "num_nextn_predict_layers": 1,
}  # fmt: skip
# Windows of 128 positions would not end within the text.
SHORT_RATES = {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
               "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention",
                               "sliding_attention", "heavily_compressed_attention"]}  # fmt: skip


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Forward:
    """A forward pass of one text. `weights`: float64 by published name."""

    def __init__(self, config, weights, ids):
        self.config, self.weights, self.ids, self.tokens = config, weights, ids, len(ids)
        self.epsilon = config.get("rms_norm_eps", 1e-6)

    def product(self, x, name):
        return x @ self.weights[name].T

    def norm(self, x, name=None):
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon)
        return x if name is None else x * self.weights[name]

    def ffn(self, x, base, names=("gate_proj", "up_proj", "down_proj")):
        limit = self.config["swiglu_limit"]
        gate, up = (self.product(x, f"{base}{name}.weight") for name in names[:2])
        return self.product(silu(np.minimum(gate, limit)) * np.clip(up, -limit, limit), f"{base}{names[2]}.weight")

    # Hyper-connections.

    def mix(self, x, prefix):
        """x: [tokens, streams, hidden]. A block's input, and the factors of its output."""
        m, epsilon = self.config["hc_mult"], self.config["hc_eps"]
        w = self.product(self.norm(x.reshape(self.tokens, -1)), prefix + "fn")
        scale, base = self.weights[prefix + "scale"], self.weights[prefix + "base"]
        pre = sigmoid(scale[0] * w[:, :m] + base[:m]) + epsilon
        y = np.einsum("tm,tmh->th", pre, x)
        if len(scale) == 1:
            return y, None, None
        post = 2 * sigmoid(scale[1] * w[:, m : 2 * m] + base[m : 2 * m])
        matrix = softmax((scale[2] * w[:, 2 * m :] + base[2 * m :]).reshape(-1, m, m)) + epsilon
        matrix /= matrix.sum(1, keepdims=True) + epsilon
        for _ in range(self.config["hc_sinkhorn_iters"] - 1):
            matrix /= matrix.sum(2, keepdims=True) + epsilon
            matrix /= matrix.sum(1, keepdims=True) + epsilon
        return y, post, matrix

    def block(self, x, prefix, norm, run):
        y, post, matrix = self.mix(x, prefix)
        out = run(self.norm(y, norm))
        return post[..., None] * out[:, None] + np.einsum("tij,tih->tjh", matrix, x)

    # Parts of both families.

    def compress(self, values, gates, bias, rate, overlap):
        """Entries of whole windows: a softmax over positions for each value."""
        dim = values.shape[-1] // (2 if overlap else 1)
        entries = []
        for e in range(self.tokens // rate):
            own = slice(e * rate, e * rate + rate)
            v, g = values[own, -dim:], gates[own, -dim:] + bias[:, -dim:]
            if overlap and e > 0:
                before = slice(e * rate - rate, e * rate)
                v = np.concatenate([values[before, :dim], v])
                g = np.concatenate([gates[before, :dim] + bias[:, :dim], g])
            entries.append((softmax(g.T).T * v).sum(0))
        return np.array(entries).reshape(-1, dim)

    def best_entries(self, q, entries, x, base, rate, count):
        """[tokens, entries]: True for the best of those complete at a token."""
        heads, dim = q.shape[1:]
        share = self.product(x, base + "weights_proj.weight") * heads**-0.5
        scores = np.einsum("th,ths->ts", share, np.maximum(np.einsum("thd,sd->ths", q, entries) * dim**-0.5, 0))
        visible = np.arange(len(entries))[None] < (np.arange(self.tokens)[:, None] + 1) // rate
        order = np.argsort(np.where(visible, -scores, np.inf), -1, kind="stable")[:, :count]
        chosen = np.zeros_like(visible)
        np.put_along_axis(chosen, order, True, -1)
        return chosen & visible

    def mixture(self, x, base, scores, wanted, chosen=None, names=("gate_proj", "up_proj", "down_proj")):
        out = self.ffn(x, base + "shared_experts.", names)
        for token in range(self.tokens):
            best = np.argsort(-wanted[token], kind="stable")[: self.config["num_experts_per_tok"]]
            best = best if chosen is None else chosen[token].astype(int)
            total = scores[token][best].sum() + 1e-20
            for expert in best:
                share = scores[token][expert] / total * self.config["routed_scaling_factor"]
                out[token] += share * self.ffn(x[token], base + f"experts.{expert}.", names)
        return out


class Glm(Forward):
    def run(self):
        base = "model.language_model."
        x = np.repeat(self.weights[base + "embed_tokens.weight"][self.ids][:, None], self.config["hc_mult"], 1)
        for layer in range(self.config["num_hidden_layers"]):
            p = f"{base}layers.{layer}."
            linear = self.config["layer_types"][layer] == "linear_attention"
            attend = self.delta if linear else self.latent
            x = self.block(x, p + "hc_attn_", p + "input_layernorm.weight", lambda h: attend(p + "self_attn.", h))
            types = self.config.get("mlp_layer_types")
            dense = types[layer] == "dense" if types else layer < self.config["first_k_dense_replace"]
            run = (lambda h: self.ffn(h, p + "mlp.")) if dense else (lambda h: self.sparse(p + "mlp.", h))
            x = self.block(x, p + "hc_ffn_", p + "post_attention_layernorm.weight", run)
        return self.product(self.norm(x.mean(1), base + "norm.weight"), "lm_head.weight")

    def sparse(self, base, x):
        scores = sigmoid(self.product(x, base + "gate.weight"))
        wanted = scores + self.weights[base + "gate.e_score_correction_bias"]
        groups = self.config["n_group"]
        if groups > 1:
            by_group = wanted.reshape(self.tokens, groups, -1)
            order = np.argsort(-np.sort(by_group, -1)[..., -2:].sum(-1), -1, kind="stable")
            for token in range(self.tokens):
                by_group[token, order[token, self.config["topk_group"] :]] = -np.inf
        return self.mixture(x, base, scores, wanted)

    def delta(self, base, x):
        linear = self.config.get("linear_attn_config") or {
            "head_dim": self.config["linear_head_dim"], "num_heads": self.config["linear_num_heads"],
            "short_conv_kernel_size": self.config["linear_conv_kernel_dim"],
            "gate_lower_bound": self.config["linear_lower_bound"]}  # fmt: skip
        heads, dim, kernel = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]

        def convolved(name):
            rows = self.product(x, f"{base}{name}_proj.weight")
            padded = np.concatenate([np.zeros((kernel - 1, rows.shape[1])), rows])
            weights = self.weights[f"{base}{name}_conv1d.weight"][:, 0]
            out = sum(padded[j : j + self.tokens] * weights[:, j] for j in range(kernel))
            return silu(out).reshape(self.tokens, heads, dim)

        q, k, v = (convolved(name) for name in "qkv")
        q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        q = q * dim**-0.5
        f = self.product(self.product(x, base + "f_a_proj.weight"), base + "f_b_proj.weight") + self.weights[base + "dt_bias"]
        rate = np.exp(self.weights[base + "A_log"])[:, None]
        decay = np.exp(linear["gate_lower_bound"] * sigmoid(rate * f.reshape(self.tokens, heads, dim)))
        beta = sigmoid(self.product(x, base + "b_proj.weight"))
        state, out = np.zeros((heads, dim, dim)), np.zeros((self.tokens, heads, dim))
        for t in range(self.tokens):
            state = decay[t][..., None] * state
            error = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t][..., None] * error[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        gate = self.product(self.product(x, base + "g_a_proj.weight"), base + "g_b_proj.weight")
        out = self.norm(out, base + "o_norm.weight").reshape(self.tokens, -1) * sigmoid(gate)
        return self.product(out, base + "o_proj.weight")

    def latent(self, base, x):
        config, heads, nope = self.config, self.config["num_attention_heads"], self.config["qk_nope_head_dim"]
        q_latent = self.norm(self.product(x, base + "q_a_proj.weight"), base + "q_a_layernorm.weight")
        if base + "indexer.wk.weight" in self.weights:
            self.seen = self.choose(base + "indexer.", x, q_latent)
        q = self.product(q_latent, base + "q_b_proj.weight").reshape(self.tokens, heads, nope)
        row = self.norm(self.product(x, base + "kv_a_proj_with_mqa.weight"), base + "kv_a_layernorm.weight")
        kv = self.product(row, base + "kv_b_proj.weight").reshape(self.tokens, heads, -1)
        scores = np.einsum("thd,shd->hts", q, kv[..., :nope]) * nope**-0.5
        chances = softmax(np.where(self.seen, scores, -np.inf))
        out = np.einsum("hts,shd->thd", chances, kv[..., nope:])
        assert out.shape[-1] == config["v_head_dim"]
        return self.product(out.reshape(self.tokens, -1), base + "o_proj.weight")

    def choose(self, base, x, q_latent):
        """[tokens, tokens]: True for the positions of the best pools, and for those behind the last whole one."""
        config, pool = self.config, self.config["index_kpool"]
        q = self.product(q_latent, base + "wq_b.weight").reshape(self.tokens, config["index_n_heads"], -1)
        keys = self.product(x, base + "wk.weight")
        keys = (keys - keys.mean(-1, keepdims=True)) / np.sqrt(keys.var(-1, keepdims=True) + 1e-6)
        keys = keys * self.weights[base + "k_norm.weight"] + self.weights[base + "k_norm.bias"]
        gates = self.product(x, base + "index_kpool_compress_gate")
        pools = self.compress(keys, gates, self.weights[base + "index_kpool_compress_ape"], pool, False)
        chosen = self.best_entries(q, pools, x, base, pool, config["index_topk"] // pool)
        position = np.arange(self.tokens)
        tail = position[None] >= ((position[:, None] + 1) // pool) * pool
        seen = np.repeat(chosen, pool, 1)
        seen = np.concatenate([seen, np.zeros((self.tokens, self.tokens - seen.shape[1]), bool)], 1)
        return (seen | tail) & (position[None] <= position[:, None])


class Deepseek(Forward):
    def run(self):
        x = np.repeat(self.weights["embed.weight"][self.ids][:, None], self.config["hc_mult"], 1)
        for layer in range(self.config["num_hidden_layers"]):
            p = f"layers.{layer}."
            x = self.block(x, p + "hc_attn_", p + "attn_norm.weight", lambda h: self.attend(p + "attn.", h, self.rate(layer)))
            hashed = layer < self.config["num_hash_layers"]
            x = self.block(x, p + "hc_ffn_", p + "ffn_norm.weight", lambda h: self.sparse(p + "ffn.", h, hashed))
        return self.product(self.norm(self.mix(x, "hc_head_")[0], "norm.weight"), "head.weight")

    def rate(self, layer):
        if "layer_types" not in self.config:
            return self.config["compress_ratios"][layer]
        return self.config["compress_rates"].get(self.config["layer_types"][layer], 0)

    def sparse(self, base, x, hashed):
        scores = np.sqrt(np.logaddexp(0, self.product(x, base + "gate.weight")))
        wanted = scores if hashed else scores + self.weights[base + "gate.bias"]
        chosen = self.weights[base + "gate.tid2eid"][self.ids] if hashed else None
        return self.mixture(x, base, scores, wanted, chosen, ("w1", "w3", "w2"))

    def rope(self, x, positions, rate, back=False):
        """Turns neighbouring pairs of the last values of [positions, heads, dim]."""
        config, size = self.config, self.config["qk_rope_head_dim"]
        frequencies = config["rope_theta" if rate == 0 else "compress_rope_theta"] ** (-np.arange(0, size, 2) / size)
        scaling = config.get("rope_scaling")
        if rate > 0 and scaling:
            original = scaling["original_max_position_embeddings"]

            def place(turns):
                return size * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(config["compress_rope_theta"]))

            low, high = max(np.floor(place(scaling["beta_fast"])), 0), min(np.ceil(place(scaling["beta_slow"])), size - 1)
            ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
            frequencies = frequencies / scaling["factor"] * ramp + frequencies * (1 - ramp)
        angle = np.outer(positions, frequencies)[:, None] * (-1 if back else 1)
        turned = x[..., -size:]
        a, b = turned[..., ::2], turned[..., 1::2]
        pairs = np.stack([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)
        return np.concatenate([x[..., :-size], pairs.reshape(turned.shape)], -1)

    def entries(self, base, x, rate):
        values, gates = self.product(x, base + "wkv.weight"), self.product(x, base + "wgate.weight")
        chooses = rate == self.config.get("compress_rates", {}).get("compressed_sparse_attention", 4)
        made = self.compress(values, gates, self.weights[base + "ape"], rate, chooses)
        made = self.norm(made, base + "norm.weight")
        return self.rope(made[:, None], np.arange(len(made)) * rate, rate)[:, 0], chooses

    def attend(self, base, x, rate):
        config, heads, dim, window = self.config, self.config["num_attention_heads"], self.config["head_dim"], self.config["sliding_window"]
        position = np.arange(self.tokens)
        q_latent = self.norm(self.product(x, base + "wq_a.weight"), base + "q_norm.weight")
        q = self.norm(self.product(q_latent, base + "wq_b.weight").reshape(self.tokens, heads, dim))
        q = self.rope(q, position, rate)
        keys = self.norm(self.product(x, base + "wkv.weight"), base + "kv_norm.weight")
        keys = self.rope(keys[:, None], position, rate)[:, 0]
        seen = (position[None] <= position[:, None]) & (position[:, None] - position[None] < window)
        if rate > 0:
            made, chooses = self.entries(base + "compressor.", x, rate)
            visible = np.arange(len(made))[None] < (position[:, None] + 1) // rate
            if chooses:
                index_q = self.product(q_latent, base + "indexer.wq_b.weight").reshape(self.tokens, config["index_n_heads"], -1)
                index_keys, _ = self.entries(base + "indexer.compressor.", x, rate)
                index_q = self.rope(index_q, position, rate)
                visible = self.best_entries(index_q, index_keys, x, base + "indexer.", rate, config["index_topk"])
            keys, seen = np.concatenate([keys, made]), np.concatenate([seen, visible], 1)
        scores = np.where(seen, np.einsum("thd,sd->hts", q, keys) * dim**-0.5, -np.inf)
        sinks = np.broadcast_to(self.weights[base + "attn_sink"][:, None, None], scores.shape[:2] + (1,))
        chances = softmax(np.concatenate([scores, sinks], -1))[..., :-1]
        out = self.rope(np.einsum("hts,sd->thd", chances, keys), position, rate, back=True)
        groups = out.reshape(self.tokens, config["o_groups"], -1)
        wo_a = self.weights[base + "wo_a.weight"].reshape(config["o_groups"], config["o_lora_rank"], -1)
        return self.product(np.einsum("tgi,gri->tgr", groups, wo_a).reshape(self.tokens, -1), base + "wo_b.weight")


def shapes_of_streams(config, p):
    m, rows = config["hc_mult"], (2 + config["hc_mult"]) * config["hc_mult"]
    return {p + "fn": (rows, m * config["hidden_size"]), p + "base": (rows,), p + "scale": (3,)}


def shapes_of_mixture(config, base, names):
    hidden, width, shapes = config["hidden_size"], config["moe_intermediate_size"], {}
    for expert in [f"experts.{e}." for e in range(config["n_routed_experts"])] + ["shared_experts."]:
        shapes |= {f"{base}{expert}{names[0]}.weight": (width, hidden), f"{base}{expert}{names[1]}.weight": (width, hidden),
                   f"{base}{expert}{names[2]}.weight": (hidden, width)}  # fmt: skip
    return shapes | {base + "gate.weight": (config["n_routed_experts"], hidden)}


def glm_shapes(config):
    hidden, heads, linear = config["hidden_size"], config["num_attention_heads"], config["linear_attn_config"]
    values, dim = linear["num_heads"] * linear["head_dim"], linear["head_dim"]
    base = "model.language_model."
    shapes = {base + "embed_tokens.weight": (config["vocab_size"], hidden), base + "norm.weight": (hidden,),
              "lm_head.weight": (config["vocab_size"], hidden)}  # fmt: skip
    for layer in range(config["num_hidden_layers"]):
        p = f"{base}layers.{layer}."
        a, i = p + "self_attn.", p + "self_attn.indexer."
        shapes |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,)}
        shapes |= shapes_of_streams(config, p + "hc_attn_") | shapes_of_streams(config, p + "hc_ffn_")
        if config["layer_types"][layer] == "linear_attention":
            shapes |= {f"{a}{name}_proj.weight": (values, hidden) for name in "qkv"}
            shapes |= {f"{a}{name}_conv1d.weight": (values, 1, linear["short_conv_kernel_size"]) for name in "qkv"}
            shapes |= {f"{a}{name}_a_proj.weight": (dim, hidden) for name in "fg"}
            shapes |= {f"{a}{name}_b_proj.weight": (values, dim) for name in "fg"}
            shapes |= {a + "b_proj.weight": (linear["num_heads"], hidden), a + "A_log": (linear["num_heads"],),
                       a + "dt_bias": (values,), a + "o_norm.weight": (dim,), a + "o_proj.weight": (hidden, values)}  # fmt: skip
        else:
            rank, nope = config["q_lora_rank"], config["qk_nope_head_dim"]
            shapes |= {
                a + "q_a_proj.weight": (rank, hidden), a + "q_a_layernorm.weight": (rank,), a + "q_b_proj.weight": (heads * nope, rank),
                a + "kv_a_proj_with_mqa.weight": (config["kv_lora_rank"], hidden), a + "kv_a_layernorm.weight": (config["kv_lora_rank"],),
                a + "kv_b_proj.weight": (heads * (nope + config["v_head_dim"]), config["kv_lora_rank"]),
                a + "o_proj.weight": (hidden, heads * config["v_head_dim"]),
            }  # fmt: skip
            if config["indexer_types"][layer] == "full":
                size, count = config["index_head_dim"], config["index_n_heads"]
                shapes |= {
                    i + "wq_b.weight": (count * size, rank), i + "wk.weight": (size, hidden), i + "k_norm.weight": (size,),
                    i + "k_norm.bias": (size,), i + "weights_proj.weight": (count, hidden),
                    i + "index_kpool_compress_gate": (size, hidden), i + "index_kpool_compress_ape": (config["index_kpool"], size),
                }  # fmt: skip
        if layer < config["first_k_dense_replace"]:
            width = config["intermediate_size"]
            shapes |= {p + "mlp.gate_proj.weight": (width, hidden), p + "mlp.up_proj.weight": (width, hidden),
                       p + "mlp.down_proj.weight": (hidden, width)}  # fmt: skip
            continue
        shapes |= shapes_of_mixture(config, p + "mlp.", ("gate_proj", "up_proj", "down_proj"))
        shapes[p + "mlp.gate.e_score_correction_bias"] = (config["n_routed_experts"],)
    return shapes


def deepseek_shapes(config):
    hidden, heads, dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    m, rank, outs = config["hc_mult"], config["q_lora_rank"], config["o_groups"] * config["o_lora_rank"]
    shapes = {"embed.weight": (config["vocab_size"], hidden), "norm.weight": (hidden,), "head.weight": (config["vocab_size"], hidden),
              "hc_head_fn": (m, m * hidden), "hc_head_base": (m,), "hc_head_scale": (1,)}  # fmt: skip

    def compressor(base, rate, size, overlap):
        width = size * (2 if overlap else 1)
        return {base + "wkv.weight": (width, hidden), base + "wgate.weight": (width, hidden), base + "ape": (rate, width),
                base + "norm.weight": (size,)}  # fmt: skip

    for layer in range(config["num_hidden_layers"]):
        p, a = f"layers.{layer}.", f"layers.{layer}.attn."
        shapes |= {
            p + "attn_norm.weight": (hidden,), p + "ffn_norm.weight": (hidden,), a + "wq_a.weight": (rank, hidden),
            a + "q_norm.weight": (rank,), a + "wq_b.weight": (heads * dim, rank), a + "wkv.weight": (dim, hidden),
            a + "kv_norm.weight": (dim,), a + "attn_sink": (heads,), a + "wo_b.weight": (hidden, outs),
            a + "wo_a.weight": (outs, heads * dim // config["o_groups"]),
        }  # fmt: skip
        shapes |= shapes_of_streams(config, p + "hc_attn_") | shapes_of_streams(config, p + "hc_ffn_")
        rate = Deepseek.rate(Deepseek(config, {}, []), layer)
        chooses = rate == config.get("compress_rates", {}).get("compressed_sparse_attention", 4)
        if rate > 0:
            shapes |= compressor(a + "compressor.", rate, dim, chooses)
        if chooses:
            size, count = config["index_head_dim"], config["index_n_heads"]
            shapes |= compressor(a + "indexer.compressor.", rate, size, True)
            shapes |= {a + "indexer.wq_b.weight": (count * size, rank), a + "indexer.weights_proj.weight": (count, hidden)}
        shapes |= shapes_of_mixture(config, p + "ffn.", ("w1", "w3", "w2"))
        if layer < config["num_hash_layers"]:
            shapes[p + "ffn.gate.tid2eid"] = (config["vocab_size"], config["num_experts_per_tok"])
        else:
            shapes[p + "ffn.gate.bias"] = (config["n_routed_experts"],)
    return shapes


def draw(name, shape, config, random):
    """(type word, stored array, float64 values) of a tensor."""
    if name.endswith("tid2eid"):
        experts = np.array([random.permutation(config["n_routed_experts"])[: shape[1]] for _ in range(shape[0])])
        return "I64", experts.astype(np.int64), experts.astype(np.float64)
    values = random.normal(size=shape)
    if name.endswith("A_log"):
        values = np.log(1 + np.abs(3 * values))
    elif len(shape) == 1:
        values = 1 + 0.1 * values if "norm" in name and name.endswith("weight") or name.endswith("scale") else 0.3 * values
    elif "embed" not in name and not name.endswith("ape"):
        values = values / np.sqrt(shape[-1])
    if ".hc_" in name or name.startswith("hc_"):
        values = values.astype(np.float32)
        return "F32", values, values.astype(np.float64)
    bits = to_bf16(values)
    return "BF16", bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def write(path, tensors):
    header, offset = {}, 0
    for name, (kind, stored, _) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(stored.shape), "data_offsets": [offset, offset + stored.nbytes]}
        offset += stored.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, stored, _ in tensors.values():
            out.write(np.ascontiguousarray(stored).tobytes())


def write_model(folder, config, shapes):
    """Writes a folder with random weights; returns these and the tokens of a text."""
    text = config.get("text_config", config)
    random = np.random.default_rng(6)
    tensors = {name: draw(name, shape, text, random) for name, shape in shapes(text).items()}
    ids = random.integers(0, text["vocab_size"], TOKENS)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)
    write(os.path.join(folder, "model.safetensors"), tensors)
    return {name: values for name, (_, _, values) in tensors.items()}, ids


class StreamsTest(harness.TestCase):
    def check(self, config, text, shapes, family):
        folder = os.path.join(self.work, self.id())
        weights, ids = write_model(folder, config, shapes)
        self.ok("pack", folder, "--out", folder + ".pack", "--bits", "bf16")
        with open(folder + ".json", "w") as out:
            json.dump(ids.tolist(), out)
        expected = family(text, weights, ids).run()
        # Chunks that end within windows and entries, and the whole text at once.
        logits = []
        for chunk in (17, 1, 128):
            self.ok("logits", "--pack", folder + ".pack", "--token-ids-file", folder + ".json", "--out", folder + ".out",
                    "--kv", "f32", "--prefill-chunk", chunk)  # fmt: skip
            logits.append(harness.read_safetensors(folder + ".out")["logits"])
        difference = float(np.abs(logits[0] - expected).max())
        print(f"{self.id()}: largest difference {difference:.1e} of logits up to {np.abs(expected).max():.0f}")
        self.assertLessEqual(difference, 1e-4 * max(1.0, np.abs(expected).max()))
        for other in logits[1:]:
            np.testing.assert_array_equal(other, logits[0])

    def check_glm(self, **changes):
        text = {**GLM_TEXT, **changes}
        self.check({**GLM, "text_config": text}, text, glm_shapes, Glm)

    def check_deepseek(self, **changes):
        config = {**DEEPSEEK, **changes}
        self.check(config, config, deepseek_shapes, Deepseek)

    def test_glm5_next(self):
        self.check_glm()

    def test_pools_of_one_position_and_of_a_page(self):
        self.check_glm(index_kpool=1, index_topk=3)
        self.work = os.path.join(self.work, "page")
        os.makedirs(self.work)
        self.check_glm(index_kpool=32, index_topk=32)

    def test_deepseek_v4(self):
        self.check_deepseek()

    def test_entries_of_other_rates_and_yarn(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
        self.check_deepseek(**SHORT_RATES, rope_scaling=yarn, num_hash_layers=2)


if __name__ == "__main__":
    harness.main()
