"""kill -9 of weightd and inferd at random points under load, over and over, with a table at the end.

  kill_loop.py [--kills N] [--sim-kills N] [--cuda-kills N] [--pair-kills N] [--in-place-kills N] [--seed N]
               [--clients N] [--json FILE]

Every start draws a budget for weightd, and for inferd a device, host or sim, the latter with a budget, a link and a
transport; --sim-kills kills pairs on sim alone, where the device that computes misses is drawn too, --cuda-kills pairs on
cuda: on the fake CUDA library (tests/cuda_fake), with a seed of its scheduler drawn for each daemon, or on the module in
SLUICE_CUDA_MODULE. One kill in four does not wait for the next token: it comes while a daemon starts.

Client threads stream greedy answers all the while. Every answer that comes is compared with the uninterrupted
one; a token that differs, a stream that neither goes on nor ends within 5 s, and anything that a settled pair
of daemons holds too much (descriptors, mappings of dead segments and slabs, sessions, leases) is counted, and what the
fake's checks find. Exit code 0 only if nothing was. SLUICE_STRESS=full makes it 200 kills, 200 on sim and 200 on cuda.
Programs and stubs as for the end-to-end tests.
"""
import argparse
import json
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e", "models"))
import gguf_writer
from kill_clients import HANG, OWN_TIME, Client, Findings
from kill_service import FAKE_CUDA, MIB, Service, small_budget
import daemons
import harness


def await_tokens(clients, findings, text):
    """Waits until one of the clients has a new token."""
    seen = [client.tokens for client in clients]
    began = OWN_TIME.seconds
    daemons.wait_until(lambda: any(c.tokens > s for c, s in zip(clients, seen)), "a token " + text)
    seconds = OWN_TIME.seconds - began
    findings.gap(seconds, "no token " + text)
    return seconds


def kill_either(service, clients, kills, findings):
    """Kills weightd or its one inferd. Returns {daemon: [seconds to the next token]}."""
    back = {"weightd": [], "inferd": []}
    held = {}
    for i in range(kills):
        time.sleep(service.random.uniform(0, 0.15))  # a random point is the purpose
        name = service.random.choice(("weightd", "inferd"))
        daemon = service.weightd if name == "weightd" else service.inferds[0]
        daemon.stop(signal.SIGKILL)
        findings.count("kills of " + name)
        if name == "weightd":
            service.start_weightd(small_budget(service.random))
        else:
            service.start_inferd(0)
        if i < kills - 1 and service.random.random() < 0.25:
            findings.count("kills before the next token")
            continue
        back[name].append(await_tokens(clients, findings, f"after kill {i}, of {name}"))
        if i % 10 == 9 or i == kills - 1:
            for client in clients:
                client.pause()
            service.check_settled(held)
            for client in clients:
                client.resume()
    return back


def kill_one_of_two(service, victims, others, kills, findings):
    """Two packs, two inferds; the first dies over and over, the second must not notice."""
    back = {"first of two inferds": []}
    held = {}
    for i in range(kills):
        await_tokens(victims, findings, f"of the first before kill {i}")
        time.sleep(service.random.uniform(0, 0.1))
        service.inferds[0].stop(signal.SIGKILL)
        await_tokens(others, findings, f"of the second after kill {i}")
        service.start_inferd(0)
        back["first of two inferds"].append(await_tokens(victims, findings, f"after kill {i}"))
    for client in victims + others:
        client.pause()
    service.check_settled(held)
    return back


def run(scenario, packs, budget, kills, args, findings, only=None):
    """Starts the daemons, computes the expected responses, and runs `scenario`. Returns its rows of the table."""
    work = daemons.tempfile.mkdtemp(prefix="sluice-kill-")
    service = Service(work, packs, findings, random.Random(args.seed), only)
    cases = daemons.greedy_cases()[:6]
    clients = []
    try:
        service.start_weightd(budget)
        answers = []
        for index in range(len(packs)):
            service.start_inferd(index)
            service.inferds[index].wait_for(r"info serving\n")
            answers.append(service.answers(index, cases))
        for i in range(args.clients):
            index = i % len(packs)
            clients.append(Client(service.target(index), answers[index], args.seed + i, findings, index > 0))
        for client in clients:
            client.start()
        if len(packs) == 1:
            back = kill_either(service, clients, kills, findings)
        else:
            back = kill_one_of_two(service, clients[0::2], clients[1::2], kills, findings)
        for client in clients:
            client.stop()
        service.stop()
    finally:
        for client in clients:
            client.stopping.set()
            client.go.set()
        service.kill_all()
        daemons.shutil.rmtree(work, ignore_errors=True)
    return [(scenario, name, times) for name, times in back.items() if times]


