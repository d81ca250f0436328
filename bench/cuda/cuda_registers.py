#!/usr/bin/python3
"""Registers, spills and shared memory of device cuda's kernels, as ptxas says them: no GPU is needed.

usage: cuda_registers.py [--capability 75 ...] [--json FILE]

Compiles every kernels/cuda/device/*.cu with the flags of cmake/cuda.cmake for each capability (75 and 100) and prints a line
a kernel. Exit status 1 if a kernel spills, or if ptxas or nvcc warns: a spilled register is memory traffic that no count of
the PTX (cuda_bounds) shows. "cuda: not built" and exit status 0 where nvcc is missing.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "kernels/cuda/device")
FLAGS = ["-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "-Xptxas=-v,-warn-spills"]
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)", re.S)


def kernels_of(text):
    """What ptxas -v says of a source: a dict a kernel."""
    found = []
    for match in ENTRY.finditer(text):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found.append({
            "kernel": match["name"], "registers": int(match["registers"]), "spill_stores": int(match["stores"]),
            "spill_loads": int(match["loads"]), "shared": int(shared[1]) if shared else 0,
        })  # fmt: skip
    return found


def compile_one(nvcc, source, capability):
    done = subprocess.run(
        [nvcc, *FLAGS, f"-arch=sm_{capability}", "-cubin", "-I", ROOT, "-o", "/dev/null", os.path.join(SOURCES, source)],
        capture_output=True, text=True, check=False)  # fmt: skip
    text = done.stdout + done.stderr
    rows = [{"source": source, "capability": capability, **kernel} for kernel in kernels_of(text)]
    warnings = [line for line in text.splitlines() if "warning" in line.lower()]
    wrong = [f"{source}, sm_{capability}: {line}" for line in warnings]
    if done.returncode != 0 or not rows:
        wrong.append(f"{source}, sm_{capability}: nvcc says {done.returncode} and lists {len(rows)} kernels\n{text}")
    wrong += [
        f"{row['kernel']}, sm_{capability}: spills {row['spill_stores']} bytes, reads {row['spill_loads']}"
        for row in rows if row["spill_stores"] or row["spill_loads"]
    ]  # fmt: skip
    return rows, wrong


def main():
    parser = argparse.ArgumentParser(description="registers and spills of device cuda's kernels")
    parser.add_argument("--capability", type=int, nargs="+", default=[75, 100])
    parser.add_argument("--json")
    o = parser.parse_args()
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        print("cuda: not built (no nvcc)")
        return 0
    sources = sorted(name for name in os.listdir(SOURCES) if name.endswith(".cu"))
    jobs = [(source, capability) for capability in o.capability for source in sources]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(lambda job: compile_one(nvcc, *job), jobs))
    rows = [row for found, _ in results for row in found]
    wrong = [line for _, found in results for line in found]
    for row in rows:
        print(f"sm_{row['capability']} {row['registers']:4} registers {row['shared']:6} bytes shared  {row['kernel']}")
    if o.json:
        with open(o.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print(f"{len(rows)} kernels, {len(wrong)} wrong", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
