#!/usr/bin/python3
"""Measures the perplexity of a Mixtral folder from GGUF files made of it: the file in place, packs of it, and its exact values.

usage: gguf_quality.py --model deploy/sample --text FILE [--types Q4_0,..] [--max-tokens 12800] [--work DIR] [--bin DIR]

For each type a GGUF file is written and measured over the same tokens with `--kv f32`: as a pack of `--bits source` (the file's
values exactly); in place (the file's blocks, multiplied with int8 activations); and as packs by neurons, whose down rows are
encoded anew, `--down-bits q8` and `q4`. Prints a Markdown table. Exit status 1 if a command failed.

Needs numpy and two packages, `pip install gguf xllamacpp`: the first writes the files, the second contains ggml's own
quantizer, which gets an importance of 1 for every column. Every matrix has the type; norms and routers stay in f32.

Blocks of 256 values need rows of at least that many, which a small model lacks. Such a model is written twice as wide (or
more): the hidden state is repeated, matrices that read it have half their weights in each copy, and zero neurons fill up the
experts. Halves are exact and the norms' means are unchanged, so the model computes the same, as BF16's row shows. The columns
of the attention's output cannot be repeated, and get the type that llama.cpp falls back to.
"""
import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

TYPES = ("BF16,Q8_0,Q6_K,Q5_K,Q5_0,Q4_K,Q4_0,Q3_K,Q2_K,IQ4_NL,IQ4_XS,IQ3_S,IQ3_XXS,IQ2_S,IQ2_XS,IQ2_XXS,IQ1_M,IQ1_S,TQ2_0,TQ1_0,"
         "MXFP4,NVFP4")  # fmt: skip
