"""DeepSeek-V3.2 and GLM-5 with attention sparse by an indexer, also with layers that share an indexer's choice, against a
plain float64 forward pass in numpy."""
import json
import os

import numpy as np

import harness
from shapes_test import softmax, to_bf16, to_float, write_safetensors

TOKENS = 70
CONFIG = {
    "vocab_size": 256, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "moe_intermediate_size": 32, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    "index_n_heads": 6, "index_head_dim": 14, "index_topk": 9,
}  # fmt: skip
DEEPSEEK = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
GLM = {"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"], "indexer_rope_interleave": True}


def shared_layers(config):
    """True for the layers that take the choice of a layer before them."""
    if "indexer_types" in config:
        return [kind == "shared" for kind in config["indexer_types"]]
    if "index_topk_pattern" in config:
        return [letter == "S" for letter in config["index_topk_pattern"]]
    frequency, offset = config.get("index_topk_freq", 1), config.get("index_skip_topk_offset", 2)
    return [max(i - offset + 1, 0) % frequency != 0 for i in range(config["num_hidden_layers"])]


def make_tensors(config, random):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    index, index_heads = config["index_head_dim"], config["index_n_heads"]

    def matrix(rows, cols, scale=None):
        return to_bf16(random.normal(0, scale or cols**-0.5, (rows, cols)))

    def vector(cols, mean=1.0):
        return to_bf16(mean + 0.1 * random.normal(size=cols))

    def ffn(base, width):
        return {base + "gate_proj.weight": matrix(width, hidden), base + "up_proj.weight": matrix(width, hidden),
                base + "down_proj.weight": matrix(hidden, width)}  # fmt: skip

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden, 1.0), "model.norm.weight": vector(hidden),
               "lm_head.weight": matrix(config["vocab_size"], hidden)}  # fmt: skip
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        a = p + "self_attn."
        tensors |= {
            p + "input_layernorm.weight": vector(hidden), p + "post_attention_layernorm.weight": vector(hidden),
            a + "q_a_proj.weight": matrix(config["q_lora_rank"], hidden),
            a + "q_a_layernorm.weight": vector(config["q_lora_rank"]),
            a + "q_b_proj.weight": matrix(heads * head, config["q_lora_rank"]),
            a + "kv_a_proj_with_mqa.weight": matrix(config["kv_lora_rank"] + config["qk_rope_head_dim"], hidden),
            a + "kv_a_layernorm.weight": vector(config["kv_lora_rank"]),
            a + "kv_b_proj.weight": matrix(heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), config["kv_lora_rank"]),
            a + "o_proj.weight": matrix(hidden, heads * config["v_head_dim"]),
        }  # fmt: skip
        if not shared_layers(config)[layer]:
            tensors |= {
                a + "indexer.wq_b.weight": matrix(index_heads * index, config["q_lora_rank"]),
                a + "indexer.wk.weight": matrix(index, hidden),
                a + "indexer.k_norm.weight": vector(index), a + "indexer.k_norm.bias": vector(index, 0.0),
                a + "indexer.weights_proj.weight": matrix(index_heads, hidden),
            }  # fmt: skip
        if layer < config["first_k_dense_replace"]:
            tensors |= ffn(p + "mlp.", config["intermediate_size"])
            continue
        tensors[p + "mlp.gate.weight"] = matrix(config["n_routed_experts"], hidden)
        tensors[p + "mlp.gate.e_score_correction_bias"] = vector(config["n_routed_experts"], 0.0)
        tensors |= ffn(p + "mlp.shared_experts.", config["n_shared_experts"] * config["moe_intermediate_size"])
        for expert in range(config["n_routed_experts"]):
            tensors |= ffn(p + f"mlp.experts.{expert}.", config["moe_intermediate_size"])
    return tensors


