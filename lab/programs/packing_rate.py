#!/usr/bin/python3
"""Measures the rate of `sluice pack` on large published files in a cgroup of little memory, and checks that it resumes.

usage: packing_rate.py [--bin build/release] [--work DIR] [--gib 20] [--memory MIB] [--kinds fp8,gguf] [--bits q4]

For each kind a checkpoint with layers of Qwen3-30B is written, as many as fit into GIB (some 600 MB each in fp8): safetensors
with block scales like Qwen3-FP8's, or one GGUF file whose experts are Q4_K (up, gate) and Q6_K (down). Values are random bytes
that represent finite numbers. Each is packed twice in a memory cgroup of MIB, page cache included, after dropping the file from
the page cache: once completely, which is timed, and once killed after a third of that time and restarted; both results must be
the same model. fp8 is encoded as --bits; the GGUF keeps its rows, except down rows, which become q8.

Prints as Markdown: bytes of the file per second; the peak memory use; the bound of disk and encoder (the longer of reading the
file and writing the pack at the rates of plain direct transfers in this run, and of encoding all encoded values at
quantize_bench's rate in this run on all threads); and the share of the bound that was reached.

Needs numpy, and free disk space for the file and its pack, which is removed. Exit status 1 if a command failed or the packs
differ.
"""
import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from capped_decode import MemoryCgroup, Watch, remove_leftovers  # noqa: E402

HIDDEN, WIDTH, EXPERTS, USED, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 768, 128, 8, 32, 4, 128, 2048
BLOCK = 128  # rows and columns that share a scale of fp8
POOL = 64 << 20  # random bytes from which all matrices are cut
HEADS_OF = {
    "files": "",
    "rate": "| file | GiB | pack, GiB | most memory, MiB | MB/s of the file | of what is allowed: reading | writing | encoding "
            "| reached |\n|---|---|---|---|---|---|---|---|---|",
    "resume": "\n| file | killed after, s | then, s | most memory, MiB | |\n|---|---|---|---|---|",
}  # fmt: skip


class Pool:
    """Bytes for matrices, each from another place of one pool of random bytes."""

    def __init__(self, make):
        self.bytes = make(np.random.default_rng(7)).tobytes()
        self.at = 0

    def take(self, size, unit=1):
        self.at = (self.at + 977 * unit) % (len(self.bytes) - len(self.bytes) % unit)
        parts, left, at = [], size, self.at
        while left:
            part = self.bytes[at:at + left]
            parts.append(part)
            left, at = left - len(part), 0
        return b"".join(parts)


def fp8_bytes(random):
    """Returns E4M3 values of magnitude below one, without NaN."""
    return random.integers(0, 256, POOL, np.uint8) & 0xBF


