#!/usr/bin/python3
"""Writes lab/docs/performance.md from what benchmarks measured on this machine.

usage: report.py [--out lab/docs/performance.md] FILE.json ...

Each file is the output of `sluice bench -o json`, or a benchmark's `--json FILE`. Their figures go into this machine's table,
identified by its CPU (/proc/cpuinfo) and the number of compute threads, or into the table that the file names; rows of the
same name are replaced, other tables stay unchanged. The text above the tables is HEADER below: change it here. Exit status 1,
and nothing is written, if a file is not understood or the document would be longer than 150 lines.
"""
import argparse
import json
import os
import re
import sys

MOST_LINES = 150
DOCUMENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lab/docs/performance.md")
HEADER = """# Performance
Written by `bench/report.py`; change the text there and the figures by measuring again:

```
build/release/bin/sluice bench --pack PACK -p 512 -n 128 -o json > bench.json
build/release/bench/kernel_bench --json kernels.json       # and others of bench/README.md
bench/report.py bench.json kernels.json
```

How to read it. A table is of one machine: its CPU and the threads that computed. Figures are means or medians of the
repetitions that the program makes by itself after a warm-up. Rates of weights stand beside the machine's own read
bandwidth of the same run, because a shared machine's changes from minute to minute: compare shares, not rates. A row
that was not measured on a machine is not in its table. Figures of `cuda_bounds` are no measurements: an interpreter has
counted what the kernels do, published limits of the GPUs say how fast that can be at most (the program's head says how).
"""
NOTHING = "\nNo machine has been measured yet.\n"
COLUMNS = "| program | what | figure |\n|---|---|---|\n"


class Wrong(Exception):
    """An input that cannot be understood."""


def cpu_name(path="/proc/cpuinfo"):
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    raise Wrong(f"{path} names no CPU")


def number(value):
    """Formats three significant digits, without an exponent."""
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


def bench_rows(results):
    """Returns (threads, [(program, what, figure)]) of `sluice bench` results."""
    rows = []
    for result in results:
        what = f"{result['model']}, {result['preset']}, {result['test']}, batch {result['batch']}"
        figure = f"{number(result['avg_ts'])} ± {number(result['stddev_ts'])} tokens/s"
        if result["read_bandwidth_share"] is not None:
            figure += f", weights at {100 * result['read_bandwidth_share']:.0f} % of the read bandwidth"
        if result["hit_rate"] is not None:
            figure += f", {100 * result['hit_rate']:.0f} % hits"
        rows.append(("sluice bench", what, figure))
    return int(results[0]["threads"]), rows


def rows_of(path):
    """Returns (name of its own table or None, threads, rows) of a result file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if isinstance(found, list) and found:
            return None, *bench_rows(found)
        rows = [(found["program"], row["what"], f"{number(row['value'])} {row['unit']}".strip()) for row in found["rows"]]
        return found.get("table"), int(found["threads"]), rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Wrong(f"{path}: not the JSON of a benchmark: {error!r}") from error


def cell(text):
    return text.replace("|", "/")


def read_tables(text):
    """Returns the rows of a document by machine: {machine: {(program, what): figure}}."""
    tables = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        machine, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("| ")][1:]
        rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
        tables[machine] = {(row[0], row[1]): row[2] for row in rows}
    return tables


def document(old, machine_of, paths):
    """Returns the new text of the document whose text was `old`."""
    tables = read_tables(old)
    for path in paths:
        own, threads, rows = rows_of(path)
        table = tables.setdefault(own or machine_of(threads), {})
        for program, what, figure in rows:
            table[cell(program), cell(what)] = cell(figure)
    text = HEADER if tables else HEADER + NOTHING
    for machine, table in sorted(tables.items()):
        text += f"\n## {machine}\n" + COLUMNS
        text += "".join(f"| {program} | {what} | {figure} |\n" for (program, what), figure in sorted(table.items()))
    if text.count("\n") > MOST_LINES:
        raise Wrong(f"{text.count(chr(10))} lines, and {MOST_LINES} are the most: give fewer files, or --encoding and --shape to kernel_bench")
    return text


def main():
    parser = argparse.ArgumentParser(description="writes lab/docs/performance.md")
    parser.add_argument("--out", default=DOCUMENT)
    parser.add_argument("files", nargs="+")
    o = parser.parse_args()
    old = ""
    if os.path.exists(o.out):
        with open(o.out, encoding="utf-8") as file:
            old = file.read()
    try:
        name = cpu_name()
        text = document(old, lambda threads: f"{name}, {threads} threads", o.files)
    except Wrong as error:
        sys.exit(f"report.py: {error}")
    with open(o.out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
