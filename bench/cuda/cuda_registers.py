#!/usr/bin/python3
"""Registers, memory and access widths of device cuda's kernels, from nvcc and ptxas; needs no GPU.

usage: cuda_registers.py [--json FILE] [--golden FILE | --write-golden FILE] OBJECT...

Reads objects compiled by cmake/cuda.cmake, and ptxas' output for them (OBJECT.ptxas). Prints a line for each kernel and
architecture: registers, static shared memory, warps that its launch bounds and registers allow on a multiprocessor, and the
widths of its PTX's accesses to global memory. Exit status 1 if a kernel spills, since a spilled register is memory traffic
that no count of the PTX (cuda_bounds) shows; and with --golden if registers, shared memory, warps or widths differ from FILE's
by more than 2 %: a commit that changes a kernel rewrites FILE. Architectures that FILE lacks, such as that of this machine's
GPU, are not compared; it is an error if none is compared.
"""
import argparse
import collections
import json
import os
import re
import sys

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>[^']+)' for 'sm_(?P<capability>\d+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)", re.S)
ACCESS = re.compile(r"\b(ld|st)\.global(?:\.nc)?(?:\.\w+)*?(?:\.v(?P<vector>[24]))?\.[busf](?P<bits>\d+)\b|cp\.async\.\w+\.shared\.global "
                    r"\[[^\]]*\], \[[^\]]*\], (?P<bytes>\d+)")
# Part of a mangled name that depends on the source path, which differs between trees.
PLACE = re.compile(r"\d+_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}")
# Limits of a multiprocessor by compute capability (from the programming guide): warps, KiB of shared memory.
WARPS = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}
REGISTERS = 65536
ALLOWED = 0.02


def warps_of(capability, threads, registers, shared):
    """Returns the warps of a multiprocessor that threads, registers (256 per warp at once) and static shared memory allow."""
    warps = (threads + 31) // 32
    blocks = WARPS[capability] // warps
    blocks = min(blocks, REGISTERS // ((registers * 32 + 255) // 256 * 256 * warps))
    kib = {75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}[capability]
    return min(blocks, kib * 1024 // (shared + 1024)) * warps


def widths_of(ptx):
    """Returns, by kernel, the threads of a block and the number of global memory accesses by width in bytes."""
    found = {}
    for part in ptx.split(".entry ")[1:]:
        name = re.match(r"\w+", part)[0]
        threads = re.search(r"\.maxntid (\d+)", part)
        widths = collections.Counter()
        for access in ACCESS.finditer(part):
            size = int(access["bytes"]) if access["bytes"] else int(access["bits"]) // 8 * int(access["vector"] or 1)
            widths[f"{access[1] or 'cp'}{size}"] += 1
        found[name] = (int(threads[1]) if threads else 1024, dict(sorted(widths.items())))
    return found


def kernels_of(path):
    """Returns a dict for each kernel and architecture of an object."""
    with open(path, "rb") as file:
        texts = re.findall(rb"\.version \d[^\0]*?\.target sm_(\d+)([^\0]*)", file.read())
    widths = {int(capability): widths_of(ptx.decode()) for capability, ptx in texts}
    with open(path + ".ptxas", encoding="utf-8") as file:
        log = file.read()
    found = []
    for match in ENTRY.finditer(log):
        smem = re.search(r"(\d+) bytes smem", match["rest"])
        shared, registers, capability = int(smem[1]) if smem else 0, int(match["registers"]), int(match["capability"])
        # SASS is made from the newest suitable PTX; an object for a release has no readable PTX.
        suits = max((front for front in widths if front <= capability), default=None)
        threads, accesses = widths[suits][match["name"]] if suits else (32, {})
        found.append({
            "kernel": PLACE.sub("", match["name"]), "capability": capability, "registers": registers,
            "spill_stores": int(match["stores"]), "spill_loads": int(match["loads"]), "shared": shared,
            "threads": threads, "warps": warps_of(capability, threads, registers, shared), "accesses": accesses,
        })  # fmt: skip
    return found


def numbers_of(rows):
    """Returns the numbers of the golden file by capability, kernel and quantity."""
    numbers = {}
    for row in rows:
        name = f"sm_{row['capability']} {row['kernel']}"
        numbers.update({f"{name} {what}": row[what] for what in ("registers", "shared", "warps")})
        numbers.update({f"{name} {width}": count for width, count in row["accesses"].items()})
    return numbers


def differences(numbers, path):
    with open(path, encoding="utf-8") as file:
        golden = json.load(file)
    compared = {name.split()[0] for name in numbers} & {name.split()[0] for name in golden}
    if not compared:
        yield f"{path} has no architecture of these objects"
    for name in sorted(numbers.keys() | golden.keys()):
        now, was = numbers.get(name), golden.get(name)
        if name.split()[0] in compared and (now is None or was is None or abs(now - was) > ALLOWED * was):
            yield f"{name}: {now}, golden {was}"


def main():
    parser = argparse.ArgumentParser(description="registers, spills, occupancy and widths of device cuda's kernels")
    parser.add_argument("--json")
    parser.add_argument("--golden")
    parser.add_argument("--write-golden")
    parser.add_argument("objects", nargs="+")
    o = parser.parse_args()
    rows, wrong = [], []
    for path in o.objects:
        found = kernels_of(path)
        rows += found
        if not found:
            wrong.append(f"{path}: no kernel")
    wrong += [
        f"{row['kernel']}, sm_{row['capability']}: spills {row['spill_stores']} bytes, reads {row['spill_loads']}"
        for row in rows if row["spill_stores"] or row["spill_loads"]
    ]  # fmt: skip
    for row in rows:
        accesses = ", ".join(f"{count} {width}" for width, count in row["accesses"].items())
        print(f"sm_{row['capability']} {row['registers']:4} registers {row['shared']:6} bytes shared "
              f"{row['warps']:3} warps  {row['kernel']}: {accesses}")
    if o.json:
        with open(o.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    if o.write_golden:
        with open(o.write_golden, "w", encoding="utf-8") as file:
            json.dump(numbers_of(rows), file, indent=0, sort_keys=True)
            file.write("\n")
    if o.golden:
        wrong += differences(numbers_of(rows), o.golden)
    print(f"{len(rows)} kernels, {len(wrong)} wrong", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