def blocks_of(size, scales):
    """Returns blocks of SIZE random bytes with small finite f16 values at the offsets SCALES."""

    def make(random):
        blocks = random.integers(0, 256, (POOL // size, size), np.uint8)
        for offset in scales:
            values = random.uniform(1e-4, 4e-4, len(blocks)).astype(np.float16)
            blocks[:, offset:offset + 2] = values.view(np.uint8).reshape(-1, 2)
        return blocks

    return make


def bf16(count, spread):
    values = np.random.default_rng(11).normal(0, spread, count).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def f32(count, spread):
    return np.random.default_rng(13).normal(0, spread, count).astype(np.float32).tobytes()


def write_safetensors(path, tensors):
    """Writes tensors: (name, dtype, shape, size, function that makes the bytes)."""
    header, at = {}, 0
    for name, dtype, shape, size, _ in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, size, make in tensors:
            data = make()
            assert len(data) == size
            file.write(data)
    return list(header)


def fp8_layer(layer, pool):
    prefix = f"model.layers.{layer}."
    scale = struct.pack("<H", 0x3C8F)  # 0.0175

    def matrix(name, rows, columns):
        grid = [(rows + BLOCK - 1) // BLOCK, (columns + BLOCK - 1) // BLOCK]
        yield prefix + name + ".weight", "F8_E4M3", [rows, columns], rows * columns, lambda: pool.take(rows * columns)
        yield (prefix + name + ".weight_scale_inv", "BF16", grid, 2 * grid[0] * grid[1],
               lambda: scale * (grid[0] * grid[1]))

    def dense(name, shape, spread):
        count = int(np.prod(shape))
        yield prefix + name + ".weight", "BF16", shape, 2 * count, lambda: bf16(count, spread)

    yield from dense("input_layernorm", [HIDDEN], 1)
    yield from dense("post_attention_layernorm", [HIDDEN], 1)
    yield from dense("self_attn.q_norm", [HEAD_DIM], 1)
    yield from dense("self_attn.k_norm", [HEAD_DIM], 1)
    yield from dense("mlp.gate", [EXPERTS, HIDDEN], 0.02)
    yield from matrix("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN)
    yield from matrix("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    yield from matrix("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    yield from matrix("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
    for expert in range(EXPERTS):
        yield from matrix(f"mlp.experts.{expert}.gate_proj", WIDTH, HIDDEN)
        yield from matrix(f"mlp.experts.{expert}.up_proj", WIDTH, HIDDEN)
        yield from matrix(f"mlp.experts.{expert}.down_proj", HIDDEN, WIDTH)


def write_fp8(options, folder):
    """Writes a folder like Qwen3-30B-A3B-FP8's, with the sample model's tokenizer."""
    pool = Pool(fp8_bytes)
    layers, index, size = 0, {}, 0
    os.makedirs(folder)
    while size < options.gib << 30:
        name = f"model-{layers:05}.safetensors"
        names = write_safetensors(os.path.join(folder, name), list(fp8_layer(layers, pool)))
        index.update(dict.fromkeys(names, name))
        size += os.path.getsize(os.path.join(folder, name))
        layers += 1
    ends = [("model.embed_tokens.weight", "BF16", [VOCAB, HIDDEN], 2 * VOCAB * HIDDEN, lambda: bf16(VOCAB * HIDDEN, 0.02)),
            ("lm_head.weight", "BF16", [VOCAB, HIDDEN], 2 * VOCAB * HIDDEN, lambda: bf16(VOCAB * HIDDEN, 0.02)),
            ("model.norm.weight", "BF16", [HIDDEN], 2 * HIDDEN, lambda: bf16(HIDDEN, 1))]
    index.update(dict.fromkeys(write_safetensors(os.path.join(folder, "model-ends.safetensors"), ends),
                               "model-ends.safetensors"))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": index}, file)
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN,
              "moe_intermediate_size": WIDTH, "intermediate_size": 6144, "num_experts": EXPERTS,
              "num_experts_per_tok": USED, "num_hidden_layers": layers, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "hidden_act": "silu",
              "rms_norm_eps": 1e-6, "rope_theta": 1e6, "norm_topk_prob": True, "decoder_sparse_step": 1,
              "mlp_only_layers": [], "max_position_embeddings": 4096, "tie_word_embeddings": False,
              "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                      "weight_block_size": [BLOCK, BLOCK]}}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(options.tokenizer, name), folder)


def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value):
    """Returns the bytes of a key, its type and value."""
    if isinstance(value, list) and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_string, value))
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


TYPES = {"F32": (0, 1, 4), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}  # number, values per block, bytes per block


def write_gguf(options, path):
    """Writes a file like Qwen3-30B-A3B in Q4_K_M, with a tokenizer of single bytes and filler words."""
    pools = {"Q4_K": Pool(blocks_of(144, (0, 2))), "Q6_K": Pool(blocks_of(210, (208,)))}
    tensors = []

    def add(name, kind, *shape):
        """`shape`: rows last, in GGUF's order."""
        number, values, size = TYPES[kind]
        count = int(np.prod(shape))
        total = count // values * size
        make = (lambda: pools[kind].take(total, size)) if kind in pools else (lambda: f32(count, 0.02))
        tensors.append((name, number, shape, total, make))

    add("token_embd.weight", "Q4_K", HIDDEN, VOCAB)
    add("output.weight", "Q6_K", HIDDEN, VOCAB)
    add("output_norm.weight", "F32", HIDDEN)
    layers = 0
    while sum(tensor[3] for tensor in tensors) < options.gib << 30:
        prefix = f"blk.{layers}."
        for name, kind, *shape in (("attn_norm", "F32", HIDDEN), ("ffn_norm", "F32", HIDDEN),
                                   ("attn_q_norm", "F32", HEAD_DIM), ("attn_k_norm", "F32", HEAD_DIM),
                                   ("attn_q", "Q4_K", HIDDEN, HEADS * HEAD_DIM),
                                   ("attn_k", "Q4_K", HIDDEN, KV_HEADS * HEAD_DIM),
                                   ("attn_v", "Q6_K", HIDDEN, KV_HEADS * HEAD_DIM),
                                   ("attn_output", "Q4_K", HEADS * HEAD_DIM, HIDDEN),
                                   ("ffn_gate_inp", "F32", HIDDEN, EXPERTS),
                                   ("ffn_gate_exps", "Q4_K", HIDDEN, WIDTH, EXPERTS),
                                   ("ffn_up_exps", "Q4_K", HIDDEN, WIDTH, EXPERTS),
                                   ("ffn_down_exps", "Q6_K", WIDTH, HIDDEN, EXPERTS)):  # fmt: skip
            add(prefix + name + ".weight", kind, *shape)
        layers += 1
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokens = letters + [f"{a}{b}" for a in letters for b in letters][:VOCAB - len(letters)]
    arch = "qwen3moe"
    keys = {"general.architecture": arch, f"{arch}.block_count": layers, f"{arch}.context_length": 4096,
            f"{arch}.embedding_length": HIDDEN, f"{arch}.feed_forward_length": 6144,
            f"{arch}.expert_feed_forward_length": WIDTH, f"{arch}.expert_count": EXPERTS,
            f"{arch}.expert_used_count": USED, f"{arch}.attention.head_count": HEADS,
            f"{arch}.attention.head_count_kv": KV_HEADS, f"{arch}.attention.key_length": HEAD_DIM,
            f"{arch}.attention.value_length": HEAD_DIM, f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
            f"{arch}.rope.freq_base": 1e6, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * VOCAB,
            "tokenizer.ggml.merges": [f"{word[0]} {word[1]}" for word in tokens[len(letters):]],
            "tokenizer.ggml.eos_token_id": 0}
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)))
        for key, value in keys.items():
            file.write(gguf_string(key) + gguf_value(value))
        at = 0
        for name, number, shape, size, _ in tensors:
            file.write(gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, at))
            at += size + -size % 32
        file.write(b"\0" * (-file.tell() % 32))
        for *_, size, make in tensors:
            data = make()
            assert len(data) == size
            file.write(data + b"\0" * (-size % 32))


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def size_of(path):
    return sum(os.path.getsize(name) for name in files_of(path))


