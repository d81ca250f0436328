"""Mixtral checkpoints of unusual shapes, as files of both generations, and the families that transformers does not have,
against a plain float64 forward pass in numpy."""
import json
import os
import struct

import numpy as np

import harness

TOKENS = 70
VOCAB = 256


def to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(tensor.tobytes())


class Shape:
    """hidden, width, layers, heads, kv, head_dim, experts, top_k; window: sliding window or None."""

    model, architecture = "mixtral", "MixtralForCausalLM"
    moe, router, parts = "block_sparse_moe.", "gate", ("w1", "w3", "w2")  # gate, up, down
    shared, dense_layers, dense_width, norm_top = 0, 0, 0, True  # shared: widths of the FFN that every token uses

    def __init__(self, *numbers, window=None, tied=False, shards=1, old_config=False, theta=10000.0):
        (self.hidden, self.width, self.layers, self.heads, self.kv, self.head_dim, self.experts, self.top_k) = numbers
        self.window, self.tied, self.shards, self.old_config, self.theta = window, tied, shards, old_config, theta

    def config(self):
        config = {
            "architectures": [self.architecture], "model_type": self.model, "hidden_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv,
            "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "sliding_window": self.window, "tie_word_embeddings": self.tied, "bos_token_id": 1, "eos_token_id": 2,
            **self.mixture(),
        }
        if self.head_dim * self.heads != self.hidden:
            config["head_dim"] = self.head_dim
        if self.old_config:
            return {**config, "rope_theta": self.theta, "torch_dtype": "bfloat16"}
        return {**config, "rope_parameters": {"rope_theta": self.theta, "rope_type": "default"}, "dtype": "bfloat16"}

    def mixture(self):
        return {"intermediate_size": self.width, "num_local_experts": self.experts, "num_experts_per_tok": self.top_k}

    def tensors(self, random):
        def matrix(rows, cols, scale=None):
            return to_bf16(random.normal(0, scale or cols**-0.5, (rows, cols)))

        def norm():
            return to_bf16(1 + 0.1 * random.normal(size=self.hidden))

        tensors = {"model.embed_tokens.weight": matrix(VOCAB, self.hidden, 1.0), "model.norm.weight": norm()}
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            tensors[p + "input_layernorm.weight"] = norm()
            tensors[p + "post_attention_layernorm.weight"] = norm()
            tensors[p + "self_attn.q_proj.weight"] = matrix(self.heads * self.head_dim, self.hidden)
            tensors[p + "self_attn.k_proj.weight"] = matrix(self.kv * self.head_dim, self.hidden)
            tensors[p + "self_attn.v_proj.weight"] = matrix(self.kv * self.head_dim, self.hidden)
            tensors[p + "self_attn.o_proj.weight"] = matrix(self.hidden, self.heads * self.head_dim)
            ffns = {"": self.dense_width}
            if layer >= self.dense_layers:
                tensors[p + self.moe + self.router + ".weight"] = matrix(self.experts, self.hidden)
                ffns = {f"experts.{expert}.": self.width for expert in range(self.experts)}
                if self.shared:
                    ffns["shared_experts."] = self.shared * self.width
            for name, width in ffns.items():
                gate, up, down = (p + self.moe + name + part + ".weight" for part in self.parts)
                tensors[gate] = matrix(width, self.hidden)
                tensors[up] = matrix(width, self.hidden)
                tensors[down] = matrix(self.hidden, width)
        if not self.tied:
            tensors["lm_head.weight"] = matrix(VOCAB, self.hidden)
        return tensors

    def write(self, folder, tensors):
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(self.config(), out)
        if self.shards == 1:
            write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
            return
        where, names = {}, list(tensors)
        for shard in range(self.shards):
            file = f"model-{shard + 1:05}-of-{self.shards:05}.safetensors"
            part = {name: tensors[name] for name in names[shard::self.shards]}
            write_safetensors(os.path.join(folder, file), part)
            where.update({name: file for name in part})
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
            json.dump({"metadata": {}, "weight_map": where}, out)


class Deepseek(Shape):
    """DeepSeek-MoE: Llama's attention, dense first layers, several shared experts in one FFN."""

    model, architecture = "deepseek", "DeepseekForCausalLM"
    moe, parts = "mlp.", ("gate_proj", "up_proj", "down_proj")
    shared, dense_layers, dense_width, norm_top = 2, 1, 150, False

    def mixture(self):
        return {
            "intermediate_size": self.dense_width, "moe_intermediate_size": self.width, "moe_layer_freq": 1,
            "n_routed_experts": self.experts, "n_shared_experts": self.shared, "num_experts_per_tok": self.top_k,
            "first_k_dense_replace": self.dense_layers, "norm_topk_prob": self.norm_top, "scoring_func": "softmax",
        }


