#!/usr/bin/python3
"""Compares Sluice's and llama.cpp's HTTP servers under load of many clients, in turns within one run, with one GGUF file.

usage: load_peer.py --model sample|synthetic [--bin build/release/bin] [--work DIR] [--clients 1,4,16,64] [--tokens 32]
                    [--each 3] [--layers 7] [--aiperf PATH] [--goodput 2000,200]

--model sample is deploy/sample in Q8_0; synthetic is Qwen3-30B-A3B's shape with random weights in Q8_0 (7 layers: 4.3 GiB)
and the sample's tokenizer. Sluice uses a pack of that file. Both servers keep running; for each number of clients

  closed loop   as in http_load.py: each client repeats when it is answered; also Sluice's decode steps relative to the time
                in which their weight bytes are read at the memory's read bandwidth (by sluice bench in the same run)
  Poisson       with --aiperf (the program of the package aiperf): requests begin at random times at 0.7 of the slower
                server's rate in the closed loop, at most as many at a time as there are clients

are measured for Sluice, then for the peer. Answers have TOKENS tokens, drawn at temperature 1 from all tokens. Prints Markdown
tables. Needs numpy and `pip install gguf xllamacpp` in the Python that runs it; the latter contains llama.cpp's server.
"""
import argparse
import asyncio
import contextlib
import io
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_quality  # noqa: E402
import http_load  # noqa: E402

SAMPLE = pathlib.Path("deploy/sample")
CONTEXT = 512  # tokens of each client
PEER = """
import json, sys, time, xllamacpp
params = xllamacpp.CommonParams()
path, port, threads, clients, context = sys.argv[1], *map(int, sys.argv[2:])
params.model.path, params.port, params.hostnames = path, port, ["127.0.0.1"]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_parallel, params.n_ctx, params.cont_batching = clients, clients * context, True
params.use_jinja, params.chat_template = True, "{% for m in messages %}{{ m.content }}{% endfor %}"
server = xllamacpp.Server(params)
print("listening", flush=True)
sys.stdin.read()
"""