def drop_from_page_cache(path):
    for name in files_of(path):
        with open(name, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of(*command):
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def disk_rates(options, source):
    """Returns the bytes per second of reading the source's largest file and of writing, both direct."""
    largest = max(files_of(source), key=os.path.getsize)
    count = min(os.path.getsize(largest), 4 << 30) >> 22
    scratch = os.path.join(options.work, "scratch")
    read = seconds_of("dd", f"if={largest}", "of=/dev/null", "bs=4M", f"count={count}", "iflag=direct")
    write = seconds_of("dd", "if=/dev/zero", f"of={scratch}", "bs=4M", "count=512", "oflag=direct", "conv=fsync")
    os.remove(scratch)
    return (count << 22) / read, (512 << 22) / write


def encoder_rate(options, bits):
    """Returns the values per second on all threads: quantize_bench's first column."""
    path = os.path.join(options.work, "quantize.json")
    subprocess.run([os.path.join(options.bin, "bench/quantize_bench"), "--work", options.work, "--rounds", "3", "--json",
                    path, bits], check=True, stdout=subprocess.DEVNULL)
    with open(path) as file:
        result = json.load(file)
    os.remove(path)
    shutil.rmtree(os.path.join(options.work, "quantize_bench.model"), ignore_errors=True)
    return result["rows"][0]["value"] * 1e6 * result["threads"]


def pack_command(options, source, out, kind):
    bits = ["--bits", options.bits] if kind == "fp8" else []
    return [os.path.join(options.bin, "bin/sluice"), "pack", source, "--out", out, "--force", "--json", "--quiet", *bits]


def in_cgroup(options, command, until=None):
    """Runs a command, killed once `until` is true. Returns its output, seconds and peak memory."""
    cgroup = MemoryCgroup(options.memory << 20)
    if cgroup.error is not None:
        sys.exit(f"packing_rate: no memory cgroup can be made ({cgroup.error})")
    watch = Watch(cgroup)
    watch.start()
    started = time.monotonic()
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=cgroup.enter)
        while until is not None and child.poll() is None and not until():
            time.sleep(0.05)
        if until is not None and child.poll() is None:
            child.send_signal(signal.SIGKILL)
        output = child.communicate()[0]
    finally:
        watch.ended.set()
        watch.join()
        cgroup.end_all()
        cgroup.close()
    if until is None and child.returncode != 0:
        sys.exit(f"packing_rate: {' '.join(command)} ended with {child.returncode}")
    return output, time.monotonic() - started, watch.used


