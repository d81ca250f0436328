"""GGUF files of the families of 2026, written from checkpoints of the hub as llama.cpp's converter writes them."""
import numpy as np

from gguf_writer import frame, stacked, tile_heads

# Modules with the same names in most families: llama.cpp's and the hub's.
ATTENTION = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_gate": "self_attn.g_proj"}
LATENT = {"attn_q_a": "q_a_proj", "attn_q_a_norm": "q_a_layernorm", "attn_q_b": "q_b_proj",
          "attn_kv_a_mqa": "kv_a_proj_with_mqa", "attn_kv_a_norm": "kv_a_layernorm"}
DENSE = {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}


def parts(prefix, base, suffix=""):
    return {f"ffn_{part}{suffix}": f"{base}{prefix}{part}_proj" for part in ("gate", "up", "down")}


def common(config, t, arch, keys, inner="model.", layers=None, embed="embed_tokens", norm="norm", plus=0):
    """Keys and the tensors outside of layers; `plus`: what the converter adds to norms."""
    layers = config["num_hidden_layers"] if layers is None else layers
    made = frame(arch, config, layers)
    made.update({f"{arch}.{key}": value for key, value in keys.items()})
    out = {"token_embd.weight": t[inner + embed + ".weight"], "output_norm.weight": t[inner + norm + ".weight"] + plus}
    outer = inner[:-len("model.")] if inner.endswith("model.") else ""
    if outer + "lm_head.weight" in t:
        out["output.weight"] = t[outer + "lm_head.weight"]
    return {key: value for key, value in made.items() if value is not None}, out


def modules(out, t, layer, base, names, plus=0, changes=None):
    """Writes the modules of a layer that it has; `changes`: by llama.cpp's name."""
    for ours, theirs in names.items():
        for suffix in (".weight", ".bias"):
            if base + theirs + suffix not in t:
                continue
            values = t[base + theirs + suffix]
            values = values + plus if theirs.endswith("norm") else values
            out[f"blk.{layer}.{ours}{suffix}"] = (changes or {}).get(ours, lambda v: v)(values)


def experts(out, t, layer, base, names=("gate_proj", "up_proj", "down_proj")):
    if base + f"0.{names[1]}.weight" not in t:
        return
    for part, name in zip(("gate", "up", "down"), names):
        out[f"blk.{layer}.ffn_{part}_exps.weight"] = stacked(t, base + "{}." + name + ".weight")


def rope(config):
    return {"rope.freq_base": float(config["rope_theta"])}


def windows(config, layers):
    return [kind == "sliding_attention" for kind in config["layer_types"][:layers]]


def hy_v3(config, t):
    """The layer behind the last one predicts a further token; the correction has no suffix."""
    layers, width = config["num_hidden_layers"], config["moe_intermediate_size"]
    keys, out = common(config, t, "hy_v3", {
        **rope(config), "attention.head_count_kv": config["num_key_value_heads"], "expert_count": config["num_experts"],
        "feed_forward_length": config["intermediate_size"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": width, "expert_shared_feed_forward_length": width * config["num_shared_experts"],
        "expert_weights_norm": True, "expert_weights_scale": float(config["router_scaling_factor"]), "expert_gating_func": 2,
        "nextn_predict_layers": 1}, layers=layers + 1)
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.router.gate",
                               **parts("", "mlp.shared_mlp.", "_shexp")})
        experts(out, t, i, h + "mlp.experts.")
        if h + "mlp.expert_bias" in t:
            out[f"blk.{i}.exp_probs_b"] = t[h + "mlp.expert_bias"]
    hidden = config["hidden_size"]
    out[f"blk.{layers}.nextn.eh_proj.weight"] = np.zeros((hidden, 2 * hidden), np.float32)
    return keys, out