def write_synthetic(path, layers):
    """Writes a model of Qwen3-30B-A3B's shape as architecture llama; all matrices are pieces of the same random bytes."""
    import gguf
    import numpy as np

    hidden, heads, kv_heads, head_dim, experts, used, width = 2048, 32, 4, 128, 128, 8, 768
    random, out = np.random.default_rng(1), gguf.GGUFWriter(str(path), "llama")
    tokens = gguf_quality.pieces(SAMPLE / "tokenizer.model")
    gguf_quality.write_facts(out, tokens, {
        "num_hidden_layers": layers, "max_position_embeddings": 4096, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "num_local_experts": experts,
        "num_experts_per_tok": used, "vocab_size": len(tokens[0]), "bos_token_id": 1, "eos_token_id": 2,
    }, hidden, width, head_dim)  # fmt: skip
    shapes = {"token_embd": (len(tokens[0]), hidden), "output_norm": (hidden,), "output": (len(tokens[0]), hidden)}
    for layer in range(layers):
        shapes.update({f"blk.{layer}.{name}": shape for name, shape in {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (heads * head_dim, hidden),
            "attn_k": (kv_heads * head_dim, hidden), "attn_v": (kv_heads * head_dim, hidden),
            "attn_output": (hidden, heads * head_dim), "ffn_gate_inp": (experts, hidden),
            "ffn_gate_exps": (experts, width, hidden), "ffn_up_exps": (experts, width, hidden),
            "ffn_down_exps": (experts, hidden, width)}.items()})  # fmt: skip
    plain = {name for name, shape in shapes.items() if len(shape) == 1 or "gate_inp" in name}
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        if name in plain:
            out.add_tensor_info(name + ".weight", shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        else:
            rows = (*shape[:-1], shape[-1] // 32 * 34)
            out.add_tensor_info(name + ".weight", rows, np.dtype(np.uint8), int(np.prod(rows)), raw_dtype=q8)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    blocks = np.zeros((1 << 20, 34), np.uint8)
    blocks[:, 2:] = random.integers(0, 256, (1 << 20, 32), np.uint8)
    for name, shape in shapes.items():
        if name in plain:
            values = np.ones(shape) if len(shape) == 1 else random.normal(0, 1, shape)
            out.write_tensor_data(values.astype(np.float32))
            continue
        scale = np.array([1 / 74 / shape[-1] ** 0.5], np.float16).view(np.uint8)
        blocks[:, :2] = scale
        count = int(np.prod(shape)) // 32
        out.write_tensor_data(np.resize(np.roll(blocks, int(random.integers(1 << 20)), 0), (count, 34)).reshape(
            *shape[:-1], shape[-1] // 32 * 34))  # fmt: skip
    out.close()


def make_models(o):
    """Returns (GGUF, pack), made if missing."""
    path = pathlib.Path(o.work) / (o.model + (f"-{o.layers}" if o.model == "synthetic" else "") + ".gguf")
    if not path.exists():
        part = path.with_suffix(".part")
        if o.model == "synthetic":
            write_synthetic(part, o.layers)
        else:
            model = gguf_quality.Widened(SAMPLE, block=32)
            gguf_quality.write_gguf(model, SAMPLE, part, "Q8_0", gguf_quality.Quantizer())
        part.rename(path)
    pack = path.with_suffix(".pack")
    if not pack.exists():
        subprocess.run([os.path.join(o.bin, "sluice"), "pack", path, "--out", pack, "--quiet", "--json"], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    return path, pack


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A process that ends with its owner, an ExitStack."""

    def __init__(self, o, name, command, port, owner):
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        # One sequence of prompts for all rows, so that none repeats and is found in the cache.
        self.asked = http_load.Server(self.url, o.tokens, o.goodput, {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0})
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)  # fmt: skip
        owner.callback(self.end)
        for _ in range(1200):
            if self.process.poll() is not None:
                sys.exit(f"load_peer: {name} ended with {self.process.returncode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.url + "/health").read()
                return
            time.sleep(0.1)
        sys.exit(f"load_peer: {name} does not answer")

    def model(self):
        return json.loads(urllib.request.urlopen(self.url + "/v1/models").read())["data"][0]["id"]

    def counters(self):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return {name: float(value) for name, value in re.findall(r"^(inferd_decode_\w+) (\S+)$", text, re.M)}

    def end(self):
        self.process.terminate()
        self.process.wait()


def closed(o, server, clients, bandwidth):
    """Prints the row; returns answers per second."""
    before = server.counters() if bandwidth else {}
    text, begin = io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(text):
        asyncio.run(http_load.closed(server.asked, clients, max(8, o.each * clients)))
    row, share = text.getvalue().strip().split("|"), "-"
    if bandwidth:
        read, took = (server.counters()[name] - before[name] for name in
                      ("inferd_decode_weight_bytes_total", "inferd_decode_seconds_total"))  # fmt: skip
        share = f"{100 * read / took / bandwidth:.0f} %"
    print("|".join(["", f" {clients} ", f" {server.name} ", *row[2:-1], f" {share} |"]), flush=True)
    return int(row[2]) / (time.monotonic() - begin)


def poisson(o, server, clients, rate):
    """Prints aiperf's figures as a row."""
    with tempfile.TemporaryDirectory() as out:
        env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        count = max(8, o.each * clients)
        done = subprocess.run([
            o.aiperf, "profile", "--model", server.model(), "--url", server.url, "--endpoint-type", "chat", "--streaming",
            "--tokenizer", str(SAMPLE.resolve()), "--concurrency", str(clients), "--request-rate", f"{rate:.3f}",
            "--arrival-pattern", "poisson", "--request-count", str(count), "--isl", "40", "--isl-stddev", "0",
            "--osl", str(o.tokens), "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:1",
            "--goodput", "time_to_first_token:%g inter_token_latency:%g" % tuple(o.goodput), "--random-seed", str(clients),
            "--ui", "none", "--output-artifact-dir", out], env=env, capture_output=True, text=True)  # fmt: skip
        if done.returncode:
            sys.exit("load_peer: aiperf: " + done.stdout[-2000:] + done.stderr[-2000:])
        found = json.loads((pathlib.Path(out) / "profile_export_aiperf.json").read_text())
    at = lambda name: " / ".join(f"{found[name][p]:.1f}" for p in ("p50", "p90", "p99"))  # noqa: E731
    print(f"| {clients} | {rate:.2f} | {server.name} | {found['output_token_throughput']['avg']:.0f} "
          f"| {found['goodput']['avg']:.2f} | {at('time_to_first_token')} | {at('inter_token_latency')} |", flush=True)  # fmt: skip


def bandwidth_of(o, pack):
    """Returns the memory's read bandwidth, the reference for decode steps."""
    done = subprocess.run([os.path.join(o.bin, "sluice"), "bench", "--pack", pack, "-p", "0", "-n", "16", "-r", "1",
                           "--threads", str(os.cpu_count()), "-o", "json", "--quiet"], check=True,
                          stdout=subprocess.PIPE)  # fmt: skip
    return 1e9 * json.loads(done.stdout)[0]["read_bandwidth_gbps"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["sample", "synthetic"], required=True)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--work", default="build/load")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--each", type=int, default=3, help="requests of each client [3], at least 8 of all")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--aiperf")
    parser.add_argument("--goodput", type=lambda text: [float(n) for n in text.split(",")], default=[2000, 200])
    parser.add_argument("--make-only", action="store_true", help="makes the models and ends")
    o = parser.parse_args()
    os.makedirs(o.work, exist_ok=True)
    gguf, pack = make_models(o)
    if o.make_only:
        return
    most, threads = max(o.clients), os.cpu_count()
    os.environ["SLUICE_RUNTIME_DIR"] = tempfile.mkdtemp()  # keeps other users' daemons out of the run
    bandwidth = bandwidth_of(o, pack)
    port, peer_port = free_port(), free_port()
    with contextlib.ExitStack() as servers:
        ours = Server(o, "sluice", [
            os.path.join(o.bin, "sluice"), "serve", "--pack", pack, "--http", f"127.0.0.1:{port}", "--threads", str(threads),
            "--parallel", str(most), "--context", str(CONTEXT)], port, servers)  # fmt: skip
        peer = Server(o, "llama.cpp", [
            sys.executable, "-c", PEER, str(gguf), str(peer_port), str(threads), str(most), str(CONTEXT)], peer_port,
            servers)  # fmt: skip
        for server in (ours, peer):
            asyncio.run(server.asked.ask())  # warms up
        print("| clients | server | answered | refused | tokens/s | goodput/s | TTFT ms p50 / p90 / p99 "
              "| TPOT ms p50 / p90 / p99 | of the byte bound |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
        rates = {}
        for clients in o.clients:
            rates[clients] = 0.7 * min(closed(o, ours, clients, bandwidth), closed(o, peer, clients, None))
        if not o.aiperf:
            return
        print("\n| clients at most | requests/s | server | tokens/s | goodput/s | TTFT ms p50 / p90 / p99 "
              "| TPOT ms p50 / p90 / p99 |\n|---|---|---|---|---|---|---|")  # fmt: skip
        for clients, rate in rates.items():
            poisson(o, ours, clients, rate)
            poisson(o, peer, clients, rate)


if __name__ == "__main__":
    main()
