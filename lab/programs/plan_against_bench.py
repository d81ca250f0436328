#!/usr/bin/python3
"""Compares the predictions of `sluice plan` with the daemons' actual memory and the speed that `sluice bench` measures, over
eight combinations of shape, bits, budget and preset.

usage: plan_against_bench.py [--work DIR] [--bin build/release] [--tokens N] [--runs N] [--only REGEX] [--write FILE.md]

Packs (sluice synth, routing spread evenly) are made in DIR if missing. A row's memory is the sum of DRAM budget, KV cache and
activations, planned over reported; its speed is the tokens/s of one sequence. The rates of a shared machine change from second
to second, so `plan` runs before and after each measurement: a ratio is the mean of both predictions over the measured value, a
row's ratio the median of its runs. Targets: memory within 2 %, speed within 15 %; misses are bold. Prints a Markdown table and
adds its rows to DIR/rows.jsonl; --write: measures nothing, and writes all these rows into FILE in place of the table under
"Planned against measured". Exit status 1 if a command failed.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

# Name, shape, layers, bits, DRAM budget as a share of the pack (None: the default), other options.
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


def pack_of(options, shape, layers, bits, masked):
    """Makes the pack, calibrated only if masks need its thresholds: otherwise `plan` would know its usage."""
    path = os.path.join(options.work, f"{shape}-{layers}-{bits}{'-calibrated' * masked}.pack")
    if not os.path.exists(path):
        sluice_json(options, "synth", "--shape", shape, "--layers", str(layers), "--bits", bits, "--out", path)
    if masked and not os.path.exists(os.path.join(path, "profile/thresholds.bin")):
        text = os.path.join(options.work, "text")
        with open(text, "w") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 40)
        sluice_json(options, "calibrate", "--pack", path, "--text", text, "--max-tokens", "256")
    return path


def without_preset(args):
    """Returns plan's options without the preset, which its rows name."""
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
    """Returns weightd's DRAM budget in bytes from its log, which has one decimal."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    with open(log) as file:
        number, unit = re.findall(r"--dram-budget ([0-9.]+) ([KMGT]?i?B)", file.read())[-1]
    return float(number) * units[unit]


def measure(options, shape, layers, bits, share, extra):
    planned_args, preset = without_preset(extra)
    path = pack_of(options, shape, layers, bits, preset != "exact")
    budget = []
    if share is not None:
        size = sum(os.path.getsize(os.path.join(path, name)) for name in ("dense.bin", "experts.bin"))
        budget = ["--dram-budget", str(int(size * share))]

    def plan():
        answer = sluice_json(options, "plan", "--pack", path, *planned_args, *budget)
        (row,) = (r for r in answer["rows"] if r["preset"] == preset)
        return row

    plans, measured = [plan()], []
    for _ in range(options.runs):
        bench = sluice_json(options, "bench", "--pack", path, *extra, *budget, "-p", "0", "-n", str(options.tokens), "-r", "2")
        measured.append(bench[0]["avg_ts"])
        plans.append(plan())
    speeds = [row["tokens_per_second"] for row in plans]
    runtime = os.environ["SLUICE_RUNTIME_DIR"]
    took = logged_budget(os.path.join(runtime, "weightd.log")) + reported(os.path.join(runtime, "inferd.log"))
    return {
        "planned": statistics.median(speeds),
        "measured": statistics.median(measured),
        "ratios": [(before + after) / 2 / rate for before, after, rate in zip(speeds, speeds[1:], measured)],
        "memory": (plans[0]["dram_budget"] + plans[0]["kv_bytes"] + plans[0]["activation_bytes"]) / took,
    }


def marked(ratio, most, digits):
    text = f"{ratio:.{digits}f}"
    return text if abs(ratio - 1) <= most else f"**{text}**"


def speed_cells(row):
    ratio = statistics.median(row["ratios"])
    of_runs = ", ".join(f"{r:.2f}" for r in sorted(row["ratios"]))
    return f" {row['planned']:.1f} | {row['measured']:.1f} | {marked(ratio, 0.15, 2)} ({of_runs}) |"


SPEED_HEAD = " planned, tokens/s | measured | planned / measured (of each run) |"


def table(rows):
    """Formats the table; rows of a combination measured several times are adjacent, in order."""
    times = max(sum(row["name"] == name for row in rows) for name in {row["name"] for row in rows})
    lines = ["| combination |" + SPEED_HEAD * times + " memory, planned / reported |", "|---|" + "---|" * (3 * times + 1)]
    for name in [c[0] for c in COMBINATIONS]:
        of_name = [row for row in rows if row["name"] == name]
        if of_name:
            worst = max((row["memory"] for row in of_name), key=lambda m: abs(m - 1))
            lines.append(f"| {name} |" + "".join(map(speed_cells, of_name)) + " - | - | - |" * (times - len(of_name)) + f" {marked(worst, 0.02, 3)} |")
    return "\n".join(lines) + "\n"


def write(path, text):
    with open(path) as file:
        document = file.read()
    heading = document.index("## Planned against measured")
    document = document[:heading] + re.sub(r"(?m)(^\|.*\n)+", lambda _: text, document[heading:], count=1)
    with open(path, "w") as file:
        file.write(document)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "plan_against_bench"))
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--write")
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    record = os.path.join(options.work, "rows.jsonl")
    if options.write:
        with open(record) as file:
            write(options.write, table([json.loads(line) for line in file]))
        return
    os.environ["SLUICE_RUNTIME_DIR"] = os.path.join(options.work, "run")
    os.makedirs(os.environ["SLUICE_RUNTIME_DIR"], exist_ok=True)
    rows = []
    for name, *combination in COMBINATIONS:
        if re.search(options.only, name):
            rows.append({"name": name, **measure(options, *combination)})
            print(f"{name}:{speed_cells(rows[-1])}", file=sys.stderr)
            with open(record, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows), end="")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"plan_against_bench: {error}")
