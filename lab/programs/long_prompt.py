#!/usr/bin/python3
"""Measures prompts of a model that is larger than the memory for its weights, relative to the longer of the times that reading
and computing take alone.

usage: long_prompt.py [--work DIR] [--bin build/release] [--pack PACK] [--tokens 2048] [--runs N] [--share 0.5]
                      [--shape qwen3-30b-a3b] [--layers 6] [--bits q4]

The pack (sluice synth, routing spread evenly) is made in DIR if missing, unless --pack names one. A run measures in turn,
within seconds: the disk, by bare O_DIRECT reads of the pack's experts in their order; the prompt with all weights in memory,
which is computing alone; and the prompt with --share of the experts' bytes in memory besides the dense weights. The bound of
the last is max(bytes it read / disk, the second's time); its hit rate should be close to the share. Prints a Markdown table
and the medians; the target is 85 % of the bound. Exit status 1 if a command failed.
"""
import argparse
import concurrent.futures
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time

from capped_decode import drop_from_page_cache

READ = 1 << 20
READERS = 8
DISK_SECONDS = 2.0


def sluice_json(options, *args):
    done = subprocess.run([options.bin + "/bin/sluice", *args, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def disk_rate(path):
    """Returns the bytes per second of sequential reads of the file, several in flight."""
    size = os.path.getsize(path) // READ * READ
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    end = time.monotonic() + DISK_SECONDS

    def reader(first):
        buffer = mmap.mmap(-1, READ)
        done = 0
        at = first * READ
        while time.monotonic() < end:
            done += os.preadv(fd, [buffer], at % size)
            at += READERS * READ
        return done

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        done = sum(pool.map(reader, range(READERS)))
    os.close(fd)
    return done / (time.monotonic() - start)


def prompt(options, pack, budget):
    """Returns seconds, bytes from the disk and share of experts found in memory, for the last of two prompts."""
    (result,) = sluice_json(options, "bench", "--pack", pack, "-p", str(options.tokens), "-n", "0", "-r", "1", "--parallel", "1",
                            "--context", str(options.tokens + 64), "--dram-budget", str(budget), "-q")
    seconds = result["samples_ns"][0] / 1e9
    return seconds, result["ssd_gbps"] * 1e9 * seconds, result["hit_rate"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "long_prompt"))
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--pack", default="")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--shape", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--bits", default="q4")
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    os.environ["SLUICE_RUNTIME_DIR"] = os.path.join(options.work, "run")
    os.makedirs(os.environ["SLUICE_RUNTIME_DIR"], mode=0o700, exist_ok=True)
    pack = options.pack or os.path.join(options.work, f"{options.shape}-{options.layers}-{options.bits}.pack")
    if not os.path.exists(pack):
        sluice_json(options, "synth", "--shape", options.shape, "--layers", str(options.layers), "--bits", options.bits, "--out", pack)
    drop_from_page_cache(pack)
    experts = os.path.getsize(os.path.join(pack, "experts.bin"))
    dense = os.path.getsize(os.path.join(pack, "dense.bin"))
    whole = int((experts + dense) * 1.05)
    part = dense + int(experts * options.share)
    print("| disk, GB/s | computing, s | read, GiB | reading, s | took, s | of the bound | hits |")
    print("|---|---|---|---|---|---|---|")
    ratios, hits = [], []
    for _ in range(options.runs):
        disk = disk_rate(os.path.join(pack, "experts.bin"))
        computing, _, _ = prompt(options, pack, whole)
        took, read, hit = prompt(options, pack, part)
        ratios.append(max(read / disk, computing) / took)
        hits.append(hit)
        print(f"| {disk / 1e9:.2f} | {computing:.2f} | {read / 2**30:.2f} | {read / disk:.2f} | {took:.2f} | {ratios[-1]:.2f} |"
              f" {hit:.3f} |", flush=True)
    print(f"\nof the bound: {statistics.median(ratios):.2f} (0.85), hits: {statistics.median(hits):.3f} of {options.share}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"long_prompt: {error}")
