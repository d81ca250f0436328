#!/usr/bin/env python3
"""Writes tests/kernels/data/family_goldens.txt: what transformers computes for routers, rope tables and gated
DeltaNet layers, on small random inputs. Run it from the source root with torch and transformers (made with
5.23). The file is a list of arrays: a line "name count", then a line of that many numbers."""
import types

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.llama4.modeling_llama4 import Llama4Router
from transformers.models.phimoe.modeling_phimoe import sparsemixer
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet

PATH = "tests/kernels/data/family_goldens.txt"
TOKENS = 12
EXPERTS = 16


class Writer:
    def __init__(self):
        self.lines = []

    def put(self, name, values):
        flat = torch.as_tensor(values).flatten().tolist()
        self.lines.append(f"{name} {len(flat)}")
        self.lines.append(" ".join(f"{value:.9g}" for value in flat))


def identity(router):
    """The router's scores become its inputs."""
    router.weight.data = torch.eye(EXPERTS)
    return router


def put_choice(out, name, weights, ids):
    """Sorted by weight: transformers leaves the order of the chosen open."""
    order = torch.argsort(weights, dim=-1, descending=True, stable=True)
    out.put(name + ".ids", ids.gather(1, order))
    out.put(name + ".weights", weights.gather(1, order))


def routers(out):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(TOKENS, EXPERTS, generator=generator) * 2
    correction = torch.randn(EXPERTS, generator=generator) * 0.2
    out.put("router.logits", logits)
    out.put("router.correction", correction)
    config = types.SimpleNamespace(
        num_experts_per_tok=4, num_local_experts=EXPERTS, num_experts=EXPERTS, hidden_size=EXPERTS,
        routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=True,
        topk_method="group_limited_greedy")

    gpt_oss = identity(GptOssTopKRouter(config))
    gpt_oss.bias.data.zero_()
    _, weights, ids = gpt_oss(logits)
    put_choice(out, "router.topk_softmax", weights, ids)

    for normed in (True, False):
        config.norm_topk_prob = normed
        deepseek = identity(DeepseekV3TopkRouter(config))
        deepseek.e_score_correction_bias = correction
        _, weights, ids = deepseek(logits)
        put_choice(out, "router.sigmoid_topk." + ("normed" if normed else "plain"), weights, ids)

    _, weights, ids = identity(DeepseekV2TopkRouter(config))(logits)
    put_choice(out, "router.group_limited", weights, ids)

    for jitter in (0.01, 0.3):
        weights, ids = sparsemixer(logits, jitter_eps=jitter, training=False, top_k=2)
        out.put(f"router.sparse_mixer.{jitter}.ids", ids)
        out.put(f"router.sparse_mixer.{jitter}.weights", weights)

    scores, _ = identity(Llama4Router(config))(logits)
    weights, ids = scores.topk(config.num_experts_per_tok, dim=-1)
    put_choice(out, "router.sigmoid_input", weights, ids)


class RopeModelConfig(types.SimpleNamespace):
    def standardize_rope_params(self):
        pass


def ropes(out):
    dims = 32
    factors = torch.Generator().manual_seed(2)
    short = (1 + torch.rand(dims // 2, generator=factors)).tolist()
    long = (1 + 30 * torch.rand(dims // 2, generator=factors)).tolist()
    out.put("rope.short_factors", short)
    out.put("rope.long_factors", long)
    kinds = {
        "linear": {"rope_theta": 10000.0, "factor": 4.0},
        "yarn": {"rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096,
                 "beta_fast": 32, "beta_slow": 1},
        "yarn_exact_range": {"rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                             "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        "llama3": {"rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 8192,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "longrope": {"rope_theta": 10000.0, "short_factor": short, "long_factor": long, "factor": 32.0,
                     "original_max_position_embeddings": 4096},
    }
    for name, parameters in kinds.items():
        config = RopeModelConfig(hidden_size=dims * 4, num_attention_heads=4, head_dim=dims,
                                 max_position_embeddings=131072, rope_parameters=parameters)
        compute = ROPE_INIT_FUNCTIONS[name.split("_")[0]]
        for length in (None, 8192) if name == "longrope" else (None,):
            frequencies, attention_factor = compute(config, torch.device("cpu"), seq_len=length)
            label = "rope." + name + (".long" if length else "")
            out.put(label + ".frequencies", frequencies)
            out.put(label + ".attention_factor", [attention_factor])


def delta(out):
    torch.manual_seed(3)
    config = Qwen3_5MoeTextConfig(
        hidden_size=24, num_hidden_layers=1, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=12, linear_conv_kernel_dim=4, rms_norm_eps=1e-6,
        layer_types=["linear_attention"], num_attention_heads=2, num_key_value_heads=1, num_experts=2,
        num_experts_per_tok=1, vocab_size=8)
    layer = Qwen3_5MoeGatedDeltaNet(config, 0).eval()
    with torch.no_grad():
        layer.dt_bias.copy_(torch.randn(4))
        layer.norm.weight.copy_(1 + 0.2 * torch.randn(12))
        layer.conv1d.weight.copy_(torch.randn(layer.conv1d.weight.shape) * 0.5)
        layer.out_proj = torch.nn.Identity()
        x = torch.randn(1, 40, 24)
        out.put("delta.qkv", layer.in_proj_qkv(x))
        out.put("delta.z", layer.in_proj_z(x))
        out.put("delta.beta", layer.in_proj_b(x))
        out.put("delta.decay", layer.in_proj_a(x))
        out.put("delta.conv", layer.conv1d.weight)
        out.put("delta.a_log", layer.A_log)
        out.put("delta.dt_bias", layer.dt_bias)
        out.put("delta.norm", layer.norm.weight)
        out.put("delta.out", layer(x))


def main():
    out = Writer()
    routers(out)
    ropes(out)
    delta(out)
    with open(PATH, "w", encoding="ascii") as file:
        file.write("\n".join(out.lines) + "\n")


if __name__ == "__main__":
    main()