def exaone_moe(config, t):
    layers, width = config["num_hidden_layers"], config["moe_intermediate_size"]
    keys, out = common(config, t, "exaone-moe", {
        **rope(config), "attention.head_count_kv": config["num_key_value_heads"], "expert_count": config["num_experts"],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": windows(config, layers),
        "feed_forward_length": config["intermediate_size"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": width, "expert_shared_count": config["num_shared_experts"],
        "expert_shared_feed_forward_length": width * config["num_shared_experts"], "expert_weights_norm": True,
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_gating_func": 2, "expert_group_count": 1,
        "expert_group_used_count": 1, "leading_dense_block_count": 1, "nextn_predict_layers": 0,
        "rope.scaling.type": "none"})
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.gate", **parts("", "mlp.shared_experts.", "_shexp")})
        experts(out, t, i, h + "mlp.experts.")
        if h + "mlp.e_score_correction_bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "mlp.e_score_correction_bias"]
    return keys, out


def typed_ropes(config):
    """Keys of rope_parameters by type of layer."""
    full, sliding = (config["rope_parameters"][kind + "_attention"] for kind in ("full", "sliding"))
    return {"rope.freq_base": float(full["rope_theta"]), "rope.freq_base_swa": float(sliding["rope_theta"]),
            "rope.scaling.type": full["rope_type"], "rope.scaling.factor": float(full["factor"]),
            "rope.scaling.original_context_length": full["original_max_position_embeddings"],
            "rope.scaling.yarn_attn_factor": full.get("attention_factor"),
            "rope.scaling.yarn_beta_fast": float(full["beta_fast"]), "rope.scaling.yarn_beta_slow": float(full["beta_slow"])}


def mellum(config, t):
    layers = config["num_hidden_layers"]
    keys, out = common(config, t, "mellum", {
        **typed_ropes(config), "attention.head_count_kv": config["num_key_value_heads"],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": windows(config, layers),
        "feed_forward_length": config["intermediate_size"], "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"], "expert_feed_forward_length": config["moe_intermediate_size"]})
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, "ffn_gate_inp": "mlp.gate"})
        experts(out, t, i, h + "mlp.experts.")
    return keys, out


def laguna(config, t):
    """The file has no list of windows: every fourth layer from the first on is full."""
    head = config["head_dim"]
    full, sliding = (config["rope_parameters"][kind + "_attention"] for kind in ("full", "sliding"))
    keys, out = common(config, t, "laguna", {
        **typed_ropes(config), "attention.head_count": config["num_attention_heads_per_layer"],
        "attention.head_count_kv": config["num_key_value_heads"], "attention.sliding_window": config["sliding_window"],
        "rope.dimension_count": int(head * full["partial_rotary_factor"]),
        "rope.dimension_count_swa": int(head * sliding["partial_rotary_factor"]),
        "feed_forward_length": config["intermediate_size"], "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"], "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"], "expert_weights_norm": True,
        "expert_weights_scale": float(config["moe_routed_scaling_factor"]), "expert_gating_func": 2,
        "leading_dense_block_count": 1})
    for i in range(config["num_hidden_layers"]):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.gate", **parts("", "mlp.shared_expert.", "_shexp")})
        experts(out, t, i, h + "mlp.experts.")
        if h + "mlp.experts.e_score_correction_bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "mlp.experts.e_score_correction_bias"]
    return keys, out


def cohere2_moe(config, t):
    layers, first, width = config["num_hidden_layers"], config["first_k_dense_replace"], config["intermediate_size"]
    prefix, pattern = config["prefix_dense_sliding_window_pattern"], config["sliding_window_pattern"]
    slides = [(i + 1) % prefix != 0 if i < first else (i - first + 1) % pattern != 0 for i in range(layers)]
    keys, out = common(config, t, "cohere2moe", {
        **rope(config), "attention.head_count_kv": config["num_key_value_heads"], "logit_scale": config["logit_scale"],
        "attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides,
        "feed_forward_length": width, "expert_count": config["num_experts"], "leading_dense_block_count": first,
        "expert_used_count": config["num_experts_per_tok"], "expert_feed_forward_length": width,
        "expert_shared_count": config["num_shared_experts"], "expert_weights_norm": True, "expert_gating_func": 2,
        "expert_shared_feed_forward_length": width * config["num_shared_experts"],
        "rope.dimension_count": config["head_dim"], "rope.scaling.type": "none"})
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.gate", **parts("", "mlp.shared_experts.", "_shexp")})
        experts(out, t, i, h + "mlp.experts.")
    return keys, out


