"""Qwen3.8-Flash-Next: gated residual streams, chosen blocks and hashed n-grams, against a plain float64 forward pass in numpy."""
import json
import os

import numpy as np

import harness
from shapes_test import softmax
from streams_test import TOKENS, draw, sigmoid, silu, write

TEXT = {
    "model_type": "qwen4_exp_text", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "hc_count": 3, "hc_lowrank": 10,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4, "output_gate_type": "sigmoid", "indexer_n_heads": 3, "indexer_head_dim": 8,
    "indexer_budget": 12, "indexer_compress_ratio": 4, "indexer_kv_heads": 1, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "ple_layer_ids": [1, 3], "ngram_size": 3, "heads_per_ngram": 2, "ple_embed_dim": 24, "ngram_vocab_size_base": 60,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 2, "ple_conv_kernel_size": 4, "seed": 77,
    "number_of_conv_states": 3,
}  # fmt: skip
BASE = "model.language_model."
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(x):
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def primes_from(start, count):
    found, n = [], start
    while len(found) < count:
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            found.append(n)
        n += 1
    return found


def ngram_heads(text):
    return (text["ngram_size"] - 1) * text["heads_per_ngram"]


def ngram_primes(text, number):
    heads = ngram_heads(text)
    return primes_from(text["ngram_vocab_size_base"], (number + 1) * heads)[number * heads :]