def forward(config, weights, ids, cos_sin):
    """`weights`: float64 by name; `cos_sin`: [tokens, qk_rope_head_dim / 2] each."""
    tokens, heads = len(ids), config["num_attention_heads"]
    nope, turned = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    epsilon = config["rms_norm_eps"]
    cos, sin = (part[:, None] for part in cos_sin)
    future = np.triu(np.ones((tokens, tokens), bool), 1)

    def norm(x, weight, eps=epsilon):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    def layer_norm(x, weight, bias):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * weight + bias

    def rope(x, interleaved):
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def ffn(x, base):
        gate = x @ weights[base + "gate_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * (x @ weights[base + "up_proj.weight"].T)) @ weights[base + "down_proj.weight"].T

    def choose(base, x, q_latent):
        """True where a position is not among the best of a row."""
        count, size = config["index_n_heads"], config["index_head_dim"]
        interleaved = config["model_type"] == "glm_moe_dsa"
        q = (q_latent @ weights[base + "wq_b.weight"].T).reshape(tokens, count, size)
        k = layer_norm(x @ weights[base + "wk.weight"].T, weights[base + "k_norm.weight"], weights[base + "k_norm.bias"])[:, None]
        q, k = (np.concatenate([rope(y[..., :turned], interleaved), y[..., turned:]], -1) for y in (q, k))
        share = x @ weights[base + "weights_proj.weight"].T * count**-0.5
        scores = np.einsum("th,ths->ts", share, np.maximum(np.einsum("thd,sd->ths", q, k[:, 0]) * size**-0.5, 0))
        best = np.argsort(np.where(future, np.inf, -scores), -1, kind="stable")[:, : config["index_topk"]]
        masked = np.ones_like(future)
        np.put_along_axis(masked, best, False, -1)
        return masked | future

    def attend(base, x, masked):
        q_latent = norm(x @ weights[base + "q_a_proj.weight"].T, weights[base + "q_a_layernorm.weight"], 1e-6)
        if base + "indexer.wk.weight" in weights:
            masked = choose(base + "indexer.", x, q_latent)
        q = (q_latent @ weights[base + "q_b_proj.weight"].T).reshape(tokens, heads, nope + turned)
        latent = x @ weights[base + "kv_a_proj_with_mqa.weight"].T
        k_turned = rope(latent[:, None, config["kv_lora_rank"]:], True)
        latent = norm(latent[:, : config["kv_lora_rank"]], weights[base + "kv_a_layernorm.weight"], 1e-6)
        kv = (latent @ weights[base + "kv_b_proj.weight"].T).reshape(tokens, heads, nope + config["v_head_dim"])
        scores = np.einsum("thd,shd->hts", q[..., :nope], kv[..., :nope])
        scores += np.einsum("thd,sd->hts", rope(q[..., nope:], True), k_turned[:, 0])
        chances = softmax(np.where(masked, -np.inf, scores * (nope + turned) ** -0.5 * config.get("stretch", 1)))
        out = np.einsum("hts,shd->thd", chances, kv[..., nope:])
        return out.reshape(tokens, -1) @ weights[base + "o_proj.weight"].T, masked

    def mixture(base, x):
        scores = 1 / (1 + np.exp(-x @ weights[base + "gate.weight"].T))
        wanted = scores + weights[base + "gate.e_score_correction_bias"]
        groups, size = config["n_group"], config["n_routed_experts"] // config["n_group"]
        if groups > 1:
            best = np.sort(wanted.reshape(tokens, groups, size), -1)[..., -2:].sum(-1)
            kept = np.argsort(-best, -1, kind="stable")[:, : config["topk_group"]]
            for token in range(tokens):
                for group in set(range(groups)) - set(kept[token].tolist()):
                    wanted[token, group * size : (group + 1) * size] = -np.inf
        out = ffn(x, base + "shared_experts.")
        for token in range(tokens):
            chosen = np.argsort(-wanted[token], kind="stable")[: config["num_experts_per_tok"]]
            total = scores[token][chosen].sum()
            for expert in chosen:
                share = scores[token][expert] / total * config["routed_scaling_factor"]
                out[token] += share * ffn(x[token], base + f"experts.{expert}.")
        return out

    x, masked = weights["model.embed_tokens.weight"][ids], None
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        out, masked = attend(p + "self_attn.", norm(x, weights[p + "input_layernorm.weight"]), masked)
        x = x + out
        h = norm(x, weights[p + "post_attention_layernorm.weight"])
        x = x + (ffn(h, p + "mlp.") if layer < config["first_k_dense_replace"] else mixture(p + "mlp.", h))
    return norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def write_model(folder, config):
    """Writes a folder with random weights; returns these and the tokens of a text."""
    random = np.random.default_rng(5)
    tensors = make_tensors(config, random)
    ids = random.integers(0, config["vocab_size"], TOKENS)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    return tensors, ids


class SparseAttentionTest(harness.TestCase):
    def check(self, **changes):
        config = {**CONFIG, **changes}
        folder = os.path.join(self.work, self.id())
        tensors, ids = write_model(folder, config)
        self.ok("pack", folder, "--out", folder + ".pack", "--bits", "bf16")
        with open(folder + ".json", "w") as out:
            json.dump(ids.tolist(), out)
        self.ok("logits", "--pack", folder + ".pack", "--token-ids-file", folder + ".json", "--out", folder + ".out",
                "--kv", "f32", "--prefill-chunk", 17)  # fmt: skip
        size = config["qk_rope_head_dim"]
        angle = np.outer(np.arange(TOKENS), config["rope_theta"] ** (-np.arange(0, size, 2) / size))
        weights = {name: to_float(tensor) for name, tensor in tensors.items()}
        expected = forward(config, weights, ids, (np.cos(angle), np.sin(angle)))
        difference = float(np.abs(harness.read_safetensors(folder + ".out")["logits"] - expected).max())
        print(f"{self.id()}: largest difference {difference:.1e} of logits up to {np.abs(expected).max():.0f}")
        self.assertLessEqual(difference, 1e-4 * max(1.0, np.abs(expected).max()))

    def test_deepseek_v32(self):
        self.check(**DEEPSEEK)

    def test_groups_and_one_index_head(self):
        self.check(**DEEPSEEK, index_n_heads=1, index_topk=3, n_group=3, topk_group=2)

    def test_glm_moe_dsa(self):
        self.check(**GLM)

    def test_layers_share_the_choice_of_one_before(self):
        self.check(**GLM, num_hidden_layers=4, indexer_types=["full", "shared", "full", "shared"])

    def test_pattern_and_frequency_of_sharing_layers(self):
        self.check(**GLM, num_hidden_layers=4, index_topk_pattern="FSSF")
        self.work = os.path.join(self.work, "frequency")
        os.makedirs(self.work)
        self.check(**GLM, num_hidden_layers=5, index_topk_freq=2, index_skip_topk_offset=1)


if __name__ == "__main__":
    harness.main()
