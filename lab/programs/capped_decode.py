#!/usr/bin/python3
"""Decodes from a pack that is larger than the memory for it, with both daemons in a memory cgroup, and compares the speed with
the bound set by disk and memory, and with reading the same experts through mmap under the same limit.

usage: capped_decode.py [--work DIR] [--bin build/release] [--tokens N] [--slices N] [--runs N]
                        [--shares 0.667,0.333] [--shape qwen3-30b-a3b] [--layers 7]

The pack (sluice synth of the shape, q8, routing spread evenly) is made in DIR if missing. The bound of a token is max(miss
bytes / O_DIRECT bandwidth, bytes touched / read bandwidth). A run is measured in slices of a few tokens, since a virtual disk's
speed changes from second to second: the disk is measured just before and just after each slice, over other experts each time,
with the bare loop that was the fastest before the first slice. A run's bound is the mean of its slices'. A row has the median
of the runs and their range, in time and relative to their bounds. Prints a Markdown table, or "not run" with the reason if no
memory cgroup can be made. Exit status 1 if a command failed. SIGTERM ends the daemons and removes the cgroup; leftovers of a
killed run are removed by the next one.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

PREFIX = "sluice-capped-"  # of the cgroups' names, before the script's process id
# Memory besides the budget: code, heaps, KV cache and activations of both daemons, page tables, reader buffers.
BESIDE = 640 << 20


def cgroup_root():
    """Returns the folder for memory cgroups, and whether they are of version 2."""
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    return ("/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory"), unified


def end_processes(path):
    """Kills the processes of a cgroup and waits for their end."""
    deadline = time.monotonic() + 30
    while True:
        with open(os.path.join(path, "cgroup.procs")) as file:
            pids = file.read().split()
        if not pids:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"still in {path} after 30 s: {pids}")
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGTERM)
            except ProcessLookupError:
                pass
        time.sleep(0.2)


def remove_leftovers():
    """Removes the cgroups of killed runs, and ends the daemons in them."""
    root, _ = cgroup_root()
    for name in os.listdir(root) if os.path.isdir(root) else []:
        owner = name.removeprefix(PREFIX)
        if owner != name and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            path = os.path.join(root, name)
            end_processes(path)
            os.rmdir(path)


class MemoryCgroup:
    """A cgroup of version 2 or 1 with a memory limit; `error` is the reason if there is none."""

    def __init__(self, limit):
        self.path = None
        self.error = None
        root, unified = cgroup_root()
        self.names = (("memory.max", "memory.current", "file", "shmem") if unified else
                      ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"))
        path = os.path.join(root, f"{PREFIX}{os.getpid()}")
        try:
            os.mkdir(path)
            self.path = path
            self.write(self.names[0], str(limit))
        except OSError as error:
            self.error = f"{error.filename}: {error.strerror}"
            self.close()

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(text)

    def read(self, name):
        with open(os.path.join(self.path, name)) as file:
            return file.read()

    def enter(self):
        self.write("cgroup.procs", str(os.getpid()))

    def used(self):
        return int(self.read(self.names[1]))

    def page_cache(self):
        stat = dict(line.split() for line in self.read("memory.stat").splitlines())
        return int(stat[self.names[2]]) - int(stat[self.names[3]])

    def end_all(self):
        end_processes(self.path)

    def close(self):
        if self.path is not None:
            os.rmdir(self.path)
            self.path = None


class Watch(threading.Thread):
    """Records the peak figures of a cgroup while a command runs in it."""

    def __init__(self, cgroup):
        super().__init__()
        self.cgroup = cgroup
        self.ended = threading.Event()
        self.used = 0
        self.page_cache = 0

    def run(self):
        while not self.ended.wait(0.2):
            self.used = max(self.used, self.cgroup.used())
            self.page_cache = max(self.page_cache, self.cgroup.page_cache())


def drop_from_page_cache(path):
    """Drops a file, or a folder's files: weightd copies from the page cache what it holds."""
    for name in [path] if os.path.isfile(path) else [entry.path for entry in os.scandir(path) if entry.is_file()]:
        with open(name, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_json(command, cgroup=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True,
                          preexec_fn=cgroup.enter if cgroup is not None else None)
    return json.loads(done.stdout)


def gib(count):
    return f"{count / 2**30:.2f}"


def start_daemons(options, daemons, cgroup):
    run_json([options.bin + "/bin/sluice", "run", *daemons, "--keep", "5m", "--token-ids", "1", "-n", "1", "--json"],
             cgroup)


def bench_once(options, daemons, tokens, seed):
    """Runs one request against daemons in the cgroup; bench itself stays outside, since it measures the memory."""
    return run_json([options.bin + "/bin/sluice", "bench", *daemons, "-p", "0", "-n", str(tokens), "-r", "1",
                     "--no-warmup", "--seed", str(seed), "--json"])[0]


class Disk:
    """Measures the bare loop's rate, over other experts each time."""

    def __init__(self, options, pack):
        self.command = [options.bin + "/bench/pack_reads", "direct", pack]
        self.command.append(run_json(self.command)["loop"])
        self.looks = 0

    def look(self):
        self.looks += 1
        return run_json([*self.command, str(self.looks)])["direct_bytes_per_second"]


class Slice:
    """A few tokens and their bound, in seconds per token, with the disk's rate just before and after them."""

    def __init__(self, tokens, bench, before, after):
        self.direct = (before + after) / 2
        self.token = bench["samples_ns"][0] / 1e9 / tokens
        self.miss = bench["ssd_gbps"] * 1e9 * self.token
        self.touched = bench["weight_gbps"] * 1e6 * bench["tpot_ms"]
        self.bound = max(self.miss / self.direct, self.touched / (bench["read_bandwidth_gbps"] * 1e9))


class Run:
    """Means of equally long slices."""

    def __init__(self, slices):
        for name in ("direct", "token", "miss", "touched", "bound"):
            setattr(self, name, sum(getattr(part, name) for part in slices) / len(slices))
        self.over = self.token / self.bound


def median(values):
    return sorted(values)[len(values) // 2]


def spread(values):
    return f"{max(values) / min(values):.3f}"


def run_all(options, pack, budget, cgroup):
    daemons = ["--pack", pack, "--dram-budget", str(budget), "--context", "1024", "--parallel", "1", "--quiet"]
    start_daemons(options, daemons, cgroup)
    tokens = options.tokens // options.slices
    bench_once(options, daemons, 2 * options.tokens, seed=0)  # fills the memory
    runs = []
    disk = Disk(options, pack)
    before = disk.look()
    for number in range(options.runs):
        slices = []
        for _ in range(options.slices):
            bench = bench_once(options, daemons, tokens, seed=disk.looks)  # other tokens in each slice
            after = disk.look()
            slices.append(Slice(tokens, bench, before, after))
            before = after
        runs.append(Run(slices))
        print(f"run {number + 1} of {options.runs}: {runs[-1].token * 1e3:.1f} ms a token, "
              f"{runs[-1].over:.2f} of the bound, disk {runs[-1].direct / 1e9:.2f} GB/s", file=sys.stderr)
    return runs


def measure(options, pack, size, share):
    """Measures one row of the table."""
    budget = int(size * share)
    drop_from_page_cache(pack)
    cgroup = MemoryCgroup(budget + BESIDE)
    if cgroup.error is not None:
        print(f"not run: no memory cgroup can be made ({cgroup.error})")
        sys.exit(0)
    try:
        watch = Watch(cgroup)
        watch.start()
        try:
            runs = run_all(options, pack, budget, cgroup)
        finally:
            cgroup.end_all()
            watch.ended.set()
            watch.join()
        mapped = run_json([options.bin + "/bench/pack_reads", "mapped", pack, str(options.tokens)], cgroup)
    finally:
        cgroup.close()
    token = median([run.token for run in runs])
    miss = median([run.miss / run.touched for run in runs])
    return [f"{share:.3f}", gib(budget), f"{token * 1e3:.1f}", f"{median([run.bound for run in runs]) * 1e3:.1f}",
            f"{median([run.over for run in runs]):.2f}", spread([run.over for run in runs]),
            spread([run.token for run in runs]), f"{miss:.3f}", f"{1 - share + 0.03:.3f}", gib(watch.used),
            gib(budget + BESIDE), f"{watch.page_cache / 2**20:.0f}",
            " to ".join(f"{rate(run.direct for run in runs) / 1e9:.2f}" for rate in (min, max)),
            f"{mapped['seconds_per_token'] * 1e3:.1f}", f"{mapped['seconds_per_token'] / token:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="/var/tmp/sluice-capped")
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--slices", type=int, default=6)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shares", default="0.667,0.333")
    parser.add_argument("--shape", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=7)
    options = parser.parse_args()
    if options.slices < 1 or options.tokens < 1 or options.tokens % options.slices != 0:
        parser.error(f"--tokens {options.tokens} are not {options.slices} slices of equal length")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    remove_leftovers()
    os.makedirs(options.work + "/run", mode=0o700, exist_ok=True)
    os.environ["SLUICE_RUNTIME_DIR"] = options.work + "/run"  # keeps other users' daemons out of the run
    pack = os.path.join(options.work, f"{options.shape}-{options.layers}.pack")
    if not os.path.exists(os.path.join(pack, "manifest.json")):
        subprocess.run([options.bin + "/bin/sluice", "synth", "--shape", options.shape, "--layers", str(options.layers),
                        "--vocab", "22144", "--bits", "q8", "--out", pack], check=True)
    size = sum(os.path.getsize(os.path.join(pack, name)) for name in ("dense.bin", "experts.bin"))
    rows = [measure(options, pack, size, float(share)) for share in options.shares.split(",")]
    head = ["budget / pack", "budget GiB", "ms/token", "bound ms", "over bound (1.2)",
            "largest / smallest of these (1.05)", "slowest / fastest run", "miss / touched", "at most", "memory GiB",
            "bound GiB", "page cache MiB (64)", "O_DIRECT GB/s", "mmap ms/token", "mmap / ours"]
    print(f"pack {gib(size)} GiB, {options.runs} runs of {options.tokens} tokens\n")
    for row in [head, ["---"] * len(head), *rows]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
