"""kill -9 of weightd while it holds most of the machine's memory: its successor must come up, and nothing else die.

  memory_kills.py [--kills 20] [--share 0.6] [--seed N]

Packs random weights larger than the budget, fills the budget by a warm set while an answer streams, and kills
weightd at a random level. Prints a table. Exit code 1 after an out-of-memory kill, a failed start or a wrong end.
Run by hand: it needs the machine for itself, and disk for the pack.
"""
import argparse
import os
import random
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import kill_loop  # noqa: E402
from kill_loop import daemons  # noqa: E402
from kill_loop import grpc, weights_pb2, weights_pb2_grpc  # noqa: E402

EXPERT_BYTES = 3 * 4096 * 14336 * 2  # an expert of mixtral-8x7b in bf16
EXPERTS = 8


def meminfo(name):
    with open("/proc/meminfo") as file:
        return int(re.search(name + r":\s+(\d+)", file.read()).group(1)) * 1024


def oom_kills():
    with open("/proc/vmstat") as file:
        return int(re.search(r"oom_kill (\d+)", file.read()).group(1))


def warm(service, layers):
    """Requests every expert."""
    request = weights_pb2.SetWarmSetRequest(dense=True)
    request.pack.path = service.packs[0]
    for layer in range(layers):
        for expert in range(EXPERTS):
            request.experts.add(layer=layer, expert=expert)
    with grpc.insecure_channel("unix:" + service.path("w.sock")) as channel:
        stub = weights_pb2_grpc.WeightServiceStub(channel)
        stub.SetWarmSet(request, timeout=daemons.PATIENCE, wait_for_ready=True)


def loop(service, layers, budget, kills, source):
    """Rows: (segments at the kill, bytes; seconds until the next weightd serves; least memory available)."""
    rows = []
    for i in range(kills):
        warm(service, layers)
        level = source.uniform(0.2, 0.98) * budget
        end = time.monotonic() + 60
        held = 0
        least = meminfo("MemAvailable")
        while held < level and time.monotonic() < end:
            held = service.stats().segment_bytes
            least = min(least, meminfo("MemAvailable"))
            time.sleep(0.05)
        service.weightd.stop(kill_loop.signal.SIGKILL)
        began = time.monotonic()
        service.start_weightd(budget)
        service.weightd.wait_for("weightd serves")
        back = time.monotonic() - began
        daemons.wait_until(lambda: len(service.stats().sessions) == 1, "inferd to come back")
        least = min(least, meminfo("MemAvailable"))
        rows.append((held, back, least))
        print(f"kill {i}: {held / 2**30:.1f} GiB held, next serves after {back:.2f} s, "
              f"least available {least / 2**30:.1f} GiB", flush=True)  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.6, help="of the machine's memory")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    budget = int(args.share * meminfo("MemTotal"))
    layers = budget // (EXPERTS * EXPERT_BYTES) + 1
    folder = daemons.tempfile.mkdtemp(prefix="sluice-memory-")
    findings = kill_loop.Findings()
    source = random.Random(args.seed)
    pack = os.path.join(folder, "big.pack")
    service = kill_loop.Service(folder, [pack], findings, source)
    before = oom_kills()
    try:
        daemons.subprocess.run(
            [os.path.join(daemons.BIN, "sluice"), "synth", "--shape", "mixtral-8x7b", "--layers", str(layers),
             "--vocab", "2048", "--out", pack, "--json"],
            check=True, stdout=daemons.subprocess.DEVNULL, stderr=daemons.subprocess.DEVNULL,
        )  # fmt: skip
        service.start_weightd(budget)
        service.start_inferd(0)
        service.inferds[0].wait_for(r"info serving\n")
        rows = loop(service, layers, budget, args.kills, source)
        service.stop()
    finally:
        service.kill_all()
        daemons.shutil.rmtree(folder, ignore_errors=True)
    gib = 2**30
    print("| budget | kills | held at the kill | next weightd serves: median | longest | least available | OOM |")
    print("|---|---|---|---|---|---|---|")
    backs = sorted(row[1] for row in rows)
    print(f"| {budget / gib:.1f} GiB of {meminfo('MemTotal') / gib:.1f} | {len(rows)} | "
          f"{min(r[0] for r in rows) / gib:.1f} to {max(r[0] for r in rows) / gib:.1f} GiB | "
          f"{backs[len(backs) // 2]:.2f} s | {backs[-1]:.2f} s | {min(r[2] for r in rows) / gib:.1f} GiB | "
          f"{oom_kills() - before} |")  # fmt: skip
    for text in findings.leaks:
        print("leak:", text)
    return 1 if oom_kills() != before or findings.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
