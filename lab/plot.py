#!/usr/bin/python3
"""Plots the JSON output of sluice-lab (needs python3-matplotlib).

usage: plot.py FILE [FOLDER]     FILE: quality.json or presets.json of --out; FOLDER: for the SVG files [FILE's]
quality.json gives quality.svg; presets.json gives presets.svg, and sweep-NAME.svg for each sweep.
"""
import json
import os
import sys

import matplotlib

matplotlib.use("svg")
# Equal figures give identical files.
matplotlib.rcParams["svg.hashsalt"] = "sluice-lab"
from matplotlib import pyplot  # noqa: E402


def save(path, title, x_title, y_title, series, lines=False, log_y=False):
    """`series`: {name: [(x, y, label)]}."""
    figure, axes = pyplot.subplots(figsize=(10, 6))
    for name, points in series.items():
        axes.plot([p[0] for p in points], [p[1] for p in points], "o-" if lines else "o", label=name)
        for x, y, label in points:
            axes.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set(title=title, xlabel=x_title, ylabel=y_title, yscale="log" if log_y else "linear")
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    print(path)


def plot_quality(rows, folder):
    series = {}
    for row in rows:
        point = (row["bytes_per_token"] / (1 << 20), row["ppl"], row["run"])
        series.setdefault(row["series"] or "runs", []).append(point)
    save(os.path.join(folder, "quality.svg"), "Quality against weights read per token",
         "MiB of weights per generated token", "perplexity", series, log_y=True)  # fmt: skip


def plot_presets(rows, folder):
    """Plots tokens per second over perplexity, or over the link's bytes if some row has no perplexity."""
    batches = [(row["run"], batch) for row in rows for batch in row["batches"]]
    by_quality = all("ppl" in batch for _, batch in batches)
    series = {}
    for run, batch in batches:
        x = batch["ppl"] if by_quality else batch.get("link_bytes_per_token", 0) / 1024
        series.setdefault(f"batch {batch['batch']}", []).append((x, batch["tokens_per_second"], run))
    if series:
        save(os.path.join(folder, "presets.svg"), "Presets on the same model, text and link",
             "perplexity" if by_quality else "KiB over the link per token", "tokens per second", series)  # fmt: skip


def plot_sweep(sweep, folder):
    series = {}
    for point in sweep["points"]:
        for row in point["rows"]:
            for batch in row["batches"][:1]:
                series.setdefault(row["run"], []).append((float(point["value"].rstrip("%")), batch["tokens_per_second"], ""))
    if series:
        save(os.path.join(folder, f"sweep-{sweep['name']}.svg"), f"Presets over {sweep['name']}", sweep["name"],
             "tokens per second", series, lines=True)  # fmt: skip


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = sys.argv[2] if len(sys.argv) == 3 else os.path.dirname(os.path.abspath(sys.argv[1]))
    with open(sys.argv[1]) as file:
        result = json.load(file)
    if "sweeps" not in result:
        plot_quality(result["rows"], folder)
        return
    plot_presets(result.get("rows", []), folder)
    for sweep in result["sweeps"]:
        plot_sweep(sweep, folder)


if __name__ == "__main__":
    main()
