#!/usr/bin/python3
"""Compares presets on a model of Mixtral's shape in real time with the prediction of --clock virtual: does a cost table that was
measured on this machine give the same speed ratios?

usage: realtime_rows.py [--work DIR] [--bin build/release/bin] [--link-gbps G] [--rounds N] [--rows "A;B"] [--prefix CMD]

Makes packs of Mixtral's shape (few layers, q4; some GB each, kept in DIR), records the routing of one run, and measures
the costs of experts, leads, attention and head (--measure-costs, one compute thread, everything resident). Then each row
runs with the recorded routing (--replay-trace) on device sim with a throttled link and half of the experts in slots:
once in virtual time with the measured costs, and in several rounds in real time, in turns. Prints the time per token and
the ratios to the first row side by side, and their difference; exit status 1 if a command failed or a ratio differs by
more than 10 %. --prefix is put before each command, such as `chrt -f 20`.

One compute thread leaves a core to weightd, whose copies then overlap with computing as on a real device.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

MARK = 0.10
# Tokens of the prompts between the answers. The first answers, which do not count, bring every expert to DRAM.
PROMPT = 32
# Products of a random model are normally distributed: a fifth of them exceeds 1.2816.
FLOE = "expert_predictor=gate_reuse,sparsity_threshold=1.2816"
# name, pack, preset, tokens of an answer relative to --tokens, options
ROWS = [
    ("resident", "q4", "resident", 1, []),
    ("layerwise", "q4", "layerwise", 0.25, []),
    ("ondemand", "q4", "ondemand", 1, []),
    ("lru_prefetch", "q4", "lru_prefetch", 1, []),
    ("static_hot", "q4", "static_hot", 1, []),
    # A random model has no profile: sensitivity by score alone, slots divided evenly.
    ("adapmoe", "q4", "adapmoe", 1, ["first_layer=off,score_threshold=0.02"]),
    ("importance", "q4", "importance", 1, []),
    ("importance, misses loaded", "q4", "importance", 1, ["expert_miss=load"]),
    ("floe", "floe", "floe", 1, [FLOE]),
    ("floe, sets as computed", "floe", "floe", 1,
     [FLOE, "neuron_miss=load,neuron_predictor=none"]),
    ("corm", "corm", "corm", 1, []),
]  # fmt: skip
PACKS = {"q4": ["--bits", "q4"], "floe": ["--recipe", "floe", "--bits", "q4"], "corm": ["--recipe", "corm"]}
SHAPE = ["--shape", "mixtral-8x7b", "--vocab", "2048", "--reuse", "0.4", "--similarity", "0.85"]


class Runs:
    def __init__(self, options):
        self.o = options
        self.prefix = shlex.split(options.prefix)

    def run(self, program, *arguments):
        command = [*self.prefix, os.path.join(self.o.bin, program), *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout}")
        return done.stdout

    def pack(self, name):
        path = os.path.join(self.o.work, f"mixtral-{self.o.layers}-{name}.pack")
        if not os.path.isdir(path):
            self.run("sluice", "synth", *SHAPE, "--layers", self.o.layers, *PACKS[name], "--out", path, "-q")
        return path

    def file(self, name):
        return os.path.abspath(os.path.join(self.o.work, name))

    def bench(self, row, *options, repetitions=1):
        """Returns the figures of one row at batch 1."""
        _, pack, preset, share, policies = row
        tokens = max(4, round(self.o.tokens * share))
        rows = self.file("row.toml")
        with open(rows, "w") as file:
            file.write(f'[[row]]\nname = "{row[0]}"\npreset = "{preset}"\n')
        found = json.loads(self.run(
            "sluice-lab", "--pack", self.pack(pack), "--rows", rows, "--device", "sim", "--threads", 1, "--context", 512, "--direct", "off", "--io", "pread",
            "-b", 1, "-p", PROMPT, "-n", tokens, "-r", repetitions, "--explain", "--json", "-q",
            *(word for policy in policies for word in ("--policy", policy)), *options,
        ))["rows"][0]  # fmt: skip
        if found["refused"]:
            sys.exit(f"{row[0]}: {found['refused']}")
        figures = found["batches"][0]
        print(f"{row[0]}: {figures['tpot_ms']:.1f} ms a token, {figures['stall_ms']:.1f} of them waiting, "
              f"{100 * figures['hit_rate']:.1f} % hits, {' '.join(map(str, options))}", file=sys.stderr)  # fmt: skip
        return figures

    def record(self):
        self.bench(ROWS[0], "--clock", "virtual", "--virtual-costs", "3x", "--trace", self.file("trace"))

    def measure(self, row):
        """Measures the costs of the row's pack: the same policies with everything on the device."""
        costs = self.file(f"costs-{row[1]}-{row[2]}")
        if not (self.o.keep_costs and os.path.exists(costs)):
            self.bench(row, "--clock", "real", "--device-budget", "100%", "--replay-trace", self.file("trace"),
                       "--measure-costs", costs, repetitions=2)
        return costs

    def timed(self, row, clock, *options):
        return self.bench(row, "--device-budget", "50%", "--link-gbps", self.o.link_gbps, "--replay-trace",
                          self.file("trace"), "--clock", clock, *options)