SMALL = ("IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
FALLBACKS = {**dict.fromkeys(SMALL, "IQ4_NL"), "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
             "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
SUPERBLOCK = 256


def need(package):
    try:
        found = importlib.util.find_spec(package)
    except ImportError:
        found = None
    if not found:
        sys.exit(f"gguf_quality: the package {package} is missing: pip install {package}")
    return found


class Quantizer:
    """ggml's quantizer, which xllamacpp's library exports."""

    def __init__(self):
        folder = pathlib.Path(need("xllamacpp").origin).parent
        libraries = sorted(folder.glob("xllamacpp*.so"))
        if not libraries:
            sys.exit(f"gguf_quality: {folder} has no library xllamacpp*.so")
        self.chunk = ctypes.CDLL(str(libraries[0])).ggml_quantize_chunk
        self.chunk.restype = ctypes.c_size_t
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.chunk.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]

    def rows(self, values, kind, row_bytes):
        values = np.ascontiguousarray(values, np.float32)
        columns, count = values.shape[-1], values.size // values.shape[-1]
        out = np.zeros((*values.shape[:-1], row_bytes), np.uint8)
        importance = np.ones(columns, np.float32)
        written = self.chunk(kind, values.ctypes.data, out.ctypes.data, 0, count, columns, importance.ctypes.data)
        if written != out.nbytes:
            sys.exit(f"gguf_quality: type {kind} took {written} bytes for {out.nbytes}")
        return out


def read_safetensors(path):
    """Returns {name: float32 array}."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, info in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        data = raw[8 + size + info["data_offsets"][0]:8 + size + info["data_offsets"][1]]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[info["dtype"]]).astype(np.float32)
        tensors[name] = values.reshape(info["shape"])
    return tensors


def fields(data):
    """Yields (number, value) of a protobuf message's fields; varints as integers, others as bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or varint()
        yield tag >> 3, data[at:at + size]
        at += size


def pieces(path):
    """Returns tokens, scores and types of a SentencePiece model; GGUF uses the same numbers for types."""
    tokens, scores, kinds = [], [], []
    for number, value in fields(path.read_bytes()):
        if number == 1:
            piece = dict(fields(value))
            tokens.append(piece[1])
            scores.append(struct.unpack("<f", piece.get(2, bytes(4)))[0])
            kinds.append(piece.get(3, 1))
    return tokens, scores, kinds


class Widened:
    """The tensors of a Mixtral folder with llama.cpp's names and order, wide enough for blocks."""

    def __init__(self, folder, block=SUPERBLOCK):
        self.config = json.loads((folder / "config.json").read_text())
        if self.config.get("model_type") != "mixtral":
            sys.exit(f"gguf_quality: {folder} is a {self.config.get('model_type')}: Mixtral folders alone are written")
        self.hub = read_safetensors(folder / "model.safetensors")
        self.copies = 1
        while self.config["hidden_size"] * self.copies % block:
            self.copies *= 2
        self.hidden = self.config["hidden_size"] * self.copies
        self.width = -(-self.config["intermediate_size"] // block) * block
        heads = self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // heads

    def reads(self, matrix):
        return np.concatenate([matrix / self.copies] * self.copies, -1)

    def writes(self, matrix):
        return np.concatenate([matrix] * self.copies, 0)

    def neurons(self, matrix, axis):
        missing = self.width - matrix.shape[axis]
        return np.pad(matrix, [(0, missing if each == axis else 0) for each in range(2)])

    def rope(self, matrix, heads):
        """Reorders rows of q or k for llama.cpp's rope, which rotates neighbours instead of halves."""
        halves = matrix.reshape(heads, 2, self.head_dim // 2, -1)
        return halves.swapaxes(1, 2).reshape(matrix.shape)

    def tensors(self):
        hub, config = self.hub, self.config
        head = hub.get("lm_head.weight", hub["model.embed_tokens.weight"])
        yield "token_embd.weight", np.concatenate([hub["model.embed_tokens.weight"]] * self.copies, -1)
        yield "output_norm.weight", self.writes(hub["model.norm.weight"])
        yield "output.weight", self.reads(head)
        for layer in range(config["num_hidden_layers"]):
            from_, to = f"model.layers.{layer}.", f"blk.{layer}."
            attention, mixture = from_ + "self_attn.", from_ + "block_sparse_moe."
            yield to + "attn_norm.weight", self.writes(hub[from_ + "input_layernorm.weight"])
            yield to + "ffn_norm.weight", self.writes(hub[from_ + "post_attention_layernorm.weight"])
            for part, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
                rows = self.rope(hub[f"{attention}{part}_proj.weight"], heads)
                yield f"{to}attn_{part}.weight", self.reads(rows)
            yield to + "attn_v.weight", self.reads(hub[attention + "v_proj.weight"])
            yield to + "attn_output.weight", self.writes(hub[attention + "o_proj.weight"])
            yield to + "ffn_gate_inp.weight", self.reads(hub[mixture + "gate.weight"])

            def experts(part, made):
                every = range(config["num_local_experts"])
                return np.stack([made(hub[f"{mixture}experts.{each}.{part}.weight"]) for each in every])

            yield to + "ffn_gate_exps.weight", experts("w1", lambda m: self.neurons(self.reads(m), 0))
            yield to + "ffn_up_exps.weight", experts("w3", lambda m: self.neurons(self.reads(m), 0))
            yield to + "ffn_down_exps.weight", experts("w2", lambda m: self.neurons(self.writes(m), 1))


def write_facts(out, tokens, config, hidden, width, head_dim):
    """Writes the metadata of a GGUF file of the architecture llama; `config` has the names of Mixtral's config.json."""
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(hidden)
    out.add_feed_forward_length(width)
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_rope_dimension_count(head_dim)
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_expert_count(config["num_local_experts"])
    out.add_expert_used_count(config["num_experts_per_tok"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("llama")
    for add, values in zip((out.add_token_list, out.add_token_scores, out.add_token_types), tokens):
        add(values)
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])


def write_gguf(model, folder, path, kind, quantizer):
    import gguf

    out = gguf.GGUFWriter(str(path), "llama")
    tokens = pieces(folder / "tokenizer.model")
    write_facts(out, tokens, model.config, model.hidden, model.width, model.head_dim)
    types = gguf.GGMLQuantizationType
    for name, values in model.tensors():
        if values.ndim == 1 or "ffn_gate_inp" in name:
            out.add_tensor(name, np.ascontiguousarray(values, np.float32))
            continue
        taken = types[kind]
        block, size = gguf.GGML_QUANT_SIZES[taken]
        if values.shape[-1] % block:
            taken = types[FALLBACKS[kind]]
            block, size = gguf.GGML_QUANT_SIZES[taken]
        rows = quantizer.rows(values, taken, values.shape[-1] // block * size)
        out.add_tensor(name, rows, raw_dtype=taken)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class Sluice:
    def __init__(self, o, work):
        self.program = os.path.join(o.bin, "sluice")
        self.text = ["--text", o.text, "--max-tokens", str(o.max_tokens), "--kv", "f32"]
        self.pack = os.path.join(work, "pack")
        # Keeps other users' daemons out of the run, and indexes of files in place out of their caches.
        self.env = {**os.environ, "SLUICE_RUNTIME_DIR": work, "SLUICE_CACHE_DIR": os.path.join(work, "cache")}

    def call(self, *arguments):
        result = subprocess.run([self.program, *arguments], stdout=subprocess.PIPE, env=self.env, text=True)
        if result.returncode:
            sys.exit(f"gguf_quality: {' '.join(arguments)} ended with {result.returncode}")
        return json.loads(result.stdout)

    def perplexity(self, *model_and_more):
        return self.call("perplexity", "--quiet", "--json", *self.text, *model_and_more)

    def packed(self, model, *options, comparison=()):
        self.call("pack", str(model), "--out", self.pack, "--force", "--quiet", "--json", *options)
        return self.perplexity("--pack", self.pack, *comparison)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Mixtral folder")
    parser.add_argument("--text", required=True, help="file whose first tokens are measured")
    parser.add_argument("--types", default=TYPES, help=f"names of ggml's types, by commas [{TYPES}]")
    parser.add_argument("--max-tokens", type=int, default=12800)
    parser.add_argument("--work", help="folder that keeps the GGUF files [a temporary one, removed]")
    parser.add_argument("--bin", default="build/release/bin")
    o = parser.parse_args()
    need("gguf")
    quantizer, folder = Quantizer(), pathlib.Path(o.model)
    model = Widened(folder)
    with tempfile.TemporaryDirectory() as work:
        sluice = Sluice(o, work)
        logits = os.path.join(work, "exact")
        base = sluice.packed(folder, "--bits", "source")["ppl"]
        print(f"The folder itself: {base:.4f}.\n")
        print("| file | its exact values | against the folder % | in place | against the exact values % | KL divergence "
              "| same top % | down in q8 % | down in q4 % |\n|---|---|---|---|---|---|---|---|---|", flush=True)  # fmt: skip
        for kind in o.types.split(","):
            path = pathlib.Path(o.work or work) / f"{folder.name}-{kind}.gguf"
            write_gguf(model, folder, path, kind, quantizer)
            exact = sluice.packed(path, "--bits", "source", comparison=("--save-base", logits))["ppl"]
            kept = sluice.perplexity("--model", str(path), "--kl-base", logits)
            by_neurons = [sluice.packed(path, "--down-bits", bits) for bits in ("q8", "q4")]
            if not o.work:
                path.unlink()
            losses = [100 * (each["ppl"] / exact - 1) for each in (kept, *by_neurons)]
            print(f"| {kind} | {exact:.4f} | {100 * (exact / base - 1):+.2f} | {kept['ppl']:.4f} | {losses[0]:+.3f} "
                  f"| {kept['kld_mean']:.5f} | {100 * kept['same_top']:.2f} | {losses[1]:+.2f} | {losses[2]:+.2f} |",
                  flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
