#!/usr/bin/env python3
"""Stores the measurements of deploy/gpu/lease.sh, so that an interrupted run leaves complete files.

usage: results.py stage FILE NAME OUTCOME SECONDS LIMIT     adds a stage to FILE, or replaces it
       results.py machine FILE NAME=VALUE ...               stores the machine and the versions
       results.py add FILE NAME JSON                        adds the content of the file JSON to the list in FILE
       results.py table FOLDER                              prints the folder's files as tables
"""
import json
import os
import sys


def load(path, default):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default


def save(path, value):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def add_stage(path, name, outcome, seconds, limit):
    run = load(path, {"machine": {}, "stages": []})
    run["stages"] = [stage for stage in run["stages"] if stage["name"] != name]
    run["stages"].append({"name": name, "outcome": outcome, "seconds": int(seconds), "limit": int(limit)})
    save(path, run)


def set_machine(path, *pairs):
    run = load(path, {"machine": {}, "stages": []})
    run["machine"].update(pair.split("=", 1) for pair in pairs)
    save(path, run)


def add_result(path, name, source):
    results = [entry for entry in load(path, []) if entry["name"] != name]
    save(path, results + [{"name": name, "result": load(source, None)}])


def stage_rows(run):
    yield "| stage | outcome | seconds | at most |\n|---|---|---|---|"
    for stage in run["stages"]:
        yield f"| {stage['name']} | {stage['outcome']} | {stage['seconds']} | {stage['limit']} |"


def bench_rows(entries):
    yield "\n| what | figure |\n|---|---|"
    for entry in entries:
        for row in entry["result"]["rows"]:
            yield f"| {row['what']} | {row['value']:.4g} {row['unit']} |"


def decode_rows(entries):
    yield "\n| run | test | tokens/s | hits | kernels a token | waits a token |\n|---|---|---|---|---|---|"
    for entry in entries:
        for row in entry["result"]:
            hits = row["hit_rate"]
            shown = [f"{row[name]:.4g}" for name in ("device_kernels_per_token", "device_waits_per_token")]
            share = "-" if hits is None else f"{100 * hits:.0f} %"
            test = f"{row['preset']}, {row['test']}, batch {row['batch']}"
            yield f"| {entry['name']} | {test} | {row['avg_ts']:.4g} | {share} | {' | '.join(shown)} |"


def tables(folder):
    run = load(os.path.join(folder, "stages.json"), {"machine": {}, "stages": []})
    yield "\n".join(f"{name}: {value}" for name, value in run["machine"].items()) + "\n"
    yield from stage_rows(run)
    for name, rows in [("gpu_bench.json", bench_rows), ("decode.json", decode_rows)]:
        entries = load(os.path.join(folder, name), [])
        if entries:
            yield from rows(entries)


def main(command, *args):
    if command == "table":
        print("\n".join(tables(*args)))
    else:
        {"stage": add_stage, "machine": set_machine, "add": add_result}[command](*args)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("stage", "machine", "add", "table"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