def llama3_divisors(scaling, theta, dim):
    """Divisors of the frequencies of `dim` values; the converter takes a whole head though half of it turns."""
    high, low = scaling["high_freq_factor"], scaling["low_freq_factor"]
    frequency = theta ** (-np.arange(0, dim, 2) / dim)
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / scaling["factor"] + share)).astype(np.float32)


def step3p5(config, t):
    layers = config["num_hidden_layers"]
    slides = windows(config, layers)
    other = config["attention_other_setting"]
    sparse = [int(layer) for layer in config["moe_layers_enum"].split(",")]
    keys, out = common(config, t, "step35", {
        "rope.freq_base": float(config["rope_theta"][0]), "rope.freq_base_swa": float(config["rope_theta"][1]),
        "attention.head_count": [other["num_attention_heads"] if s else config["num_attention_heads"] for s in slides],
        "attention.head_count_kv": [config["num_attention_groups"]] * layers,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides,
        "feed_forward_length": config["intermediate_size"], "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_top_k"], "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["share_expert_dim"], "expert_weights_norm": True,
        "expert_weights_scale": float(config["moe_router_scaling_factor"]), "leading_dense_block_count": min(sparse),
        "moe_every_n_layers": 1, "swiglu_clamp_exp": [float(limit) for limit in config["swiglu_limits"][:layers]],
        "swiglu_clamp_shexp": [float(limit) for limit in config["swiglu_limits_shared"][:layers]]}, plus=1)
    out["rope_freqs.weight"] = llama3_divisors(config["rope_scaling"], config["rope_theta"][0], config["head_dim"])
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "moe.gate", **parts("", "share_expert.", "_shexp")}, plus=1)
        if i in sparse:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "moe.router_bias"]
            for part in ("gate", "up", "down"):
                out[f"blk.{i}.ffn_{part}_exps.weight"] = t[h + f"moe.{part}_proj.weight"]
    return keys, out


def mimo_v2_flash(config, t):
    """Further layers predict tokens; lists have entries for them."""
    layers, slides = config["num_hidden_layers"], [*config["hybrid_layer_pattern"], 1, 1, 1]
    kv = [config["swa_num_key_value_heads" if s else "num_key_value_heads"] for s in slides]
    keys, out = common(config, t, "mimo2", {
        **rope(config), "rope.freq_base_swa": float(config["swa_rope_theta"]), "attention.head_count_kv": kv,
        "rope.dimension_count": int(config["head_dim"] * config["partial_rotary_factor"]),
        "attention.value_length": config["v_head_dim"], "attention.value_scale": config["attention_value_scale"],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": slides,
        "attention.layer_norm_rms_epsilon": config["layernorm_epsilon"],
        "feed_forward_length": config["intermediate_size"], "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"], "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_gating_func": 2, "expert_group_count": 1, "expert_group_used_count": 1,
        "nextn_predict_layers": 3}, layers=layers + 3)
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.gate"})
        experts(out, t, i, h + "mlp.experts.")
        for ours, theirs in (("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
                             ("attn_sinks.weight", "self_attn.attention_sink_bias")):
            if h + theirs in t:
                out[f"blk.{i}.{ours}"] = t[h + theirs]
    hidden = config["hidden_size"]
    for i in range(3):
        out[f"blk.{layers + i}.nextn.eh_proj.weight"] = np.zeros((hidden, 2 * hidden), np.float32)
    return keys, out


def minimax_m3(config, t):
    """The dense layers' width and the activation's numbers have no key."""
    config = config["text_config"]
    sparse, dense = config["sparse_attention_config"], config["moe_layer_freq"].index(1)
    keys, out = common({"rms_norm_eps": 1e-6, **config}, t, "minimax-m3", {
        **rope(config), "attention.head_count_kv": config["num_key_value_heads"], "expert_gating_func": 2,
        "rope.dimension_count": config["rotary_dim"], "feed_forward_length": config["intermediate_size"],
        "expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"], "expert_shared_count": 1,
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_weights_norm": True,
        "attention.indexer.head_count": sparse["sparse_num_index_heads"],
        "attention.indexer.key_length": sparse["sparse_index_dim"], "attention.indexer.top_k": sparse["sparse_topk_blocks"],
        "attention.indexer.block_size": sparse["sparse_block_size"],
        "attention.indexer.local_blocks": sparse["sparse_local_block"], "leading_dense_block_count": dense},
        inner="language_model.model.", plus=1)
    names = {**ATTENTION, **DENSE, "ffn_gate_inp": "block_sparse_moe.gate",
             **parts("", "block_sparse_moe.shared_experts.", "_shexp"),
             **{f"indexer.{part}_{kind}": f"self_attn.index_{part}_{kind}" for part in "qk" for kind in ("proj", "norm")}}
    for i in range(config["num_hidden_layers"]):
        h = f"language_model.model.layers.{i}."
        modules(out, t, i, h, names, plus=1)
        experts(out, t, i, h + "block_sparse_moe.experts.", ("w1", "w3", "w2"))
        if h + "block_sparse_moe.e_score_correction_bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "block_sparse_moe.e_score_correction_bias"]
    return keys, out