class Xverse(Shape):
    """XVERSE-MoE: Llama's attention, several shared experts in one FFN."""

    model, architecture = "xverse", "XverseForCausalLM"
    moe, router, parts = "mlp.", "router", ("gate_proj", "up_proj", "down_proj")
    shared = 2

    def mixture(self):
        return {
            "intermediate_size": self.width, "num_experts": self.experts, "num_shared_experts": self.shared,
            "moe_top_k": self.top_k,
        }


def softmax(scores):
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def forward(shape, tensors, ids):
    weights = {name: to_float(tensor) for name, tensor in tensors.items()}
    position = np.arange(len(ids))
    angle = np.outer(position, shape.theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim))[:, None]

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def rope(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    def project(x, name, heads):
        return (x @ weights[name].T).reshape(len(ids), heads, shape.head_dim)

    def ffn(x, base):
        gate, up, down = (weights[base + part + ".weight"] for part in shape.parts)
        gated = x @ gate.T
        return (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T

    hidden = position[None] > position[:, None]
    if shape.window is not None:
        hidden |= position[None] <= position[:, None] - shape.window
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(shape.layers):
        p = f"model.layers.{layer}."
        h = norm(x, weights[p + "input_layernorm.weight"])
        q = rope(project(h, p + "self_attn.q_proj.weight", shape.heads))
        k = rope(project(h, p + "self_attn.k_proj.weight", shape.kv))
        v = project(h, p + "self_attn.v_proj.weight", shape.kv)
        out = np.zeros_like(q)
        for head in range(shape.heads):
            group = head // (shape.heads // shape.kv)
            scores = q[:, head] @ k[:, group].T / np.sqrt(shape.head_dim)
            out[:, head] = softmax(np.where(hidden, -np.inf, scores)) @ v[:, group]
        x = x + out.reshape(len(ids), -1) @ weights[p + "self_attn.o_proj.weight"].T
        h = norm(x, weights[p + "post_attention_layernorm.weight"])
        moe = np.zeros_like(x)
        if layer < shape.dense_layers:
            x = x + ffn(h, p + shape.moe)
            continue
        if shape.shared:
            moe += ffn(h, p + shape.moe + "shared_experts.")
        chance = softmax(h @ weights[p + shape.moe + shape.router + ".weight"].T)
        for token in range(len(ids)):
            best = np.argsort(-chance[token], kind="stable")[: shape.top_k]
            total = chance[token][best].sum() if shape.norm_top else 1
            for expert in best:
                moe[token] += chance[token][expert] / total * ffn(h[token], p + shape.moe + f"experts.{expert}.")
        x = x + moe
    head = weights["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    return norm(x, weights["model.norm.weight"]) @ head.T


class ShapesTest(harness.TestCase):
    def check(self, shape):
        random = np.random.default_rng(5)
        tensors = shape.tensors(random)
        ids = random.integers(0, VOCAB, TOKENS)
        folder = os.path.join(self.work, self.id())
        shape.write(folder, tensors)
        self.ok("pack", folder, "--out", folder + ".pack", "--bits", "bf16")
        with open(folder + ".json", "w") as out:
            json.dump(ids.tolist(), out)
        self.ok("logits", "--pack", folder + ".pack", "--token-ids-file", folder + ".json", "--out", folder + ".out",
                "--kv", "f32", "--prefill-chunk", 17)
        expected = forward(shape, tensors, ids)
        difference = float(np.abs(harness.read_safetensors(folder + ".out")["logits"] - expected).max())
        print(f"{self.id()}: largest difference {difference:.1e} of logits up to {np.abs(expected).max():.0f}")
        self.assertLessEqual(difference, 1e-5 * max(1.0, np.abs(expected).max()))

    def test_sliding_window_and_old_config(self):
        self.check(Shape(64, 96, 3, 4, 2, 16, 8, 2, window=16, old_config=True))

    def test_five_experts_top_three_grouped_kv_shards(self):
        self.check(Shape(60, 100, 2, 6, 3, 10, 5, 3, shards=2))

    def test_head_dim_tied_embeddings_short_window(self):
        self.check(Shape(96, 70, 2, 6, 3, 32, 5, 3, window=9, tied=True, shards=3, old_config=True, theta=1e6))

    def test_deepseek_moe(self):
        self.check(Deepseek(64, 40, 3, 4, 4, 16, 8, 3, old_config=True))

    def test_deepseek_moe_with_topk_normalization(self):
        shape = Deepseek(96, 30, 3, 6, 2, 16, 10, 4)
        shape.norm_top, shape.dense_layers = True, 2
        self.check(shape)

    def test_xverse_moe(self):
        self.check(Xverse(80, 48, 2, 4, 4, 20, 8, 3, old_config=True, theta=5e5))

    def test_one_expert_and_one_kv_head(self):
        self.check(Shape(64, 64, 1, 2, 1, 32, 1, 1, tied=True))


if __name__ == "__main__":
    harness.main()
