"""GGUF files of checkpoints of the hub, written as llama.cpp's converter writes them (names, transformations, keys), for
the families whose layers have a state or differ. Matrices in bf16 or Q8_0; the rest in float32."""
import struct

import numpy as np

F32, Q8_0, NUMBERS, BF16 = 0, 8, 26, 30
U32, I32, FLOAT, BOOL, TEXT, LIST = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value):
    """Type number and bytes of a key's value."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, float):
        return FLOAT, struct.pack("<f", value)
    if isinstance(value, str):
        return TEXT, text(value)
    kinds = [typed(each) for each in value]
    kind = kinds[0][0] if kinds else TEXT
    return LIST, struct.pack("<IQ", kind, len(kinds)) + b"".join(data for _, data in kinds)


def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def q8_0(values):
    groups = np.asarray(values, np.float32).reshape(-1, 32)
    scale = (np.abs(groups).max(1) / 127).astype(np.float16)
    codes = np.rint(groups / np.where(scale == 0, 1, scale).astype(np.float32)[:, None]).clip(-127, 127).astype(np.int8)
    return b"".join(s.tobytes() + c.tobytes() for s, c in zip(scale, codes))


def write(path, keys, tensors, matrix_type=BF16):
    """`tensors`: name -> array in the hub's order of dimensions. Those of two or more dimensions that llama.cpp would
    quantize take `matrix_type`."""
    infos, data = [], b""
    for name, values in tensors.items():
        values = np.asarray(values, np.float32)
        kept = ("norm", "ssm_a", "ssm_d", "ssm_conv", "ffn_gate_inp", "scale", "exp_probs", ".bias", "rope_freqs", "sinks", "hc_",
                "_ape")
        kind = F32 if values.ndim == 1 or any(word in name for word in kept) else matrix_type
        if kind == Q8_0 and values.shape[-1] % 32:
            kind = BF16
        kind = NUMBERS if "tid2eid" in name else kind
        raw = {F32: lambda v: v.tobytes(), NUMBERS: lambda v: v.astype(np.int32).tobytes(), BF16: bf16, Q8_0: q8_0}[kind](np.ascontiguousarray(values))
        data += b"\0" * (-len(data) % ALIGNMENT)
        infos.append(text(name) + struct.pack("<I", values.ndim)
                     + struct.pack(f"<{values.ndim}Q", *reversed(values.shape)) + struct.pack("<IQ", kind, len(data)))
        data += raw
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys))
    for key, value in keys.items():
        kind, encoded = typed(value)
        head += text(key) + struct.pack("<I", kind) + encoded
    head += b"".join(infos)
    head += b"\0" * (-len(head) % ALIGNMENT)
    with open(path, "wb") as out:
        out.write(head + data + b"\0" * (-len(data) % ALIGNMENT))


def tokenizer(vocab):
    """Returns bytes in GPT-2's spelling, one merge, and unused tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    tokens = [letters[byte] for byte in range(256)] + ["ab"] + [f"[PAD{i}]" for i in range(257, vocab)]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 257 + [5] * (vocab - 257), "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def frame(arch, config, layers):
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return {"general.architecture": arch, "general.type": "model", f"{arch}.block_count": layers,
            f"{arch}.context_length": config["max_position_embeddings"],
            f"{arch}.embedding_length": config["hidden_size"], f"{arch}.attention.head_count": config["num_attention_heads"],
            f"{arch}.attention.key_length": head_dim, f"{arch}.attention.value_length": head_dim,
            f"{arch}.attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", config.get("layer_norm_epsilon")),
            **tokenizer(config["vocab_size"])}


def stacked(tensors, pattern):
    """One tensor of all experts' matrices."""
    found = []
    while pattern.format(len(found)) in tensors:
        found.append(tensors[pattern.format(len(found))])
    return np.stack(found)