def latent(config, t, layer, base, out):
    """Latent attention in the absorbed form: the keys' half of kv_b_proj transposed."""
    modules(out, t, layer, base, {ours: theirs for ours, theirs in LATENT.items()})
    heads, nope, value = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
    both = t[base + "kv_b_proj.weight"].reshape(heads, nope + value, -1)
    out[f"blk.{layer}.attn_k_b.weight"] = both[:, :nope].swapaxes(1, 2)
    out[f"blk.{layer}.attn_v_b.weight"] = both[:, nope:]


def latent_keys(config):
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {"attention.key_length": rank + turned, "attention.value_length": rank, "attention.kv_lora_rank": rank,
            "attention.q_lora_rank": config.get("q_lora_rank"), "rope.dimension_count": turned,
            "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
            "attention.value_length_mla": config["v_head_dim"]}


def indexed(config, t, arch):
    """DeepSeek-V3.2 and GLM-5; a layer that shares another's choice has no indexer."""
    layers = config["num_hidden_layers"]
    types = config.get("indexer_types")
    keys, out = common(config, t, arch, {
        **latent_keys(config), **rope(config), "attention.head_count_kv": 1, "expert_gating_func": 2,
        "feed_forward_length": config["intermediate_size"], "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"], "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_weights_norm": True,
        "expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"],
        "attention.indexer.head_count": config["index_n_heads"], "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "attention.indexer.types": types and [kind == "full" for kind in types]})
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.gate", **parts("", "mlp.shared_experts.", "_shexp"),
                               "indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk",
                               "indexer.k_norm": "self_attn.indexer.k_norm",
                               "indexer.proj": "self_attn.indexer.weights_proj"})
        latent(config, t, i, h + "self_attn.", out)
        experts(out, t, i, h + "mlp.experts.")
        if h + "mlp.gate.e_score_correction_bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "mlp.gate.e_score_correction_bias"]
    return keys, out


COMPRESSOR = {"kv": "wkv", "gate": "wgate", "norm": "norm"}
DEEPSEEK4 = {
    "attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "attn_q_a": "attn.wq_a", "attn_q_a_norm": "attn.q_norm",
    "attn_q_b": "attn.wq_b", "attn_kv": "attn.wkv", "attn_kv_a_norm": "attn.kv_norm", "attn_output_a": "attn.wo_a",
    "attn_output_b": "attn.wo_b", "indexer.attn_q_b": "attn.indexer.wq_b",
    "indexer.proj": "attn.indexer.weights_proj",
    **{f"attn_compressor_{ours}": f"attn.compressor.{theirs}" for ours, theirs in COMPRESSOR.items()},
    **{f"indexer_compressor_{ours}": f"attn.indexer.compressor.{theirs}" for ours, theirs in COMPRESSOR.items()},
    **{f"ffn_{ours}_shexp": f"ffn.shared_experts.{theirs}" for ours, theirs in zip(("gate", "up", "down"), ("w1", "w3", "w2"))},
}  # fmt: skip
# Tensors whose names at the hub have no suffix.
DEEPSEEK4_BARE = {
    "attn_sinks": "attn.attn_sink", "attn_compressor_ape": "attn.compressor.ape",
    "indexer_compressor_ape": "attn.indexer.compressor.ape", "ffn_gate_tid2eid": "ffn.gate.tid2eid",
    **{f"hc_{block}_{part}": f"hc_{block}_{part}" for block in ("attn", "ffn") for part in ("fn", "base", "scale")},
}  # fmt: skip