def table(rows, findings):
    lines = ["| load | killed | times | next token: median | longest |", "|---|---|---|---|---|"]
    for scenario, name, times in rows:
        times = sorted(times)
        lines.append(
            f"| {scenario} | {name} | {len(times)} | {times[len(times) // 2]:.2f} s | {times[-1]:.2f} s |"
        )
    counts = ", ".join(f"{number} {what}" for what, number in sorted(findings.counts.items()))
    lines += [
        "",
        f"{counts}; wrong tokens: {len(findings.wrong)}, leaks: {len(findings.leaks)}, "
        f"hangs over {HANG:.0f} s: {len(findings.hangs)} (longest silence {findings.longest:.2f} s)",
    ]
    return "\n".join(lines)


def sluice(*args, **environment):
    return daemons.subprocess.run(
        [os.path.join(daemons.BIN, "sluice"), *args], check=True, stdout=daemons.subprocess.PIPE,
        stderr=daemons.subprocess.DEVNULL, env={**os.environ, **environment}, text=True,
    ).stdout  # fmt: skip


def make_packs(folder):
    """A pack of the sample model, and one in place over a GGUF file of it."""
    pack = os.path.join(folder, "bf16.pack")
    sluice("pack", daemons.SAMPLE, "--out", pack, "--bits", "bf16", "--json")
    file = os.path.join(folder, "sample.gguf")
    with open(os.path.join(daemons.SAMPLE, "config.json")) as config:
        keys, tensors = gguf_writer.mixtral(
            json.load(config), harness.read_safetensors(os.path.join(daemons.SAMPLE, "model.safetensors"))
        )
    gguf_writer.write(file, keys, tensors, gguf_writer.Q8_0)
    cache = {"SLUICE_CACHE_DIR": os.path.join(folder, "cache"), "SLUICE_RUNTIME_DIR": folder}
    sluice("run", "--model", file, "--token-ids", "1,2", "-n", "1", **cache)
    (index,) = json.loads(sluice("packs", "list", "--json", **cache))
    return [pack, index["path"]]


def main():
    full = os.environ.get("SLUICE_STRESS") == "full"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200 if full else 4, help="of either daemon")
    parser.add_argument("--sim-kills", type=int, default=200 if full else 0, help="of either daemon, on sim alone")
    cuda = 200 if full else 2
    parser.add_argument(
        "--cuda-kills", type=int, default=cuda if os.path.exists(FAKE_CUDA) else 0, help="of either daemon, on cuda"
    )
    parser.add_argument("--pair-kills", type=int, default=50 if full else 2, help="of one of two inferds")
    parser.add_argument(
        "--in-place-kills", type=int, default=200 if full else 2, help="of either daemon, over a GGUF file in place"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", help="a file for the figures")
    args = parser.parse_args()
    print(f"seed {args.seed}, {args.kills} kills, {args.pair_kills} of one of two inferds", flush=True)

    OWN_TIME.start()
    findings = Findings()
    shared_before = set(os.listdir("/dev/shm"))
    folder = daemons.tempfile.mkdtemp(prefix="sluice-kill-")
    try:
        packs = make_packs(folder)
        source = random.Random(args.seed)
        rows = []
        if args.kills > 0:
            rows += run("one inferd", packs[:1], small_budget(source), args.kills, args, findings)
        if args.sim_kills > 0:
            rows += run("one inferd, on sim", packs[:1], small_budget(source), args.sim_kills, args, findings, "sim")
        if args.in_place_kills > 0:
            rows += run("one inferd, in place", packs[1:], small_budget(source), args.in_place_kills, args, findings)
        if not os.path.exists(FAKE_CUDA):
            print("cuda: not built, nothing was killed on it", flush=True)
        if args.cuda_kills > 0:
            rows += run("one inferd, on cuda", packs[:1], small_budget(source), args.cuda_kills, args, findings, "cuda")
        if args.pair_kills > 0:
            rows += run("two packs, two inferds", packs, 24 * MIB, args.pair_kills, args, findings)
    finally:
        daemons.shutil.rmtree(folder, ignore_errors=True)
    left = {name for name in set(os.listdir("/dev/shm")) - shared_before if "sluice" in name}
    if left:
        findings.add("leaks", f"/dev/shm has {left}")
    print(table(rows, findings))
    for what in ("wrong", "leaks", "hangs"):
        for text in getattr(findings, what)[:20]:
            print(f"{what}: {text}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"rows": rows, "counts": findings.counts, "longest": findings.longest}, file)
    # A hang is judged in the full run only: CI's machine may stand still for seconds.
    return 1 if findings.wrong or findings.leaks or (full and findings.hangs) else 0


if __name__ == "__main__":
    sys.exit(main())