def costs_of(runs, rows):
    """Returns --virtual-costs by row. Experts by neuron have costs of their own besides those of whole experts."""
    whole = runs.measure(ROWS[0])
    measured = {}
    for name, pack, preset, share, policies in rows:
        if pack != "q4" and preset not in measured:
            measured[preset] = runs.measure((name, pack, preset, share, policies))
    return {row[0]: ",".join(["@" + whole] + (["@" + measured[row[2]]] if row[2] in measured else [])) for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "sluice-realtime"))
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link-gbps", type=float, default=1.5)
    parser.add_argument("--rows", default="", help="names with ; between, the base `resident` is always there")
    parser.add_argument("--prefix", default="", help="before each command")
    parser.add_argument("--keep-costs", action="store_true", help="takes the costs of an earlier call")
    o = parser.parse_args()
    os.makedirs(o.work, exist_ok=True)
    # Daemons of this run only, whatever else runs on the machine.
    os.environ.setdefault("SLUICE_RUNTIME_DIR", o.work)
    wanted = [name.strip() for name in o.rows.split(";") if name]
    unknown = set(wanted) - {row[0] for row in ROWS}
    if unknown:
        parser.error(f"no row is called {', '.join(sorted(unknown))}; there are {'; '.join(row[0] for row in ROWS)}")
    rows = [row for i, row in enumerate(ROWS) if i == 0 or not wanted or row[0] in wanted]
    runs = Runs(o)
    runs.record()
    costs = costs_of(runs, rows)
    virtual = {row[0]: runs.timed(row, "virtual", "--virtual-costs", costs[row[0]]) for row in rows}
    real = {row[0]: [] for row in rows}
    for _ in range(o.rounds):
        for row in rows:
            real[row[0]].append(runs.timed(row, "real"))
    for file in sorted({f for c in costs.values() for f in c.split(",")}):
        print(f"{os.path.basename(file)}: " + ", ".join(open(file[1:]).read().split("\n")[1:-1]))
    return report(rows, virtual, real)


def report(rows, virtual, real):
    def median(name, key):
        return statistics.median(run[key] for run in real[name])

    base = rows[0][0]
    worst = 0
    print(f"\n| row | virtual ms | real ms (least to most) | virtual over real | speed of {base}, virtual | real | "
          f"differs (mark {100 * MARK:.0f} %) | hits % virtual, real | link MiB a token virtual, real | "
          "waiting ms virtual, real |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, *_ in rows:
        v = virtual[name]
        ms = [run["tpot_ms"] for run in real[name]]
        real_ms = statistics.median(ms)
        foretold = virtual[base]["tpot_ms"] / v["tpot_ms"]
        found = median(base, "tpot_ms") / real_ms
        differs = foretold / found - 1
        worst = max(worst, abs(differs))
        print(f"| {name} | {v['tpot_ms']:.1f} | {real_ms:.1f} ({min(ms):.1f} to {max(ms):.1f}) | "
              f"{100 * (v['tpot_ms'] / real_ms - 1):+.1f} % | {foretold:.3f} | {found:.3f} | {100 * differs:+.1f} % | "
              f"{100 * v['hit_rate']:.1f}, {100 * median(name, 'hit_rate'):.1f} | "
              f"{v['link_bytes_per_token'] / 2**20:.1f}, {median(name, 'link_bytes_per_token') / 2**20:.1f} | "
              f"{v['stall_ms']:.1f}, {median(name, 'stall_ms'):.1f} |")  # fmt: skip
    return 0 if worst <= MARK else 1


if __name__ == "__main__":
    sys.exit(main())