def deepseek_v4(config, t):
    """Experts named by tokens are whole numbers."""
    layers = config["num_hidden_layers"]
    keys = frame("deepseek4", config, layers)
    own = {
        **rope(config), "attention.head_count_kv": 1, "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"], "rope.dimension_count": config["qk_rope_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"], "attention.output_lora_rank": config["o_lora_rank"],
        "attention.output_group_count": config["o_groups"], "attention.sliding_window": config["sliding_window"],
        "attention.compress_ratios": config["compress_ratios"][:layers],
        "attention.compress_rope_freq_base": float(config["compress_rope_theta"]),
        "attention.indexer.head_count": config["index_n_heads"], "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"], "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"], "hyper_connection.epsilon": config["hc_eps"],
        "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"], "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_weights_norm": True, "expert_gating_func": 4,
        "hash_layer_count": config["num_hash_layers"], "swiglu_clamp_exp": [float(config["swiglu_limit"])] * layers}  # fmt: skip
    keys.update({"deepseek4." + key: value for key, value in own.items()})
    out = {"token_embd.weight": t["embed.weight"], "output_norm.weight": t["norm.weight"], "output.weight": t["head.weight"]}
    out.update({f"output_hc_{part}.weight": t[f"hc_head_{part}"] for part in ("fn", "base", "scale")})
    for i in range(layers):
        h = f"layers.{i}."
        modules(out, t, i, h, DEEPSEEK4)
        out[f"blk.{i}.ffn_gate_inp.weight"] = t[h + "ffn.gate.weight"]
        out.update({f"blk.{i}.{ours}.weight": t[h + theirs] for ours, theirs in DEEPSEEK4_BARE.items() if h + theirs in t})
        experts(out, t, i, h + "ffn.experts.", ("w1", "w3", "w2"))
        if h + "ffn.gate.bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "ffn.gate.bias"]
    return keys, out


def delta(out, t, layer, base, low_rank):
    """Kimi Delta Attention; convolutions have four dimensions."""
    g = f"blk.{layer}."
    for part in "qkv":
        conv = t[base + f"{part}_conv1d.weight"]
        out[g + f"ssm_conv1d_{part}.weight"] = conv.reshape(1, conv.shape[0], 1, conv.shape[-1])
    names = {"ssm_f_a": "f_a_proj", "ssm_f_b": "f_b_proj", "ssm_g_a": "g_a_proj", "ssm_g_b": "g_b_proj"}
    modules(out, t, layer, base, {**(names if low_rank else {"ssm_f_a": "f_proj", "ssm_g_a": "g_proj"}),
                                  "ssm_beta": "b_proj", "ssm_norm": "o_norm"})
    out[g + "ssm_dt.bias"] = t[base + "dt_bias"]


def kimi_linear(config, t):
    layers, linear = config["num_hidden_layers"], config["linear_attn_config"]
    keys, out = common(config, t, "kimi-linear", {
        **latent_keys(config), **rope(config), "attention.value_length": config["head_dim"], "expert_gating_func": 2,
        "attention.head_count_kv": [int(i + 1 in linear["full_attn_layers"]) for i in range(layers)],
        "ssm.conv_kernel": linear["short_conv_kernel_size"], "kda.head_dim": linear["head_dim"],
        "feed_forward_length": config["intermediate_size"], "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"], "expert_shared_count": config["num_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"])})
    moe = "block_sparse_moe."
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, {**ATTENTION, **DENSE, "ffn_gate_inp": moe + "gate", **parts("", moe + "shared_experts.", "_shexp")})
        experts(out, t, i, h + moe + "experts.", ("w1", "w3", "w2"))
        if h + moe + "gate.e_score_correction_bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + moe + "gate.e_score_correction_bias"]
        if i + 1 in linear["kda_layers"]:
            delta(out, t, i, h + "self_attn.", low_rank=True)
            out[f"blk.{i}.ssm_a"] = -np.exp(t[h + "self_attn.A_log"])
        else:
            latent(config, t, i, h + "self_attn.", out)
    return keys, out