def permuted(rows, heads):
    """Returns rows of each head as pairs that rope rotates together."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def mixtral(config, t):
    heads, kv_heads, layers = config["num_attention_heads"], config["num_key_value_heads"], config["num_hidden_layers"]
    keys = {**frame("llama", config, layers), "llama.attention.head_count_kv": kv_heads,
            "llama.feed_forward_length": config["intermediate_size"], "llama.expert_count": config["num_local_experts"],
            "llama.expert_used_count": config["num_experts_per_tok"], "llama.rope.freq_base": float(config["rope_theta"])}
    out = {"token_embd.weight": t["model.embed_tokens.weight"], "output_norm.weight": t["model.norm.weight"]}
    if "lm_head.weight" in t:
        out["output.weight"] = t["lm_head.weight"]
    for layer in range(layers):
        hub, gguf = f"model.layers.{layer}.", f"blk.{layer}."
        out[gguf + "attn_norm.weight"] = t[hub + "input_layernorm.weight"]
        out[gguf + "ffn_norm.weight"] = t[hub + "post_attention_layernorm.weight"]
        out[gguf + "attn_q.weight"] = permuted(t[hub + "self_attn.q_proj.weight"], heads)
        out[gguf + "attn_k.weight"] = permuted(t[hub + "self_attn.k_proj.weight"], kv_heads)
        out[gguf + "attn_v.weight"] = t[hub + "self_attn.v_proj.weight"]
        out[gguf + "attn_output.weight"] = t[hub + "self_attn.o_proj.weight"]
        moe = hub + "block_sparse_moe."
        out[gguf + "ffn_gate_inp.weight"] = t[moe + "gate.weight"]
        for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            out[f"{gguf}ffn_{part}_exps.weight"] = stacked(t, moe + "experts.{}." + name + ".weight")
    return keys, out


def tile_heads(values, keys, sharers, axis):
    """Value heads from the hub's order, by key head, to the converter's: head g * sharers + r becomes r * keys + g."""
    moved = np.moveaxis(np.asarray(values), axis, 0)
    heads = moved.reshape(keys, sharers, -1, *moved.shape[1:])
    return np.moveaxis(heads.swapaxes(0, 1).reshape(moved.shape), 0, axis)


def qwen(config, t, arch, fused=False):
    """Qwen3-Next (q, k, v and z of each key head apart, or `fused` as its first files) and Qwen3.5."""
    keys = frame(arch, config, config["num_hidden_layers"])
    nk, nv = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv, r = config["linear_key_head_dim"], config["linear_value_head_dim"], nv // nk
    rope = config.get("rope_parameters") or config
    keys.update({f"{arch}.{key}": value for key, value in {
        "attention.head_count_kv": config["num_key_value_heads"], "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": dk, "ssm.group_count": nk,
        "ssm.time_step_rank": nv, "ssm.inner_size": dv * nv, "full_attention_interval": 4}.items()})
    out = {"token_embd.weight": t["model.embed_tokens.weight"], "output.weight": t["lm_head.weight"],
           "output_norm.weight": t["model.norm.weight"] + 1}
    tile = (lambda v, axis=0: tile_heads(v, nk, r, axis)) if arch == "qwen35moe" else (lambda v, axis=0: v)
    for i in range(config["num_hidden_layers"]):
        h, g = f"model.layers.{i}.", f"blk.{i}."
        out[g + "attn_norm.weight"] = t[h + "input_layernorm.weight"] + 1
        out[g + "post_attention_norm.weight"] = t[h + "post_attention_layernorm.weight"] + 1
        if h + "self_attn.q_proj.weight" in t:
            for ours, theirs in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")):
                out[g + ours + ".weight"] = t[h + f"self_attn.{theirs}.weight"]
            for part in "qk":
                out[g + f"attn_{part}_norm.weight"] = t[h + f"self_attn.{part}_norm.weight"] + 1
        else:
            a = h + "linear_attn."
            if a + "in_proj_qkvz.weight" in t:
                out[g + "ssm_ba.weight"] = t[a + "in_proj_ba.weight"]
                rows = t[a + "in_proj_qkvz.weight"].reshape(nk, 2 * dk + 2 * r * dv, -1)
                flat = lambda part: part.reshape(-1, rows.shape[-1])
                if fused:
                    out[g + "ssm_in.weight"] = flat(rows)
                else:
                    out[g + "attn_qkv.weight"] = np.concatenate(
                        [flat(rows[:, :dk]), flat(rows[:, dk:2 * dk]), flat(rows[:, 2 * dk:2 * dk + r * dv])])
                    out[g + "attn_gate.weight"] = flat(rows[:, 2 * dk + r * dv:])
            else:
                qkv = t[a + "in_proj_qkv.weight"]
                out[g + "attn_qkv.weight"] = np.concatenate([qkv[:2 * nk * dk], tile(qkv[2 * nk * dk:])])
                out[g + "attn_gate.weight"] = tile(t[a + "in_proj_z.weight"])
                out[g + "ssm_beta.weight"] = tile(t[a + "in_proj_b.weight"])
                out[g + "ssm_alpha.weight"] = tile(t[a + "in_proj_a.weight"])
            conv = t[a + "conv1d.weight"][:, 0]
            out[g + "ssm_conv1d.weight"] = np.concatenate([conv[:2 * nk * dk], tile(conv[2 * nk * dk:])])
            out[g + "ssm_a"] = tile(-np.exp(t[a + "A_log"]))
            out[g + "ssm_dt.bias"] = tile(t[a + "dt_bias"])
            out[g + "ssm_norm.weight"] = t[a + "norm.weight"]
            out[g + "ssm_out.weight"] = tile(t[a + "out_proj.weight"], axis=1)
        out[g + "ffn_gate_inp.weight"] = t[h + "mlp.gate.weight"]
        out[g + "ffn_gate_inp_shexp.weight"] = t[h + "mlp.shared_expert_gate.weight"][0]
        for part in ("gate", "up", "down"):
            out[g + f"ffn_{part}_exps.weight"] = stacked(t, h + "mlp.experts.{}." + part + "_proj.weight")
            out[g + f"ffn_{part}_shexp.weight"] = t[h + f"mlp.shared_expert.{part}_proj.weight"]
    return keys, out


def mamba(out, g, t, m, groups):
    out[g + "ssm_in.weight"] = t[m + "in_proj.weight"]
    out[g + "ssm_conv1d.weight"] = t[m + "conv1d.weight"][:, 0]
    out[g + "ssm_conv1d.bias"] = t[m + "conv1d.bias"]
    out[g + "ssm_a"] = -np.exp(t[m + "A_log"])[:, None]
    out[g + "ssm_d"] = t[m + "D"][:, None]
    out[g + "ssm_dt.bias"] = t[m + "dt_bias"]
    out[g + "ssm_norm.weight"] = t[m + "norm.weight"].reshape(groups, -1)
    out[g + "ssm_out.weight"] = t[m + "out_proj.weight"]


def granite_hybrid(config, t):
    arch = "granitehybrid"
    keys = frame(arch, config, config["num_hidden_layers"])
    attends = [kind == "attention" for kind in config["layer_types"]]
    width = config["intermediate_size"]
    keys.update({f"{arch}.{key}": value for key, value in {
        "attention.head_count_kv": [config["num_key_value_heads"] * a for a in attends],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope", "rope.freq_base": 10000.0,
        "feed_forward_length": width, "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "embedding_scale": float(config["embedding_multiplier"]), "residual_scale": float(config["residual_multiplier"]),
        "attention.scale": float(config["attention_multiplier"]), "logit_scale": float(config["logits_scaling"]),
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"], "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"]}.items()})
    out = {"token_embd.weight": t["model.embed_tokens.weight"], "output_norm.weight": t["model.norm.weight"]}
    for i, attention in enumerate(attends):
        h, g = f"model.layers.{i}.", f"blk.{i}."
        out[g + "attn_norm.weight"] = t[h + "input_layernorm.weight"]
        out[g + "ffn_norm.weight"] = t[h + "post_attention_layernorm.weight"]
        if attention:
            heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
            for part in "qk":
                out[g + f"attn_{part}.weight"] = permuted(t[h + f"self_attn.{part}_proj.weight"], heads[part])
            out[g + "attn_v.weight"] = t[h + "self_attn.v_proj.weight"]
            out[g + "attn_output.weight"] = t[h + "self_attn.o_proj.weight"]
        else:
            mamba(out, g, t, h + "mamba.", config["mamba_n_groups"])
        moe, shared = t[h + "block_sparse_moe.input_linear.weight"], t[h + "shared_mlp.input_linear.weight"]
        half = config["shared_intermediate_size"]
        out[g + "ffn_gate_inp.weight"] = t[h + "block_sparse_moe.router.layer.weight"]
        out[g + "ffn_gate_exps.weight"], out[g + "ffn_up_exps.weight"] = moe[:, :width], moe[:, width:]
        out[g + "ffn_down_exps.weight"] = t[h + "block_sparse_moe.output_linear.weight"]
        out[g + "ffn_gate_shexp.weight"], out[g + "ffn_up_shexp.weight"] = shared[:half], shared[half:]
        out[g + "ffn_down_shexp.weight"] = t[h + "shared_mlp.output_linear.weight"]
    return keys, out


def nemotron(config, t):
    arch = "nemotron_h_moe"
    blocks = config["hybrid_override_pattern"]
    keys = frame(arch, config, len(blocks))
    keys.update({f"{arch}.{key}": value for key, value in {
        "attention.head_count_kv": [config["num_key_value_heads"] * (b == "*") for b in blocks],
        "feed_forward_length": [config["moe_intermediate_size"] * (b == "E") for b in blocks],
        "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"], "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_group_count": config["n_group"],
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"], "ssm.time_step_rank": config["mamba_num_heads"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"]}.items()})
    if config.get("moe_latent_size"):
        keys[f"{arch}.moe_latent_size"] = config["moe_latent_size"]
    out = {"token_embd.weight": t["backbone.embeddings.weight"], "output.weight": t["lm_head.weight"],
           "output_norm.weight": t["backbone.norm_f.weight"]}
    for i, block in enumerate(blocks):
        h, g = f"backbone.layers.{i}.", f"blk.{i}."
        out[g + "attn_norm.weight"] = t[h + "norm.weight"]
        m = h + "mixer."
        if block == "M":
            mamba(out, g, t, m, config["n_groups"])
        elif block == "*":
            heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
            for part in "qk":
                out[g + f"attn_{part}.weight"] = permuted(t[m + f"{part}_proj.weight"], heads[part])
            out[g + "attn_v.weight"], out[g + "attn_output.weight"] = t[m + "v_proj.weight"], t[m + "o_proj.weight"]
        else:
            out[g + "ffn_gate_inp.weight"] = t[m + "gate.weight"]
            out[g + "exp_probs_b.bias"] = t[m + "gate.e_score_correction_bias"]
            for part, latent in (("down", "fc1"), ("up", "fc2")):
                if m + f"{latent}_latent_proj.weight" in t:
                    out[g + f"ffn_latent_{part}.weight"] = t[m + f"{latent}_latent_proj.weight"]
            for part in ("up", "down"):
                out[g + f"ffn_{part}_exps.weight"] = stacked(t, m + "experts.{}." + part + "_proj.weight")
                out[g + f"ffn_{part}_shexp.weight"] = t[m + f"shared_experts.{part}_proj.weight"]
    return keys, out


def gemma4(config, t):
    arch = "gemma4"
    keys = frame(arch, config, config["num_hidden_layers"])
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    ropes = config["rope_parameters"]
    wide = config["global_head_dim"]
    keys.update({f"{arch}.{key}": value for key, value in {
        "attention.key_length": wide, "attention.value_length": wide,
        "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
        "attention.head_count_kv": [config["num_key_value_heads" if s else "num_global_key_value_heads"] for s in slides],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
        "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": wide, "rope.dimension_count_swa": config["head_dim"],
        "feed_forward_length": config["intermediate_size"], "expert_count": config["num_experts"],
        "expert_used_count": config["top_k_experts"], "expert_feed_forward_length": config["moe_intermediate_size"],
        "final_logit_softcapping": float(config["final_logit_softcapping"])}.items()})
    # Letters beside the special tokens and bytes, and merges of text in which a space is U+2581.
    letters = ["\u2581", *"helowrd", "he", "ll", "hell", "hello", "\u2581w"]
    tokens = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    unused = config["vocab_size"] - len(tokens)
    keys = {key: value for key, value in keys.items() if not key.startswith("tokenizer.")}
    keys.update({"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": tokens + [f"[PAD{i}]" for i in range(unused)],
                 "tokenizer.ggml.token_type": [3, 3, 3, 2] + [6] * 256 + [1] * len(letters) + [5] * unused,
                 "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "\u2581 w"], "tokenizer.ggml.bos_token_id": 1,
                 "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 3})
    turned = int(ropes["full_attention"]["partial_rotary_factor"] * wide / 2)
    out = {"token_embd.weight": t["model.embed_tokens.weight"], "output_norm.weight": t["model.norm.weight"],
           "rope_freqs.weight": np.array([1.0] * turned + [1e30] * (wide // 2 - turned))}
    names = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
             "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
             "post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2",
             "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "ffn_gate_inp": "router.proj",
             "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    for i in range(config["num_hidden_layers"]):
        h, g = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in names.items():
            if h + theirs + ".weight" in t:
                out[g + ours + ".weight"] = t[h + theirs + ".weight"]
        out[g + "ffn_gate_inp.scale"] = t[h + "router.scale"]
        out[g + "ffn_down_exps.scale"] = t[h + "router.per_expert_scale"]
        out[g + "layer_output_scale.weight"] = t[h + "layer_scalar"]
        out[g + "ffn_gate_up_exps.weight"] = t[h + "experts.gate_up_proj"]
        out[g + "ffn_down_exps.weight"] = t[h + "experts.down_proj"]
    return keys, out