def encoded_values(options, kind, source):
    """Returns the number of expert values that are encoded: all of fp8's, a GGUF file's down rows."""
    size = size_of(source)
    if kind == "fp8":
        return size
    expert_bytes = 2 * TYPES["Q4_K"][2] + TYPES["Q6_K"][2]  # of 256 values of each matrix
    return size / expert_bytes * 256


def measure_rate(options, kind, source, out):
    read, write = disk_rates(options, source)
    encode = encoder_rate(options, options.bits if kind == "fp8" else "q8")
    drop_from_page_cache(source)
    _, seconds, used = in_cgroup(options, pack_command(options, source, out, kind))
    size, pack = size_of(source), size_of(out)
    with open(out + ".json", "w") as file:
        json.dump({"seconds": seconds, "model": take_model(options, out)}, file)
    allowed = max(size / read + pack / write, encoded_values(options, kind, source) / encode)
    print(f"| {kind} | {size / 2**30:.1f} | {pack / 2**30:.1f} | {used >> 20} | {size / seconds / 1e6:.0f} "
          f"| {size / read / allowed:.0%} | {pack / write / allowed:.0%} "
          f"| {encoded_values(options, kind, source) / encode / allowed:.0%} | {allowed / seconds:.0%} |", flush=True)


def take_model(options, pack):
    """Returns the pack's digest after verifying every checksum, and removes the pack to save disk space."""
    sluice = os.path.join(options.bin, "bin/sluice")
    subprocess.run([sluice, "verify", pack], check=True, stdout=subprocess.DEVNULL)
    model = json.loads(subprocess.check_output([sluice, "inspect", "--json", pack]))["model_id"]
    shutil.rmtree(pack)
    return model


def measure_resume(options, kind, source, out):
    """Kills packing after a third of the time and resumes it: the model must equal that of the uninterrupted run."""
    with open(out + ".json") as file:
        whole = json.load(file)
    end = time.monotonic() + whole["seconds"] / 3
    _, before, _ = in_cgroup(options, pack_command(options, source, out, kind), lambda: time.monotonic() > end)
    _, after, used = in_cgroup(options, pack_command(options, source, out, kind))
    same = take_model(options, out) == whole["model"]
    print(f"| {kind} | {before:.0f} | {after:.0f} | {used >> 20} | {'the same model' if same else 'ANOTHER MODEL'} |",
          flush=True)  # fmt: skip
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--work", default="/var/tmp/sluice-packing")
    parser.add_argument("--gib", type=int, default=20)
    parser.add_argument("--memory", type=int, default=200, help="MiB")
    parser.add_argument("--kinds", default="fp8,gguf")
    parser.add_argument("--bits", default="q4", help="of the fp8 checkpoint's experts")
    parser.add_argument("--parts", default="files,rate,resume", help="in this order; each needs those before it")
    parser.add_argument("--tokenizer", default=os.path.join(here, "../../deploy/sample"))
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    remove_leftovers()
    right = True
    for part in options.parts.split(","):
        print(HEADS_OF[part])
        for kind in options.kinds.split(","):
            source = os.path.join(options.work, "source.gguf" if kind == "gguf" else "source")
            out = os.path.join(options.work, f"{kind}.pack")
            if part == "files" and not os.path.exists(source):
                (write_gguf if kind == "gguf" else write_fp8)(options, source)
            elif part == "rate":
                measure_rate(options, kind, source, out)
            elif part == "resume":
                right = measure_resume(options, kind, source, out) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