def bailing_hybrid(config, t):
    """ssm_a is positive, unlike other families'."""
    layers, group = config["num_hidden_layers"], config["layer_group_size"]
    keys, out = common({"rms_norm_eps": 1e-6, **config}, t, "bailingmoe3", {
        **latent_keys(config), **rope(config), "expert_gating_func": 2, "kda.head_dim": config["head_dim"],
        "attention.head_count_kv": [int((i + 1) % group == 0) for i in range(layers)], "kda.safe_gate": True,
        "ssm.conv_kernel": config["short_conv_kernel_size"], "kda.gate_lower_bound": config["kda_lower_bound"],
        "feed_forward_length": config["intermediate_size"], "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"],
        "expert_feed_forward_length": config["moe_intermediate_size"], "expert_shared_count": config["num_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_weights_norm": True,
        "swiglu_clamp_exp": [0.0] * layers}, embed="word_embeddings")
    names = {**ATTENTION, **DENSE, "ffn_gate_inp": "mlp.gate", **parts("", "mlp.shared_experts.", "_shexp"),
             **{f"attn_{part}": f"attention.{part}_proj" for part in "qkv"}, "attn_output": "attention.dense"}
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, names)
        experts(out, t, i, h + "mlp.experts.")
        if h + "mlp.gate.expert_bias" in t:
            out[f"blk.{i}.exp_probs_b.bias"] = t[h + "mlp.gate.expert_bias"]
        if (i + 1) % group:
            delta(out, t, i, h + "attention.", low_rank=False)
            out[f"blk.{i}.ssm_a"] = np.exp(t[h + "attention.A_log"]).reshape(-1, 1)
        else:
            latent(config, t, i, h + "attention.", out)
            out[f"blk.{i}.attn_gate.weight"] = t[h + "attention.g_proj.weight"]
    return keys, out


def jamba(config, t):
    """Layers with experts and with attention are known by their tensors; there is no rope."""
    layers, period, offset = config["num_hidden_layers"], config["attn_layer_period"], config["attn_layer_offset"]
    keys, out = common(config, t, "jamba", {
        "attention.key_length": None, "attention.value_length": None,
        "attention.head_count_kv": [config["num_key_value_heads"] * (i % period == offset) for i in range(layers)],
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"], "ssm.time_step_rank": config["mamba_dt_rank"],
        "feed_forward_length": config["intermediate_size"], "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"]}, norm="final_layernorm")
    names = {**ATTENTION, "ffn_norm": "pre_ff_layernorm", "ffn_gate_inp": "feed_forward.router",
             **parts("", "feed_forward."), "ssm_in": "mamba.in_proj", "ssm_x": "mamba.x_proj", "ssm_dt": "mamba.dt_proj",
             "ssm_dt_norm": "mamba.dt_layernorm", "ssm_b_norm": "mamba.b_layernorm", "ssm_c_norm": "mamba.c_layernorm",
             "ssm_conv1d": "mamba.conv1d", "ssm_out": "mamba.out_proj"}
    for i in range(layers):
        h = f"model.layers.{i}."
        modules(out, t, i, h, names, changes={"ssm_conv1d": np.squeeze})
        experts(out, t, i, h + "feed_forward.experts.")
        if h + "mamba.A_log" in t:
            out[f"blk.{i}.ssm_a"] = -np.exp(t[h + "mamba.A_log"])
            out[f"blk.{i}.ssm_d"] = t[h + "mamba.D"]
    return keys, out
