#!/usr/bin/python3
"""Samples the share of CPU time that inferd's busiest thread, the engine's, spends in residency and policy code, by `perf`
(Debian's linux-perf; its cpu-clock needs no hardware counters) while `sluice bench` decodes. policy_share.py measures the time
outside of backend operations instead.

usage: policy_samples.py --pack PACK --preset NAME [--policy LIST] [--batch N] [--seconds S] [--bin build/release/bin]

Prints one line of a Markdown table and the functions that took the most time. Exit status 1 if a command failed.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

LINE = re.compile(r"\s*([\d.]+)%\s+(\d+):\S+\s+\[(.)\]\s+(.*)")
KERNELS = re.compile(r"host::|reference::|CpuBackend|\bPrefetchOf\b|ThreadPool|Resolve|ImmediateBackend|CallWeights")
POLICIES = re.compile(r"Neuron|Slot|Slab|Prefetch|Predict|Routing|Evict|Victim|Score|Choose|Balance|Demand|Residency|Fetch|"
                      r"WeightClient|WeightSession|RequestTable|ListArena|Ring|Completion|Pack::|GateReuse|Learned")


def samples(o, work):
    """Returns the share of all samples by (thread, function)."""
    os.environ["SLUICE_RUNTIME_DIR"] = work  # keeps other users' daemons out of the run
    policy = ["--policy", o.policy] if o.policy else []
    bench = subprocess.Popen(
        [os.path.join(o.bin, "sluice"), "bench", "--pack", o.pack, "--preset", o.preset, *policy, "--device", "sim", "--clock",
         "real", "--device-budget", "50%", "-n", "4000", "-p", "1", "-r", "1", "-b", str(o.batch), "--json"],
        stdout=subprocess.DEVNULL)  # fmt: skip
    data = os.path.join(work, "perf.data")
    try:
        time.sleep(o.warm)  # skips the time in which the device is filled
        inferd = [pid for pid in subprocess.run(["pgrep", "-x", "inferd"], stdout=subprocess.PIPE, text=True).stdout.split()
                  if work in open(f"/proc/{pid}/cmdline", encoding="utf-8").read()]  # fmt: skip
        if bench.poll() is not None or len(inferd) != 1:
            sys.exit(f"no inferd that decodes: {inferd}")
        subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-p", inferd[0], "-o", data, "--", "sleep",
                        str(o.seconds)], check=True)  # fmt: skip
    finally:
        bench.terminate()
        bench.wait()
    report = subprocess.run(["perf", "report", "-i", data, "--no-children", "--stdio", "-g", "none", "--sort", "pid,sym"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)  # fmt: skip
    threads = {}
    for match in filter(None, map(LINE.match, report.stdout.splitlines())):
        threads.setdefault(match[2], []).append((float(match[1]), match[4]))
    return max(threads.values(), key=lambda rows: sum(share for share, _ in rows))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack", required=True)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--policy", default="")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--warm", type=float, default=6)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--bin", default="build/release/bin")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = samples(o, work)
    everything = sum(share for share, _ in rows)
    policies = [row for row in rows if POLICIES.search(row[1]) and not KERNELS.search(row[1])]
    print(f"| {o.preset} | {o.batch} | {100 * sum(share for share, _ in policies) / everything:.2f} % |")
    for share, name in sorted(policies, reverse=True)[:6]:
        print(f"    {100 * share / everything:.2f} % {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
