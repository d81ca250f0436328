#!/usr/bin/python3
"""Writes docs/gpu.md from what deploy/gpu_check.sh found on this machine.

usage: gpu_page.py --check gpu_check.json [--bench gpu_bench.json] [--decode decode.json ...] [--out docs/gpu.md]

`--check`: the script's own outcomes; `--bench`: `gpu_bench --json`; `--decode`: `sluice bench -o json`, the file's name
saying what was run. A run on the fake is refused: its times mean nothing. Exit status 1 if a file is not understood.
"""
import argparse
import json
import os
import sys

DOCUMENT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "docs/gpu.md")
# Share of both run alone, in percent; below it, copies of one process wait for kernels of the other.
OVERLAP_MARK = 90
PEAK_MARK = 95


def table(rows):
    return "| what | figure |\n|---|---|\n" + "".join(f"| {what} | {value:.4g} {unit} |\n" for what, value, unit in rows)


def overlap_words(rows):
    """Which transport is the better one here, and why."""
    beside = [value for what, value, _ in rows if " beside another process' " in what]
    if not beside:
        return "Whether copies run beside kernels was not measured.\n"
    worst = min(beside)
    if worst >= OVERLAP_MARK:
        return (
            f"Copies of one process and kernels of another keep at least {worst:.0f} % of what they do alone: "
            "`push` is the better transport here, and the default.\n"
        )
    return (
        f"Copies of one process and kernels of another keep only {worst:.0f} % of what they do alone (mark "
        f"{OVERLAP_MARK} %): take `--transport pull` on this machine, which copies within inferd's process.\n"
    )


def page(check, bench, decode):
    text = (
        "# Device cuda on a GPU\n"
        "Written by `deploy/gpu_check.sh` (`bench/cuda/gpu_page.py`); change the text there.\n\n"
        f"{check['gpu']}; nvcc {check['nvcc']}; commit {check['commit']}.\n\n## Tests\n"
        "| run | outcome |\n|---|---|\n"
    )
    text += "".join(
        f"| {name} | {outcome} |\n" for name, outcome in check.items() if name not in ("gpu", "nvcc", "commit")
    )
    if bench is not None:
        rows = [(row["what"], row["value"], row["unit"]) for row in bench["rows"]]
        text += "\n## Figures\n" + overlap_words(rows)
        peaks = [value for what, value, _ in rows if what.startswith("share of the peak")]
        if peaks and max(peaks) < PEAK_MARK:
            text += f"No size of chunk reaches {PEAK_MARK} % of the pinned peak.\n"
        text += "\n" + table(rows)
    for name, results in decode:
        rows = []
        for result in results:
            what = f"{result['model']}, {result['preset']}, {result['test']}, batch {result['batch']}"
            hits = "" if result["hit_rate"] is None else f", {100 * result['hit_rate']:.0f} % hits"
            rows.append((what, result["avg_ts"], "tokens/s" + hits))
        text += f"\n## {name}\n" + table(rows)
    return text


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", required=True)
    parser.add_argument("--bench")
    parser.add_argument("--decode", action="append", default=[])
    parser.add_argument("--out", default=DOCUMENT)
    options = parser.parse_args()
    check = load(options.check)
    if "fake" in check["gpu"]:
        sys.exit("gpu_page.py: a run on the fake says nothing of a GPU's speed")
    decode = [(os.path.splitext(os.path.basename(path))[0], load(path)) for path in options.decode]
    try:
        text = page(check, load(options.bench) if options.bench else None, decode)
    except (KeyError, TypeError) as error:
        sys.exit(f"gpu_page.py: a file is not what it should be: {error!r}")
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
