#!/usr/bin/python3
"""Compares Sluice with a program of the llama.cpp family, in turns within one run: same shape, values, bits and threads.

usage: peers.py --peer PATH [--bin build/release] [--work DIR] [--shape qwen3-30b-a3b] [--layers 12] [--vocab 22144]
                [--bits q4] [--threads N] [--rounds N] [--parts decode,prompts,batches,touched,capped]
                [--routing uniform,zipf:1] [--limits MIB,MIB] [--presets exact] [--variant "-rtr 1 -fa 1"]...
                [--model FILE.gguf]

PATH is llama-bench of a built ik_llama.cpp or llama.cpp, or its folder; nothing is fetched. `sluice synth` makes a pack in DIR,
and gguf_reference its GGUF reference: the same values in Q4_0 (q8: Q8_0), drawn with mean zero so that both route alike. Each
round runs Sluice and then each variant of the peer's options. A ratio is Sluice's rate over that of the peer's best variant in
that round; the median of the rounds and their range are printed.

decode    64 tokens, one after the other.
prompts   128, 512 and 2048 tokens; both process 512 at a time.
batches   4 and 16 tokens a step: Sluice decodes as many sequences, each with logits; the peer, which has no such measurement
          with different tokens, processes a prompt of as many tokens with one row of logits.
touched   the share of the model's bytes that each program reads while it decodes some 160 tokens, by the pages' accessed
          bits: even routing then leaves no expert out, and a generator that prefers experts would be noticed.
capped    decoding in a memory cgroup, for each routing and limit (the first turn of a cold start does not count).
start     only with --model: seconds from a new process to one token after a prompt of 16, with the file outside the page
          cache (cold) and in it (warm), the most memory that the processes held meanwhile, and what Sluice keeps on disk.

With --model both read this file, Sluice in place, and nothing is made. Sluice then keeps its index in DIR.

Prints Markdown tables. Exit status 1 if a command failed.
"""
import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs"))
from capped_decode import MemoryCgroup, drop_from_page_cache, remove_leftovers, run_json  # noqa: E402

TOKENS = 64  # decoded tokens
TOUCHING = 160  # tokens generated while pages are watched
PROMPTS = (128, 512, 2048)
BATCHES = (4, 16)
PARTS = ("decode", "prompts", "batches", "touched", "capped", "start")
START_PROMPT = 16  # tokens of the prompt before a first token
# Memory of daemons and client in a capped run besides the budget: code, heaps, KV cache, activations, buffers.
BESIDE = 320 << 20


class Table:
    """Ratios of one kind of test, by round."""

    def __init__(self, *head):
        self.rows = [list(head), ["---"] * len(head)]

    def add(self, *cells):
        self.rows.append([str(cell) for cell in cells])
        print("  " + ", ".join(self.rows[-1]), file=sys.stderr)

    def text(self):
        return "\n".join("| " + " | ".join(row) + " |" for row in self.rows) + "\n"


def spread(values):
    """Formats `median (least to most)`."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def rate(values):
    return f"{statistics.median(values):.1f}"


def model_option(path):
    return ["--model" if path.endswith(".gguf") else "--pack", path]


class Ours:
    """Daemons that keep running between the turns, and `sluice bench` against them."""

    def __init__(self, options, pack, preset="exact", budget=None, cgroup=None):
        self.sluice = os.path.join(options.bin, "bin/sluice")
        # All commands name the same options, since one with others would start daemons of its own.
        self.server = [*model_option(pack), "--threads", str(options.threads), "--context", "4096", "--parallel",
                       str(max(BATCHES) if budget is None else 1), "--preset", preset, "--speculate", "off", "--keep", "30m",
                       "--quiet"]  # fmt: skip
        self.server += [] if budget is None else ["--dram-budget", str(budget)]
        run_json([self.sluice, "run", *self.server, "--token-ids", "1", "-n", "1", "--json"], cgroup)

    def bench(self, *args):
        return run_json([self.sluice, "bench", *self.server, "-r", "1", *args, "--json"])

    def await_weights(self):
        """Returns when weightd has preloaded the model; the peer reads its file before it begins."""
        while any(session["name"] == "preload" for session in
                  run_json([self.sluice, "top", "--json"])["weightd"]["sessions"]):  # fmt: skip
            time.sleep(0.2)

    def end(self):
        for pid in self.processes("inferd", "weightd", "sluice"):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        while self.processes("inferd", "weightd", "sluice"):
            time.sleep(0.1)

    @staticmethod
    def processes(*names):
        """Returns this run's daemons and their supervisors, by their runtime directory."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm") as file:
                    mine = file.read().strip() in names
                with open(f"/proc/{pid}/environ", "rb") as file:
                    mine = mine and os.environb[b"SLUICE_RUNTIME_DIR"] in file.read()
            except OSError:
                continue
            found += [int(pid)] if mine else []
        return found