def ngram_rows(text, number):
    divisor = text["make_ngram_vocab_size_divisible_by"]
    return -(-sum(ngram_primes(text, number)) // divisor) * divisor


class Qwen4:
    """A forward pass of one text. `weights`: float64 by published name."""

    def __init__(self, text, weights, ids):
        self.text, self.weights, self.ids, self.tokens = text, weights, [int(i) for i in ids], len(ids)

    def product(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def norm(self, x, name, add=1):
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.text["rms_norm_eps"])
        return x * (self.weights[name + ".weight"].reshape(x.shape[-2:] if x.ndim == 3 and add == "streams" else -1) + 1)

    def stream_norm(self, x, name):
        """x: [tokens, streams, hidden], each stream normed apart."""
        return self.norm(x, name, "streams")

    def run(self):
        x = np.repeat(self.weights[BASE + "embed_tokens.weight"][self.ids][:, None], self.text["hc_count"], 1)
        for layer in range(self.text["num_hidden_layers"]):
            p = f"{BASE}layers.{layer}."
            if layer + 1 in self.text["ple_layer_ids"]:
                x = x + self.ngrams(p + "ple.", self.text["ple_layer_ids"].index(layer + 1), x)
            linear = self.text["layer_types"][layer] == "linear_attention"
            y, inject = self.mix(p + "attn_hyper_connection.", x)
            y = self.delta(p + "linear_attn.", y) if linear else self.attend(p + "self_attn.", y)
            x = x + inject[..., None] * y[:, None]
            y, inject = self.mix(p + "mlp_hyper_connection.", x)
            x = x + inject[..., None] * self.mixture(p + "mlp.", y)[:, None]
        return self.product(self.mix(BASE + "hyper_connection_mixer.", x)[0], "lm_head")

    def mix(self, base, x):
        m = self.text["hc_count"]
        n = self.stream_norm(x, base + "hc_norm")
        flat = n.reshape(self.tokens, -1) / m
        gates = self.product(silu(self.product(flat, base + "input_mix_weight_down")), base + "input_mix_weight_up")
        y = (sigmoid(gates).reshape(n.shape) * n).mean(1)
        last = base + "block_inject_weight.weight" not in self.weights
        return y, None if last else 2 * sigmoid(self.product(flat, base + "block_inject_weight"))

    def table(self, base):
        shards = []
        while f"{base}shard_{len(shards)}.weight" in self.weights:
            shards.append(self.weights[f"{base}shard_{len(shards)}.weight"])
        return np.concatenate(shards)

    def ngrams(self, base, number, x):
        text, size, per = self.text, self.text["ngram_size"], self.text["heads_per_ngram"]
        half = max(1, ((1 << 63) - 1) // text["vocab_size"] // 2)
        seed = text["seed"] + 10007 * number
        factors = [2 * (splitmix((seed + GOLDEN * (j + 1)) & MASK) % half) + 1 for j in range(size)]
        primes = ngram_primes(text, number)
        offsets = np.concatenate([[0], np.cumsum(primes)[:-1]])
        table, end, e = self.table(base + "ple_embedding.ngram_embedding."), text["eos_token_id"], []
        for t in range(self.tokens):
            back, ended = [self.ids[t]], False
            for j in range(1, size):
                ended = ended or t - j < 0 or self.ids[t - j] == end
                back.append(end if ended else self.ids[t - j])
            row, x_hash = [], back[0] * factors[0]
            for j in range(1, size):
                x_hash ^= back[j] * factors[j]
                for head in range((j - 1) * per, j * per):
                    row.append(table[offsets[head] + x_hash % primes[head]])
            e.append(np.concatenate(row))
        e = np.array(e)
        key = self.stream_norm(self.product(e, base + "key_proj").reshape(x.shape), base + "norm_key")
        query = self.stream_norm(x, base + "norm_query")
        a = (key * query).sum(-1) / np.sqrt(x.shape[-1])
        gate = sigmoid(np.sign(a) * np.sqrt(np.maximum(np.abs(a), 1e-6)))
        u = gate[..., None] * self.product(e, base + "value_proj")[:, None]
        v = self.stream_norm(u, base + "norm_conv").reshape(self.tokens, -1)
        kernel, weights = text["ple_conv_kernel_size"], self.weights[base + "conv1d.weight"][:, 0]
        padded = np.concatenate([np.zeros(((kernel - 1) * size, v.shape[1])), v])
        out = sum(padded[j * size : j * size + self.tokens] * weights[:, j] for j in range(kernel))
        return u + silu(out).reshape(u.shape)

    def delta(self, base, x):
        text, eps = self.text, self.text["rms_norm_eps"]
        kh, vh, kd, vd = (text["linear_" + name] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        rows, kernel = self.product(x, base + "in_proj_qkv"), text["linear_conv_kernel_dim"]
        padded = np.concatenate([np.zeros((kernel - 1, rows.shape[1])), rows])
        weights = self.weights[base + "conv1d.weight"][:, 0]
        rows = silu(sum(padded[j : j + self.tokens] * weights[:, j] for j in range(kernel)))
        q, k = (rows[:, i * kh * kd : (i + 1) * kh * kd].reshape(self.tokens, kh, kd) for i in (0, 1))
        v = rows[:, 2 * kh * kd :].reshape(self.tokens, vh, vd)
        q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        q, k = (np.repeat(y, vh // kh, 1) for y in (q * kd**-0.5, k))
        beta = sigmoid(self.product(x, base + "in_proj_b"))
        step = np.logaddexp(0, self.product(x, base + "in_proj_a") + self.weights[base + "dt_bias"])
        decay = np.exp(-np.exp(self.weights[base + "A_log"]) * step)
        state, out = np.zeros((vh, kd, vd)), np.zeros((self.tokens, vh, vd))
        for t in range(self.tokens):
            state = decay[t][:, None, None] * state
            error = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t][..., None] * error[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + eps) * self.weights[base + "norm.weight"]
        z = self.product(x, base + "in_proj_z").reshape(out.shape)
        out = out * (sigmoid(z) if text.get("output_gate_type") == "sigmoid" else silu(z))
        return self.product(out.reshape(self.tokens, -1), base + "out_proj")

    def rope(self, x, positions):
        """Turns the first values of [positions, heads, dim], in halves."""
        size = int(self.text["head_dim"] * self.text["rope_parameters"]["partial_rotary_factor"])
        frequencies = self.text["rope_parameters"]["rope_theta"] ** (-np.arange(0, size, 2) / size)
        angle = np.outer(positions, frequencies)[:, None]
        a, b = x[..., : size // 2], x[..., size // 2 : size]
        turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), x[..., size:]]
        return np.concatenate(turned, -1)

    def chosen(self, base, x):
        """[tokens, tokens]: True for the positions of the best blocks, and for those behind the last whole one."""
        text, block, position = self.text, self.text["indexer_compress_ratio"], np.arange(self.tokens)
        heads, dim = text["indexer_n_heads"], text["indexer_head_dim"]
        both = self.product(x, base + "index_qk_proj")
        q = self.rope(self.norm(both[:, : heads * dim].reshape(self.tokens, heads, dim), base + "q_layernorm"), position)
        count = self.tokens // block
        keys = both[: count * block, heads * dim :].reshape(count, block, dim).mean(1)
        keys = self.rope(self.norm(keys, base + "k_layernorm")[:, None], np.arange(count) * block)[:, 0]
        scores = np.maximum(np.einsum("thd,sd->ths", q, keys) * dim**-0.5, 0).sum(1)
        whole = (position[:, None] + 1) // block
        visible = np.arange(count)[None] < whole
        order = np.argsort(np.where(visible, -scores, np.inf), -1, kind="stable")[:, : text["indexer_budget"] // block]
        best = np.zeros_like(visible)
        np.put_along_axis(best, order, True, -1)
        seen = np.repeat(best & visible, block, 1)
        seen = np.concatenate([seen, np.zeros((self.tokens, self.tokens - seen.shape[1]), bool)], 1)
        return (seen | (position[None] >= whole * block)) & (position[None] <= position[:, None])

    def attend(self, base, x):
        text, dim, position = self.text, self.text["head_dim"], np.arange(self.tokens)
        heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
        both = self.product(x, base + "q_proj").reshape(self.tokens, heads, 2 * dim)
        q = self.rope(self.norm(both[..., :dim], base + "q_norm"), position)
        k = self.product(x, base + "k_proj").reshape(self.tokens, kv_heads, dim)
        k = self.rope(self.norm(k, base + "k_norm"), position)
        v = self.product(x, base + "v_proj").reshape(self.tokens, kv_heads, dim)
        k, v = (np.repeat(y, heads // kv_heads, 1) for y in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) * dim**-0.5
        chances = softmax(np.where(self.chosen(base + "indexer.", x), scores, -np.inf))
        out = np.einsum("hts,shd->thd", chances, v) * sigmoid(both[..., dim:])
        return self.product(out.reshape(self.tokens, -1), base + "o_proj")

    def ffn(self, x, base):
        return self.product(silu(self.product(x, base + "gate_proj")) * self.product(x, base + "up_proj"), base + "down_proj")

    def mixture(self, base, x):
        chances = softmax(self.product(x, base + "gate"))
        out = sigmoid(self.product(x, base + "shared_expert_gate")) * self.ffn(x, base + "shared_expert.")
        for token in range(self.tokens):
            best = np.argsort(-chances[token], kind="stable")[: self.text["num_experts_per_tok"]]
            total = chances[token][best].sum() if self.text["norm_topk_prob"] else 1
            for expert in best:
                out[token] += chances[token][expert] / total * self.ffn(x[token], f"{base}experts.{expert}.")
        return out


def shapes_of_mix(text, base, inject):
    all_values, rank = text["hc_count"] * text["hidden_size"], text["hc_lowrank"]
    shapes = {base + "hc_norm": (all_values,), base + "input_mix_weight_down": (rank, all_values),
              base + "input_mix_weight_up": (all_values, rank)}  # fmt: skip
    return shapes | ({base + "block_inject_weight": (text["hc_count"], all_values)} if inject else {})


def shapes_of_ngrams(text, base, number):
    hidden, width, parts = text["hidden_size"], text["ple_embed_dim"], text["split_ngram_parts"]
    all_values = text["hc_count"] * hidden
    shapes = {base + name: (all_values,) for name in ("norm_key", "norm_query", "norm_conv")}
    for part in range(parts):
        shapes[f"{base}ple_embedding.ngram_embedding.shard_{part}"] = (ngram_rows(text, number) // parts, width // ngram_heads(text))
    return shapes | {base + "key_proj": (all_values, width), base + "value_proj": (hidden, width),
                     base + "conv1d": (all_values, 1, text["ple_conv_kernel_size"])}  # fmt: skip


def shapes_of(text):
    hidden, vocab, dim = text["hidden_size"], text["vocab_size"], text["head_dim"]
    shapes = {BASE + "embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden)}
    shapes |= shapes_of_mix(text, BASE + "hyper_connection_mixer.", False)
    for layer in range(text["num_hidden_layers"]):
        p, a, d = (f"{BASE}layers.{layer}.{name}" for name in ("", "self_attn.", "linear_attn."))
        shapes |= shapes_of_mix(text, p + "attn_hyper_connection.", True) | shapes_of_mix(text, p + "mlp_hyper_connection.", True)
        if layer + 1 in text["ple_layer_ids"]:
            shapes |= shapes_of_ngrams(text, p + "ple.", text["ple_layer_ids"].index(layer + 1))
        if text["layer_types"][layer] == "linear_attention":
            kh, vh, kd, vd = (text["linear_" + name] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
            columns = 2 * kh * kd + vh * vd
            shapes |= {d + "in_proj_qkv": (columns, hidden), d + "in_proj_z": (vh * vd, hidden), d + "in_proj_a": (vh, hidden),
                       d + "in_proj_b": (vh, hidden), d + "conv1d": (columns, 1, text["linear_conv_kernel_dim"]),
                       d + "norm": (vd,), d + "out_proj": (hidden, vh * vd)}  # fmt: skip
        else:
            heads, kv, size, count = text["num_attention_heads"], text["num_key_value_heads"], text["indexer_head_dim"], text["indexer_n_heads"]
            shapes |= {a + "q_proj": (2 * heads * dim, hidden), a + "k_proj": (kv * dim, hidden), a + "v_proj": (kv * dim, hidden),
                       a + "o_proj": (hidden, heads * dim), a + "q_norm": (dim,), a + "k_norm": (dim,),
                       a + "indexer.index_qk_proj": ((count + 1) * size, hidden), a + "indexer.q_layernorm": (size,),
                       a + "indexer.k_layernorm": (size,)}  # fmt: skip
        experts = [(f"experts.{e}.", text["moe_intermediate_size"]) for e in range(text["num_experts"])]
        for name, width in experts + [("shared_expert.", text["shared_expert_intermediate_size"])]:
            shapes |= {f"{p}mlp.{name}gate_proj": (width, hidden), f"{p}mlp.{name}up_proj": (width, hidden),
                       f"{p}mlp.{name}down_proj": (hidden, width)}  # fmt: skip
        shapes |= {p + "mlp.gate": (text["num_experts"], hidden), p + "mlp.shared_expert_gate": (1, hidden)}
    shapes = {name + ".weight": shape for name, shape in shapes.items()}
    for layer in range(text["num_hidden_layers"]):
        if text["layer_types"][layer] == "linear_attention":
            for name in ("A_log", "dt_bias"):
                shapes[f"{BASE}layers.{layer}.linear_attn.{name}"] = (text["linear_num_value_heads"],)
    return shapes


def draw_tensor(name, shape, text, random):
    """As of the other families, but norms near 0: the family adds 1 to all but that of linear attention."""
    kind, stored, values = draw(name, shape, text, random)
    if len(shape) == 1 and "norm" in name and ".linear_attn." not in name:
        bits = ((0.1 * random.normal(size=shape)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return "BF16", bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return kind, stored, values


class NgramsTest(harness.TestCase):
    def check(self, **changes):
        text = {**TEXT, **changes}
        random = np.random.default_rng(8)
        tensors = {name: draw_tensor(name, shape, text, random) for name, shape in shapes_of(text).items()}
        ids = random.integers(0, text["vocab_size"], TOKENS)
        ids[random.integers(0, TOKENS, 9)] = text["eos_token_id"]
        folder = os.path.join(self.work, self.id() + str(len(os.listdir(self.work))))
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump({"model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"], "text_config": text}, out)
        write(os.path.join(folder, "model.safetensors"), tensors)
        self.ok("pack", folder, "--out", folder + ".pack", "--bits", "bf16")
        with open(folder + ".json", "w") as out:
            json.dump(ids.tolist(), out)
        expected = Qwen4(text, {name: values for name, (_, _, values) in tensors.items()}, ids).run()
        # Chunks that end within blocks and n-grams, and the whole text at once.
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

    def test_qwen4_exp(self):
        self.check()

    def test_other_ngrams_blocks_and_gates(self):
        self.check(ngram_size=2, heads_per_ngram=3, ple_embed_dim=30, ple_layer_ids=[3], split_ngram_parts=1,
                   make_ngram_vocab_size_divisible_by=1, ple_conv_kernel_size=3, output_gate_type="silu", norm_topk_prob=False,
                   indexer_compress_ratio=1, indexer_budget=5)  # fmt: skip
        self.check(ngram_size=4, heads_per_ngram=1, ple_embed_dim=18, split_ngram_parts=4, hc_count=2, indexer_compress_ratio=16,
                   indexer_budget=16)  # fmt: skip

    def test_tables_of_many_extents(self):
        self.check(ngram_vocab_size_base=40000)

    def test_without_ngrams(self):
        self.check(ple_layer_ids=[])


if __name__ == "__main__":
    harness.main()
