"""usage: make_family_goldens.py [NAME...]: writes families/*.json and *.safetensors beside it with transformers (5.23).

Every case is a small random checkpoint of some family with unusual shapes and switches; see ../family_cases.py for what
is stored. Logits and greedy tokens are computed in float32 with eager attention; greedy tokens anew from the whole text
at each token. MXFP4 experts are compared with the model that transformers' own dequantization gives. Phi's long rope
takes the factors of the text's length, as the model's own code and transformers 4 do; transformers 5.23 changes only the
attention factor. Families that transformers lacks (DeepSeek-MoE, XVERSE-MoE) are compared with a Qwen2-MoE that computes
the same: its shared expert's gate is 0, which halves, and its shared down matrix is doubled.
"""
import json
import os
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import family_cases

VOCAB = 96
COMMON = {
    "vocab_size": VOCAB, "hidden_size": 32, "max_position_embeddings": 256, "num_hidden_layers": 2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 32,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 2.0, 4.0, 8.0],
        "short_mscale": 1.1, "long_mscale": 1.3}  # fmt: skip
QWEN = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 3,
        "intermediate_size": 48, "moe_intermediate_size": 40}  # fmt: skip
DEEPSEEK = {
    "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "intermediate_size": 48, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip

# name -> (model_type, fields, options); options: old (a config of the older generation), prompt (its length).
CASES = {
    "mixtral_linear_rope": ("mixtral", dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=40, num_local_experts=5,
        num_experts_per_tok=3, tie_word_embeddings=True, sliding_window=12,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}), dict(old=True)),
    "qwen2_moe_dense_between": ("qwen2_moe", dict(
        QWEN, num_hidden_layers=3, shared_expert_intermediate_size=56, norm_topk_prob=True, mlp_only_layers=[1],
        use_sliding_window=True, sliding_window=9, max_window_layers=1, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}), dict(old=True)),
    "qwen3_moe_yarn": ("qwen3_moe", dict(
        QWEN, num_hidden_layers=3, head_dim=12, norm_topk_prob=False, decoder_sparse_step=2, attention_bias=True,
        rope_parameters=YARN), dict()),
    "olmoe_clip": ("olmoe", dict(
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=True, clip_qkv=0.7, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dict(old=True)),
    "deepseek_v2_groups": ("deepseek_v2", dict(
        DEEPSEEK, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=20, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        routed_scaling_factor=2.0, norm_topk_prob=False,
        rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.9)), dict(old=True)),
    "deepseek_v3_direct_q": ("deepseek_v3", dict(
        DEEPSEEK, num_hidden_layers=3, q_lora_rank=None, n_group=2, topk_group=1, routed_scaling_factor=1.5,
        norm_topk_prob=False, n_shared_experts=1, rope_interleave=True, tie_word_embeddings=True,
        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)), dict(old=True)),
    "glm4_moe_norms_groups": ("glm4_moe", dict(
        num_attention_heads=6, num_key_value_heads=3, head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
        n_shared_experts=2, intermediate_size=48, moe_intermediate_size=24, first_k_dense_replace=1, n_group=4,
        topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.8, use_qk_norm=True, attention_bias=False,
        num_hidden_layers=3, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
        dict(old=True)),
    "phimoe_long_rope": ("phimoe", dict(
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, num_local_experts=6,
        attention_bias=False, lm_head_bias=False, tie_word_embeddings=True, rope_parameters=LONG), dict(prompt=24)),
    "phimoe_long_rope_old": ("phimoe", dict(
        num_attention_heads=4, num_key_value_heads=4, intermediate_size=40, num_local_experts=4, attention_bias=True,
        lm_head_bias=True, router_jitter_noise=0.2, sliding_window=20, rope_parameters=LONG),
        dict(old=True, prompt=40)),
    "granitemoe_bias": ("granitemoe", dict(
        num_attention_heads=4, num_key_value_heads=1, intermediate_size=40, num_local_experts=5,
        num_experts_per_tok=3, attention_bias=True, embedding_multiplier=2.0, logits_scaling=1.7,
        residual_multiplier=0.8, attention_multiplier=0.2, rope_parameters=LLAMA3), dict()),
    "gpt_oss_windows": ("gpt_oss", dict(
        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=8, num_local_experts=6,
        num_experts_per_tok=2, intermediate_size=24, sliding_window=7,
        layer_types=["full_attention", "sliding_attention", "full_attention"], swiglu_limit=1.5,
        rope_parameters=dict(YARN, truncate=False)), dict(old=True)),
    "gpt_oss_mxfp4": ("gpt_oss", dict(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=4,
        num_experts_per_tok=2, intermediate_size=32, sliding_window=8,
        rope_parameters=dict(YARN, truncate=False)), dict(mxfp4=True)),
    "llama4_dense_between": ("llama4_text", dict(
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=6,
        num_experts_per_tok=1, intermediate_size=24, intermediate_size_mlp=40, interleave_moe_layer_step=2,
        attention_chunk_size=16, no_rope_layers=[1, 0, 1, 1], floor_scale=8, attn_scale=0.3, use_qk_norm=False,
        layer_types=["chunked_attention", "full_attention", "chunked_attention", "chunked_attention"],
        rope_parameters=LLAMA3), dict()),
    "llama4_norms": ("llama4_text", dict(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_local_experts=4,
        num_experts_per_tok=1, intermediate_size=24, intermediate_size_mlp=40, interleave_moe_layer_step=1,
        attention_chunk_size=24, no_rope_layers=[1, 0], attn_temperature_tuning=False, use_qk_norm=True,
        tie_word_embeddings=True, layer_types=["chunked_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), dict()),
    "qwen3_5_moe_shapes": ("qwen3_5_moe_text", dict(
        QWEN, num_hidden_layers=3, head_dim=16, shared_expert_intermediate_size=24, linear_conv_kernel_dim=4,
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=12, linear_value_head_dim=8,
        layer_types=["full_attention", "linear_attention", "linear_attention"], tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}), dict()),
}

TWIN = {"vocab_size": VOCAB, "hidden_size": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "num_attention_heads": 4}  # fmt: skip
# name -> (fields of the Qwen2-MoE, config.json of the family, {part of a tensor's name: what it is in the family})
TWINS = {
    "deepseek_moe": (
        dict(QWEN, num_hidden_layers=3, shared_expert_intermediate_size=80, norm_topk_prob=False, mlp_only_layers=[0],
             qkv_bias=False, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dict(TWIN, architectures=["DeepseekForCausalLM"], model_type="deepseek", num_hidden_layers=3,
             num_key_value_heads=2, intermediate_size=48, moe_intermediate_size=40, n_routed_experts=8,
             num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=False,
             scoring_func="softmax"),
        {"shared_expert.": "shared_experts."}),
    "xverse_moe": (
        dict(QWEN, num_key_value_heads=4, shared_expert_intermediate_size=120, norm_topk_prob=True, qkv_bias=False,
             rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dict(TWIN, architectures=["XverseForCausalLM"], model_type="xverse", num_hidden_layers=2,
             num_key_value_heads=4, intermediate_size=40, num_experts=8, moe_top_k=3, num_shared_experts=3),
        {"shared_expert.": "shared_experts.", "mlp.gate.": "mlp.router."}),
}


def old_config(config):
    """The same config as transformers 4 wrote it."""
    old = dict(config)
    rope = dict(old.pop("rope_parameters"))
    kind = rope.pop("rope_type")
    rope.pop("type", None)
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if kind == "longrope":
        old["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    old["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    old["torch_dtype"] = old.pop("dtype")
    return old


def tensor_table(folder, mxfp4):
    """Names, types and shapes of a saved model; expert matrices of GPT-OSS as blocks and scales if asked for."""
    table = {}
    for name, (_, shape) in sorted(read_header(folder).items()):
        if mxfp4 and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, cols, rows = shape  # stored transposed
            table[name + "_blocks"] = ["U8", [experts, rows, cols // 32, 16]]
            table[name + "_scales"] = ["U8", [experts, rows, cols // 32]]
        else:
            full = name.endswith(("A_log", "e_score_correction_bias"))
            table[name] = ["F32" if full else "BF16", shape]
    return table


def read_header(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def dequantized(folder, case):
    """A folder with the same model in bf16."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    plain = os.path.join(folder, "plain")
    os.makedirs(plain)
    config = dict(case["config"])
    del config["quantization_config"]
    with open(os.path.join(plain, "config.json"), "w") as out:
        json.dump(config, out)
    tensors = {}
    for name, (kind, shape) in case["tensors"].items():
        values = family_cases.draw(name, kind, shape)
        if name.endswith("_blocks"):
            scales_name = name[: -len("blocks")] + "scales"
            scales = family_cases.draw(scales_name, *case["tensors"][scales_name])
            full = convert_moe_packed_tensors(torch.from_numpy(values), torch.from_numpy(scales), dtype=torch.float32)
            tensors[name[: -len("_blocks")]] = ("F32", full.contiguous().numpy())
        elif not name.endswith("_scales"):
            tensors[name] = (kind, values)
    family_cases.write_safetensors(os.path.join(plain, "model.safetensors"), tensors)
    return plain


def use_factors_of_the_length(model):
    """Phi's rotary embedding requests its frequencies without the sequence length; this adds it."""
    rotary = model.model.rotary_emb
    frequencies, forward = rotary.rope_init_fn, rotary.forward

    def forward_with_length(x, position_ids=None):
        length = int(position_ids.max()) + 1
        rotary.rope_init_fn = lambda config: frequencies(config, seq_len=length)
        return forward(x, position_ids)

    rotary.forward = forward_with_length


def save_plain(folder, kind, fields):
    """Saves a fresh model of transformers: its config as saved."""
    config = AutoConfig.for_model(kind, **{**COMMON, **fields})
    config.dtype = torch.bfloat16
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    with open(os.path.join(folder, "config.json")) as file:
        saved = json.load(file)
    saved.pop("transformers_version")
    return saved


def case_of(name):
    kind, fields, options = CASES[name]
    mxfp4 = options.get("mxfp4", False)
    with tempfile.TemporaryDirectory() as folder:
        saved = save_plain(folder, kind, fields)
        if mxfp4:
            saved["quantization_config"] = {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                           "model.embed_tokens", "lm_head"],
            }  # fmt: skip
        return {"config": old_config(saved) if options.get("old") else saved, "tensors": tensor_table(folder, mxfp4)}


def twin_of(name, folder):
    """Case of a family that transformers lacks; writes an equivalent model to `folder`."""
    fields, config, words = TWINS[name]
    save_plain(folder, "qwen2_moe", fields)
    case, tensors = {"config": config, "tensors": {}}, {}
    for plain, (kind, shape) in tensor_table(folder, False).items():
        theirs = plain
        for word, other in words.items():
            theirs = theirs.replace(word, other)
        if "shared_expert_gate" in plain:
            tensors[plain] = ("F32", np.zeros(shape, np.float32))
            continue
        case["tensors"][theirs] = [kind, shape]
        values = (family_cases.draw(theirs, kind, shape).astype(np.uint32) << 16).view(np.float32)
        tensors[plain] = ("F32", values * (2 if "shared_expert.down_proj" in plain else 1))
    family_cases.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    return case


def load_model(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    if model.config.model_type == "phimoe":
        use_factors_of_the_length(model)
    return model.eval()


def golden_of(name, model, prompt_length):
    random = np.random.RandomState(7)
    ids = random.randint(3, VOCAB, 60)
    prompt = random.randint(3, VOCAB, prompt_length)
    with torch.no_grad():
        logits = model(torch.tensor(ids[None]), use_cache=False).logits[0].float().numpy()
        text, margin = list(prompt), np.inf
        for _ in range(16):
            row = model(torch.tensor([text]), use_cache=False).logits[0, -1].float().numpy()
            best = np.sort(row)[-2:]
            margin = min(margin, float(best[1] - best[0]))
            text.append(int(row.argmax()))
    assert margin > 1e-3, f"{name}: two best logits only {margin} apart"
    print(f"{name}: logits up to {np.abs(logits).max():.1f}, margin {margin:.3f}")
    integers = {"input_ids": ids, "prompt_ids": prompt, "greedy_ids": np.array(text[prompt_length:])}
    return {"logits": ("F32", logits), **{key: ("I64", value.astype(np.int64)) for key, value in integers.items()}}


def make(name):
    with tempfile.TemporaryDirectory() as folder:
        if name in TWINS:
            case = twin_of(name, folder)
            model = load_model(folder)
        else:
            case = case_of(name)
            family_cases.write_model(folder, case)
            model = load_model(dequantized(folder, case) if "quantization_config" in case["config"] else folder)
    golden = golden_of(name, model, CASES[name][2].get("prompt", 16) if name in CASES else 16)
    with open(os.path.join(family_cases.FOLDER, name + ".json"), "w") as out:
        json.dump(case, out, separators=(",", ":"), sort_keys=True)
        out.write("\n")
    family_cases.write_safetensors(os.path.join(family_cases.FOLDER, name + ".safetensors"), golden)


if __name__ == "__main__":
    os.makedirs(family_cases.FOLDER, exist_ok=True)
    torch.set_num_threads(1)
    for case_name in sys.argv[1:] or [*CASES, *TWINS]:
        make(case_name)
