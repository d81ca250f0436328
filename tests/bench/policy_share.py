#!/usr/bin/python3
"""What residency and policies take of a step on a model of Qwen3-30B-A3B's shape (128 experts a layer, 8 of them a
token), device sim with half of the experts, nothing throttled.

usage: policy_share.py [--work DIR] [--bin build/release/bin] [--layers N] [--tokens N] [--presets A,B]

The engine's own work is what of a step is neither inside a parallel region of the kernels nor waiting for bytes:
scheduling, sampling, operations too small to share out, residency and policies. What it takes more than in the run
where everything is resident, which has the same model and batch but nothing to decide, is residency's and policies'
(but for the little that walking resident slots takes). The mark is 3 % of a step. Prints a Markdown table; exit status 1 if a
command failed or a preset is above the mark.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

MARK = 0.03
PRESETS = "lru_prefetch,static_hot,importance,adapmoe"
# Of a profile: a random model has none.
POLICIES = "first_layer=off,sensitivity=score,sensitivity_threshold=0.001"


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default=tempfile.gettempdir())
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--presets", default=PRESETS)
    o = parser.parse_args()
    sluice = os.path.join(o.bin, "sluice")
    pack = os.path.join(o.work, f"policy-share-{o.layers}.pack")
    if not os.path.isdir(pack):
        run(sluice, "synth", "--shape", "qwen3-30b-a3b", "--layers", o.layers, "--vocab", 32768, "--bits", "q4",
            "--reuse", 0.3, "--similarity", 0.9, "--out", pack, "-q")  # fmt: skip
    result = json.loads(run(
        sluice, "bench", "--pack", pack, "--preset", o.presets, "--device", "sim", "--clock", "real", "--device-budget",
        "50%", "--policy", POLICIES, "-n", o.tokens, "-p", 1, "-r", 2, "-b", "1,4", "--explain", "--json",
    ))  # fmt: skip
    print(f"| preset | batch | step ms | waiting ms | own ms | of the step | over resident (mark {100 * MARK:.0f} %) |")
    print("|---|---|---|---|---|---|---|")
    resident = {figures["batch"]: figures["engine_ms"] for figures in result["rows"][0]["batches"]}
    worst = 0
    for row in result["rows"]:
        if row["refused"]:
            print(f"| {row['run']} | refused: {row['refused']} |")
        for figures in row["batches"]:
            step = figures["compute_ms"] + figures["stall_ms"]
            more = (figures["engine_ms"] - resident[figures["batch"]]) / step
            worst = max(worst, more)
            print(f"| {row['run']} | {figures['batch']} | {step:.2f} | {figures['stall_ms']:.2f} | "
                  f"{figures['engine_ms']:.3f} | {100 * figures['engine_ms'] / step:.2f} % | {100 * more:.2f} % |")
    return 0 if worst <= MARK else 1


if __name__ == "__main__":
    sys.exit(main())
