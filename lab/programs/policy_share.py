#!/usr/bin/python3
"""Measures the share of residency and policies in a step on models of Qwen3-30B-A3B's shape (128 experts a layer, 8 of them a
token), on device sim with half of the experts and an unlimited link.

usage: policy_share.py [--work DIR] [--bin build/release/bin] [--layers N] [--tokens N] [--threads N] [--presets A,B]
           [--calibration TEXT]

The engine's own work is the part of a step that is neither in a backend operation nor a wait for bytes: scheduling, sampling,
residency and policies. Its excess over the run with everything resident, which has the same model and batch but nothing to
decide, is the cost of residency and policies (except for the small cost of walking resident slots). The target is 3 % of a
step. Prints a Markdown table; exit status 1 if a command failed or a preset misses the target. Packs are made in DIR once; TEXT
calibrates those whose presets need a profile.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

MARK = 0.03
# A random model has no text from which sensitivities and networks could be learned.
GATING = "first_layer=off,score_threshold=0.001"
GATE = "expert_predictor=gate_reuse"
# By preset: pack, policies.
PRESETS = {
    "exact": ("q4", ""),
    "lru_prefetch": ("q4", ""),
    "static_hot": ("q4", ""),
    "ondemand": ("q4", ""),
    "adapmoe": ("q4", GATING),
    "importance": ("q4", ""),
    "auto": ("q4", ""),
    "floe": ("floe", GATE + ",sparsity_threshold=1.5"),
    "floe90": ("floe", GATE + ",sparsity_threshold=2.2"),
    "corm": ("corm", ""),
    "intra": ("q4", "sparsity_threshold=0.25"),
}
PACKS = {"q4": ["--bits", "q4"], "floe": ["--recipe", "floe", "--bits", "q4"], "corm": ["--recipe", "corm"]}


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stdout}")
    return done.stdout


def make_pack(sluice, name, o):
    pack = os.path.join(o.work, f"policy-share-{name}-{o.layers}.pack")
    if not os.path.isdir(pack):
        run(sluice, "synth", "--shape", "qwen3-30b-a3b", "--layers", o.layers, "--vocab", 32768, *PACKS[name],
            "--reuse", 0.3, "--similarity", 0.9, "--out", pack, "-q")  # fmt: skip
        if o.calibration:
            run(sluice, "calibrate", "--pack", pack, "--text", o.calibration, "--max-tokens", 2048, "-q")
    return pack


def bench(sluice, pack, preset, policies, o):
    """Returns the row of a preset, run alone: the resident one is refused together with another preset's policies."""
    wanted = ["--policy", policies] if policies else []
    result = json.loads(run(
        sluice + "-lab", "--pack", pack, "--preset", preset, "--device", "sim", "--clock", "real", "--device-budget",
        "50%", "--threads", o.threads, *wanted, "-n", o.tokens, "-p", 1, "-r", 2, "-b", "1,4", "--explain", "--json",
    ))  # fmt: skip
    return next(row for row in result["rows"] if row["run"] == preset)


def line(row, figures, resident):
    step = figures["compute_ms"] + figures["stall_ms"]
    more = (figures["engine_ms"] - resident[figures["batch"]]) / step
    print(f"| {row['run']} | {figures['batch']} | {step:.2f} | {figures['stall_ms']:.2f} | "
          f"{figures['engine_ms']:.3f} | {100 * figures['engine_ms'] / step:.2f} % | {100 * more:.2f} % |", flush=True)
    return more


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default=tempfile.gettempdir())
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="that compute; weightd's copies have one of their own")
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--calibration", default="")
    o = parser.parse_args()
    sluice = os.path.join(o.bin, "sluice")
    print(f"| preset | batch | step ms | waiting ms | own ms | of the step | over resident (mark {100 * MARK:.0f} %) |")
    print("|---|---|---|---|---|---|---|")
    worst = 0
    resident = {}  # by pack and batch
    for preset in o.presets.split(","):
        name, policies = PRESETS[preset]
        pack = make_pack(sluice, name, o)
        if name not in resident:
            row = bench(sluice, pack, "resident", "", o)
            resident[name] = {figures["batch"]: figures["engine_ms"] for figures in row["batches"]}
        row = bench(sluice, pack, preset, policies, o)
        if row["refused"]:
            print(f"| {preset} | refused: {row['refused']} |")
        worst = max([worst] + [line(row, figures, resident[name]) for figures in row["batches"]])
    return 0 if worst <= MARK else 1


if __name__ == "__main__":
    sys.exit(main())
