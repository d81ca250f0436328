#!/usr/bin/python3
"""What `sluice plan` says against what the daemons then take and `sluice bench` measures, over eight combinations of
shape, bits, budget and preset.

usage: plan_against_bench.py [--work DIR] [--bin build/release] [--tokens N] [--runs N] [--only WORD]

Packs (sluice synth, routing spread evenly) are made in DIR unless they are there. A row's memory is the sum of the DRAM
budget, the KV cache and the activations, planned over reported; its speed tokens/s of one sequence, planned over the median
of the runs. Each run plans anew, since the rates of a shared machine change from minute to minute, and the ratio is that of
its own plan. Marks: memory within 2 %, speed within 15 %. Prints a Markdown table. Exit status 1 if a command failed.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

# Name, shape, layers, bits, share of the pack that the DRAM budget is (None: the default), other options.
COMBINATIONS = [
    ("qwen3 q4", "qwen3-30b-a3b", 6, "q4", None, []),
    ("qwen3 q8", "qwen3-30b-a3b", 4, "q8", None, []),
    ("qwen3 bf16", "qwen3-30b-a3b", 2, "bf16", None, []),
    ("qwen3 q4, half", "qwen3-30b-a3b", 6, "q4", 0.5, []),
    ("mixtral q4", "mixtral-8x7b", 2, "q4", None, ["--context", "2048"]),
    ("mixtral q8, 2/3", "mixtral-8x7b", 2, "q8", 0.667, []),
    ("deepseek-moe q4, parallel 1", "deepseek-moe-16b", 6, "q4", None, ["--parallel", "1"]),
    ("qwen3 q4, preset intra", "qwen3-30b-a3b", 6, "q4", None, ["--preset", "intra"]),
]


def sluice_json(options, *args):
    done = subprocess.run([options.bin + "/bin/sluice", *args, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def pack_of(options, shape, layers, bits):
    path = os.path.join(options.work, f"{shape}-{layers}-{bits}.pack")
    if not os.path.exists(path):
        sluice_json(options, "synth", "--shape", shape, "--layers", str(layers), "--bits", bits, "--out", path)
    return path


def calibrated(options, path):
    """The pack with the thresholds that masks need."""
    if not os.path.exists(os.path.join(path, "profile")):
        text = os.path.join(options.work, "text")
        with open(text, "w") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 40)
        sluice_json(options, "calibrate", "--pack", path, "--text", text, "--max-tokens", "256")
    return path


def without_preset(args):
    """plan's options; its rows name the presets."""
    args = list(args)
    if "--preset" in args:
        at = args.index("--preset")
        preset = args[at + 1]
        del args[at : at + 2]
        return args, preset
    return args, "exact"


def reported(log):
    with open(log) as file:
        text = file.read()
    return sum(int(n) for n in re.findall(r"KV cache (\d+) bytes, activations (\d+) bytes", text)[-1])


def logged_budget(log):
    """weightd's DRAM budget in bytes, as exactly as its log has it: with one decimal."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    with open(log) as file:
        number, unit = re.findall(r"--dram-budget ([0-9.]+) ([KMGT]?i?B)", file.read())[-1]
    return float(number) * units[unit]


def run_once(options, path, share, extra):
    planned_args, preset = without_preset(extra)
    budget = []
    if share is not None:
        size = sum(os.path.getsize(os.path.join(path, name)) for name in ("dense.bin", "experts.bin"))
        budget = ["--dram-budget", str(int(size * share))]
    plan = sluice_json(options, "plan", "--pack", path, *planned_args, *budget)
    (row,) = (r for r in plan["rows"] if r["preset"] == preset)
    bench = sluice_json(options, "bench", "--pack", path, *extra, *budget, "-p", "0", "-n", str(options.tokens), "-r", "2")
    runtime = os.environ["SLUICE_RUNTIME_DIR"]
    took = logged_budget(os.path.join(runtime, "weightd.log")) + reported(os.path.join(runtime, "inferd.log"))
    memory = (row["dram_budget"] + row["kv_bytes"] + row["activation_bytes"]) / took
    return row["tokens_per_second"], bench[0]["avg_ts"], memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "plan_against_bench"))
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    os.environ["SLUICE_RUNTIME_DIR"] = os.path.join(options.work, "run")
    os.makedirs(os.environ["SLUICE_RUNTIME_DIR"], exist_ok=True)
    print("| combination | planned, tokens/s | measured | planned / measured | memory, planned / reported |")
    print("|---|---|---|---|---|")
    for name, shape, layers, bits, share, extra in COMBINATIONS:
        if options.only not in name:
            continue
        path = pack_of(options, shape, layers, bits)
        if "--preset" in extra:
            path = calibrated(options, path)
        runs = [run_once(options, path, share, extra) for _ in range(options.runs)]
        planned, measured, memory = (statistics.median(values) for values in zip(*runs))
        ratio = statistics.median(p / m for p, m, _ in runs)
        print(f"| {name} | {planned:.1f} | {measured:.1f} | {ratio:.2f} | {memory:.3f} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"plan_against_bench: {error}")