class Peer:
    """Runs llama-bench."""

    def __init__(self, options, model):
        self.command = [options.peer, "-m", model, "-t", str(options.threads), "-o", "json", "-r", "1"]

    def bench(self, variant, *args, cgroup=None):
        """Returns tokens per second by (prompt, generated)."""
        done = subprocess.run([*self.command, *shlex.split(variant), *args], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, preexec_fn=cgroup.enter if cgroup is not None else None)
        if done.returncode != 0:
            sys.exit(f"{' '.join(done.args)}: exit status {done.returncode}\n{done.stderr.decode()[-2000:]}")
        return {(row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in json.loads(done.stdout)}


def variants_of(options):
    """Returns the variants of the peer's options, of which the fastest counts: as given, or faster ones it supports."""
    if options.variant:
        return options.variant
    text = subprocess.run([options.peer, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()
    known = ["-fa 1" if "-fa," in text else ""]
    return [*known, *[f"-rtr 1 {word}" for word in known if "-rtr" in text]]


def make_models(options, routing):
    """Makes the pack and the GGUF file of a routing if missing; a given file is both."""
    if options.model:
        return options.model, options.model
    name = f"{options.shape}-{options.layers}-{options.vocab}-{options.bits}-{routing.replace(':', '')}"
    pack, reference = (os.path.join(options.work, name + end) for end in (".pack", ".gguf"))
    if not os.path.exists(os.path.join(pack, "manifest.json")):
        subprocess.run([os.path.join(options.bin, "bin/sluice"), "synth", "--shape", options.shape, "--layers",
                        str(options.layers), "--vocab", str(options.vocab), "--bits", options.bits, "--routing", routing,
                        "--out", pack, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    if not os.path.exists(reference):
        subprocess.run([os.path.join(options.bin, "bench/gguf_reference"), pack, reference + ".part"], check=True)
        os.rename(reference + ".part", reference)
    return pack, reference


def in_memory(options, parts):
    """Measures decode, prompts and batches."""
    pack, reference = make_models(options, "uniform")
    peer = Peer(options, reference)
    variants = variants_of(options)
    prompts = PROMPTS if "prompts" in parts else ()
    batches = BATCHES if "batches" in parts else ()
    peer_args = ["-n", str(TOKENS if "decode" in parts else 0), "-p", ",".join(map(str, (*batches, *prompts))) or "0"]
    table = Table("test", "preset", "ours, tokens/s", "peer's best", "ratio", "of the read bandwidth", "peer's options")
    for preset in options.presets.split(","):
        ours_by_test, peer_by_test = {}, {}
        for number in range(options.rounds):
            print(f"{preset}: round {number + 1} of {options.rounds}", file=sys.stderr)
            server = Ours(options, pack, preset)
            server.await_weights()
            server.bench("-b", "1", "-n", "0", "-p", "512")  # touches the pages, as the peer's are
            results = []
            if "decode" in parts or prompts:
                results += server.bench("-b", "1", "-n", str(TOKENS if "decode" in parts else 0), "-p",
                                        ",".join(map(str, prompts)) or "0")
            if batches:
                results += server.bench("-b", ",".join(map(str, batches)), "-n", "32", "-p", "0")
            server.end()
            for row in results:
                name = f"pp{row['n_prompt']}" if row["n_prompt"] else "decode" if row["batch"] == 1 else \
                    f"batch {row['batch']}"
                ours_by_test.setdefault(name, []).append((row["avg_ts"], row["read_bandwidth_share"]))
            turn = {}
            for variant in variants:
                for (prompt, generated), value in peer.bench(variant, *peer_args).items():
                    name = "decode" if generated else f"batch {prompt}" if prompt in batches else f"pp{prompt}"
                    turn.setdefault(name, []).append((value, variant))
            for name, values in turn.items():
                peer_by_test.setdefault(name, []).append(max(values))
        for name, ours in ours_by_test.items():
            best = peer_by_test[name]
            share = [share for _, share in ours if share is not None]
            table.add(name, preset, rate([value for value, _ in ours]), rate([value for value, _ in best]),
                      spread([a[0] / b[0] for a, b in zip(ours, best)]),
                      f"{statistics.median(share):.0%}" if share else "", max(best)[1] or "none")
    return table.text()


def referenced(pid, words):
    """Returns the bytes of a process's mappings whose name has one of the words, and of their accessed pages."""
    size = accessed = 0
    named = False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            fields = line.split()
            if "-" in fields[0] and not fields[0].endswith(":"):
                named = any(word in line for word in words)
            elif named and fields[0] in ("Rss:", "Referenced:"):
                size += int(fields[1]) << 10 if fields[0] == "Rss:" else 0
                accessed += int(fields[1]) << 10 if fields[0] == "Referenced:" else 0
    return size, accessed


def touched_by(pid, words, seconds):
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("1")
    time.sleep(seconds)
    size, accessed = referenced(pid, words)
    return accessed / size if size else float("nan")


def touched(options):
    """Measures the share of the model that both read while they decode."""
    table = Table("routing", "ours", "peer")
    for routing in options.routing.split(","):
        pack, reference = make_models(options, routing)
        server = Ours(options, pack)
        pid = Ours.processes("inferd")[0]
        seconds = TOUCHING / server.bench("-b", "1", "-n", str(TOKENS), "-p", "0")[0]["avg_ts"]
        client = subprocess.Popen([server.sluice, "bench", *server.server, "-r", "50", "-b", "1", "-n", str(TOKENS), "-p",
                                   "0", "--json"], stdout=subprocess.DEVNULL)
        time.sleep(2)
        ours = touched_by(pid, ("memfd", "/dev/shm", "sluice"), seconds)
        client.terminate()
        client.wait()
        server.end()
        peer = Peer(options, reference)
        seconds = TOUCHING / next(iter(peer.bench("", "-n", str(TOKENS), "-p", "0").values()))
        client = subprocess.Popen([*peer.command[:-1], "1000", "-n", str(TOKENS), "-p", "0"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        loaded = -1
        while loaded != (now := referenced(client.pid, (".gguf",))[0]) or now == 0:
            loaded = now
            time.sleep(1)
        time.sleep(2)
        peers = touched_by(client.pid, (".gguf",), seconds)
        client.kill()
        client.wait()
        table.add(routing, f"{ours:.0%}", f"{peers:.0%}")
    return table.text()


def with_cgroup(limit, function):
    cgroup = MemoryCgroup(limit)
    if cgroup.error is not None:
        sys.exit(f"no memory cgroup can be made ({cgroup.error})")
    try:
        return function(cgroup)
    finally:
        cgroup.end_all()
        cgroup.close()


def capped(options):
    table = Table("routing", "limit, MiB", "model, MiB", "ours, tokens/s", "hits", "peer", "ratio")
    for routing in options.routing.split(","):
        pack, reference = make_models(options, routing)
        for limit in (int(word) << 20 for word in options.limits.split(",")):
            ours, peer, hits = [], [], []

            def turn_of_ours(cgroup):
                drop_from_page_cache(pack)
                server = Ours(options, pack, budget=limit - BESIDE, cgroup=cgroup)
                server.bench("-b", "1", "-n", str(TOKENS), "-p", "0", "--no-warmup", "--seed", "1000")
                for number in range(options.rounds):
                    row = server.bench("-b", "1", "-n", str(TOKENS), "-p", "0", "--no-warmup", "--seed", str(number))[0]
                    ours.append(row["avg_ts"])
                    hits.append(row["hit_rate"])

            def turn_of_peer(cgroup):
                drop_from_page_cache(reference)
                for _ in range(options.rounds):
                    values = Peer(options, reference).bench("", "-n", "16", "-p", "0", "-w", "0", cgroup=cgroup)
                    peer.append(next(iter(values.values())))

            with_cgroup(limit, turn_of_ours)
            with_cgroup(limit, turn_of_peer)
            table.add(routing, limit >> 20, os.path.getsize(reference) >> 20, rate(ours), f"{statistics.median(hits):.0%}",
                      f"{statistics.median(peer):.2f}", spread([a / b for a, b in zip(ours, peer)]))
    return table.text()


def proportional_bytes(pids):
    """Returns the memory of processes; what several of them map counts once."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total


def timed(command, pids):
    """Runs a command; returns its seconds and the most memory that `pids(child)` held, asked ten times a second."""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    most = 0
    while child.poll() is None:
        most = max(most, proportional_bytes(pids(child)))
        time.sleep(0.1)
    seconds = time.monotonic() - begin
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {child.returncode}\n{child.stderr.read().decode()[-2000:]}")
    return seconds, most


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)


def start(options):
    """Measures the time from a new process to a first token."""
    cache = os.path.join(options.work, "cache")
    os.environ["SLUICE_CACHE_DIR"] = cache
    prompt = ",".join(str(token) for token in range(1, START_PROMPT + 1))
    ours = [os.path.join(options.bin, "bin/sluice"), "run", *model_option(options.model), "--threads", str(options.threads),
            "--context", "4096", "--token-ids", prompt, "-n", "1", "--ignore-eos", "--quiet", "--json"]
    peer = [*Peer(options, options.model).command, *shlex.split(variants_of(options)[0]), "-p", str(START_PROMPT), "-n", "0",
            "-w", "0"]  # fmt: skip
    table = Table("page cache", "ours, s", "peer, s", "ours / peer", "ours, MiB", "peer, MiB", "index, share of the file")
    for is_cold in (True, False):
        seconds, memory = [], []
        for number in range(options.rounds):
            turn = []
            if number == 0:
                shutil.rmtree(cache, ignore_errors=True)  # the index is made within the time, too
            for command, pids in ((ours, lambda child: [child.pid, *Ours.processes("inferd", "weightd", "sluice")]),
                                  (peer, lambda child: [child.pid])):
                if is_cold:
                    drop_from_page_cache(options.model)
                elif number == 0:
                    subprocess.run(["cat", options.model], stdout=subprocess.DEVNULL, check=True)
                turn.append(timed(command, pids))
            seconds.append([turn[0][0], turn[1][0]])
            memory.append([turn[0][1], turn[1][1]])
        ours_seconds, peer_seconds = zip(*seconds)
        ours_memory, peer_memory = (max(values) for values in zip(*memory))
        table.add("cold" if is_cold else "warm", f"{statistics.median(ours_seconds):.1f}", f"{statistics.median(peer_seconds):.1f}",
                  spread([a / b for a, b in seconds]), ours_memory >> 20, peer_memory >> 20,
                  f"{folder_bytes(cache) / os.path.getsize(options.model):.4%}")
    return table.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--work", default="/var/tmp/sluice-peers")
    parser.add_argument("--shape", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=22144)
    parser.add_argument("--bits", default="q4", choices=["q4", "q8"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts")
    parser.add_argument("--routing", default="uniform,zipf:1")
    parser.add_argument("--limits", default="3000,2000")
    parser.add_argument("--presets", default="exact")
    parser.add_argument("--variant", action="append")
    parser.add_argument("--model")
    options = parser.parse_args()
    parts = options.parts.split(",") if options.parts else [part for part in PARTS if part != "start" or options.model]
    if not set(parts) <= set(PARTS):
        parser.error(f"--parts {options.parts}: of {','.join(PARTS)}")
    if "start" in parts and not options.model:
        parser.error("the part start needs --model FILE.gguf")
    if options.model:
        options.model = os.path.realpath(options.model)
        options.routing = "as in the file"
    if os.path.isdir(options.peer):
        options.peer = os.path.join(options.peer, "llama-bench")
    if not os.access(options.peer, os.X_OK):
        parser.error(f"--peer {options.peer}: no program")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.makedirs(os.path.join(options.work, "run"), mode=0o700, exist_ok=True)
    os.environ["SLUICE_RUNTIME_DIR"] = os.path.join(options.work, "run")  # keeps other users' daemons out of the run
    remove_leftovers()
    model = options.model or f"{options.shape}, {options.layers} layers, {options.bits}"
    print(f"{model}, {options.threads} threads, {options.rounds} rounds; "
          f"median (least to most)\n")
    if {"decode", "prompts", "batches"} & set(parts):
        print(in_memory(options, parts))
    if "touched" in parts:
        print(touched(options))
    if "capped" in parts:
        print(capped(options))
    if "start" in parts:
        print(start(options))


if __name__ == "__main__":
    main()
