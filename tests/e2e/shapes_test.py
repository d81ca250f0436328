"""Mixtral checkpoints of unusual shapes, as files of both generations, against a plain float64 forward pass in numpy."""
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

    def __init__(self, *numbers, window=None, tied=False, shards=1, old_config=False, theta=10000.0):
        (self.hidden, self.width, self.layers, self.heads, self.kv, self.head_dim, self.experts, self.top_k) = numbers
        self.window, self.tied, self.shards, self.old_config, self.theta = window, tied, shards, old_config, theta

    def config(self):
        config = {
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": self.hidden,
            "intermediate_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv, "num_local_experts": self.experts, "num_experts_per_tok": self.top_k,
            "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "sliding_window": self.window, "tie_word_embeddings": self.tied, "bos_token_id": 1, "eos_token_id": 2,
        }
        if self.head_dim * self.heads != self.hidden:
            config["head_dim"] = self.head_dim
        if self.old_config:
            return {**config, "rope_theta": self.theta, "torch_dtype": "bfloat16"}
        return {**config, "rope_parameters": {"rope_theta": self.theta, "rope_type": "default"}, "dtype": "bfloat16"}

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
            tensors[p + "block_sparse_moe.gate.weight"] = matrix(self.experts, self.hidden)
            for expert in range(self.experts):
                e = p + f"block_sparse_moe.experts.{expert}."
                tensors[e + "w1.weight"] = matrix(self.width, self.hidden)
                tensors[e + "w3.weight"] = matrix(self.width, self.hidden)
                tensors[e + "w2.weight"] = matrix(self.hidden, self.width)
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
        chance = softmax(h @ weights[p + "block_sparse_moe.gate.weight"].T)
        moe = np.zeros_like(x)
        for token in range(len(ids)):
            best = np.argsort(-chance[token], kind="stable")[: shape.top_k]
            for expert in best:
                e = p + f"block_sparse_moe.experts.{expert}."
                gate = weights[e + "w1.weight"] @ h[token]
                up = weights[e + "w3.weight"] @ h[token]
                share = chance[token][expert] / chance[token][best].sum()
                moe[token] += share * (weights[e + "w2.weight"] @ (gate / (1 + np.exp(-gate)) * up))
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

    def test_five_experts_top_three_with_three_kv_heads_of_six_in_shards(self):
        self.check(Shape(60, 100, 2, 6, 3, 10, 5, 3, shards=2))

    def test_head_dim_apart_with_tied_embeddings_and_a_short_window(self):
        self.check(Shape(96, 70, 2, 6, 3, 32, 5, 3, window=9, tied=True, shards=3, old_config=True, theta=1e6))

    def test_one_expert_and_one_kv_head(self):
        self.check(Shape(64, 64, 1, 2, 1, 32, 1, 1, tied=True))


if __name__ == "__main__":
    harness.main()
