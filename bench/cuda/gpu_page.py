#!/usr/bin/env python3
"""Prints the results of deploy/gpu/lease.sh on a machine with a GPU as a page.

usage: gpu_page.py FOLDER [--out FILE]

A run on the fake is refused: its times mean nothing. Exit status 1 if a file is not understood.
"""
import argparse
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "deploy/gpu"))
import results  # noqa: E402

# Percent of the rate of both run alone; below it, copies of one process wait for kernels of the other.
OVERLAP_MARK = 90
PEAK_MARK = 95


def figures(folder):
    """Returns gpu_bench's measurements by name."""
    entries = results.load(os.path.join(folder, "gpu_bench.json"), [])
    return {row["what"]: row["value"] for entry in entries for row in entry["result"]["rows"]}


def overlap_words(values):
    """Says which transport is better on this machine, and why."""
    beside = [value for what, value in values.items() if " beside another process' " in what]
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


def page(folder):
    values = figures(folder)
    text = (
        "# A run of device cuda on a GPU\n"
        "Written by `bench/cuda/gpu_page.py` from the files of `deploy/gpu/lease.sh`; change the text there.\n\n"
    )
    text += overlap_words(values)
    peaks = [value for what, value in values.items() if what.startswith("share of the peak")]
    if peaks and max(peaks) < PEAK_MARK:
        text += f"No size of chunk reaches {PEAK_MARK} % of the pinned peak.\n"
    return text + "\n" + "\n".join(results.tables(folder)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", default="/dev/stdout")
    options = parser.parse_args()
    machine = results.load(os.path.join(options.folder, "stages.json"), {"machine": {}})["machine"]
    if "fake" in machine.get("GPU", "fake"):
        sys.exit("gpu_page.py: this is no run on a GPU")
    try:
        text = page(options.folder)
    except (KeyError, TypeError) as error:
        sys.exit(f"gpu_page.py: a file is not what it should be: {error!r}")
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
