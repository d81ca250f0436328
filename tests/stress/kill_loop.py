"""kill -9 of weightd and inferd at random points under load, over and over, with a table at the end.

  kill_loop.py [--kills N] [--sim-kills N] [--cuda-kills N] [--pair-kills N] [--seed N] [--clients N] [--json FILE]

Every start draws a budget for weightd, and for inferd a device, host or sim, the latter with a budget, a link and a
transport; --sim-kills are of pairs on sim alone, where who computes misses is drawn too, --cuda-kills of pairs on cuda: on
the fake CUDA library (tests/cuda_fake), with a seed of its scheduler drawn for each daemon, or on what
SLUICE_CUDA_MODULE names. One kill in four does not wait for the next token: it comes while a daemon starts.

Client threads stream greedy answers all the while. Every answer that comes is compared with the uninterrupted
one; a token that differs, a stream that neither goes on nor ends within 5 s, and anything that a settled pair
of daemons holds too much (descriptors, mappings of dead segments and slabs, sessions, leases) is counted, and what the
fake's checks find. Exit code 0 only if nothing was. SLUICE_STRESS=full makes it 200 kills, 200 on sim and 200 on cuda.
Programs and stubs as for the end-to-end tests.
"""
import argparse
import collections
import json
import os
import random
import re
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from daemons import grpc, inference_pb2_grpc, weights_pb2, weights_pb2_grpc  # noqa: E402

TOKENS = 120
CUDA_TOKENS = 24  # the fake makes some 15 a second of them
FAKE_CUDA = os.path.join(daemons.BIN, "..", "tests", "libsluice_cuda_fake.so")
HANG = 5.0  # seconds
MIB = 1 << 20


def small_budget(random_source):
    """From little above what a session is promised to all of the sample."""
    return int(random_source.uniform(3.2, 20) * MIB)


def random_device(random_source, only):
    """The flags of a device, and its name. `only`: sim, cuda, or none for either of host and sim."""
    if only is None and random_source.random() < 0.5:
        return ["--device", "host"], "host"
    transport = random_source.choice(["push", "pull"])
    miss = ["--policy", "expert_miss=" + random_source.choice(["load", "cpu", "balance"])] if only else []
    if only == "cuda":
        budget = f"{random_source.uniform(5, 50):.1f}%"
        return ["--device", "cuda", "--device-budget", budget, "--transport", transport, *miss], "cuda, " + transport
    return [
        "--device", "sim", "--device-budget", f"{random_source.uniform(5, 50):.1f}%",
        "--link-gbps", f"{random_source.uniform(0.5, 8):.2f}",
        "--link-latency-us", str(random_source.randrange(0, 50)),
        "--transport", transport, *miss,
    ], "sim, " + transport  # fmt: skip


def segments_mapped(pid):
    """Segments of weightd's arena that a process has mapped."""
    with open(f"/proc/{pid}/maps") as file:
        return len({line.split()[4] for line in file if "memfd:sluice-segment" in line})


def slabs_mapped(pid):
    """Device memory that others can be lent and a process has mapped, by the numbers of the memory files that it is on
    sim and on the fake."""
    with open(f"/proc/{pid}/maps") as file:
        lines = [line.split(maxsplit=5) for line in file]
    return {fields[4] for fields in lines if len(fields) > 5 and re.match("/memfd:(sluice-slab|fake cuda)", fields[5])}


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"RssAnon:\s+(\d+)", file.read()).group(1))


class OwnTime(threading.Thread):
    """Seconds in which this program could run: a machine that stands still is nobody's hang."""

    TICK = 0.02
    MOST = 0.25  # that a tick may count for

    def __init__(self):
        super().__init__(daemon=True)
        self.seconds = 0.0

    def run(self):
        last = time.monotonic()
        while True:
            time.sleep(self.TICK)
            now = time.monotonic()
            self.seconds += min(now - last, self.MOST)
            last = now


OWN_TIME = OwnTime()


class Findings:
    """What went wrong, and what was counted."""

    def __init__(self):
        self.lock = threading.Lock()
        self.wrong = []
        self.hangs = []
        self.leaks = []
        self.counts = collections.Counter()
        self.longest = 0.0

    def add(self, what, text):
        with self.lock:
            getattr(self, what).append(text)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def gap(self, seconds, text):
        with self.lock:
            self.longest = max(self.longest, seconds)
            if seconds > HANG:
                self.hangs.append(f"{text}: {seconds:.1f} s")


class Client(threading.Thread):
    """Streams one answer after the other until told to stop; pauses when asked to."""

    def __init__(self, target, answers, seed, findings, must_answer=False):
        super().__init__(daemon=True)
        self.target = target
        self.answers = answers
        self.random = random.Random(seed)
        self.findings = findings
        self.must_answer = must_answer  # its inferd is never killed: an error is wrong
        self.stopping = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.idle = threading.Event()
        self.tokens = 0
        self.last_event = OWN_TIME.seconds

    def run(self):
        while not self.stopping.is_set():
            if not self.go.is_set():
                self.idle.set()
                self.go.wait(1)
                continue
            self.idle.clear()
            self.stream(self.random.choice(self.answers))
        self.idle.set()

    def stream(self, answer):
        prompt, expected = answer
        got = []
        weightd_kills = self.findings.counts["kills of weightd"]
        self.last_event = OWN_TIME.seconds
        try:
            with grpc.insecure_channel(self.target) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                for response in stub.GenerateStream(request(prompt, len(expected)), timeout=daemons.PATIENCE):
                    self.event()
                    got.extend(response.delta.token_ids)
                    self.tokens += len(response.delta.token_ids)
        except grpc.RpcError as error:
            self.event()
            self.findings.count("streams ended " + error.code().name)
            if self.must_answer or error.code() != grpc.StatusCode.UNAVAILABLE:
                self.findings.add("wrong", f"{self.target}: {error.code().name}: {error.details()}")
            if got != expected[: len(got)]:
                self.findings.add("wrong", f"{len(got)} tokens before the end differ")
            if not got:
                time.sleep(0.02)  # its inferd is away: as clients do
            return
        if self.findings.counts["kills of weightd"] != weightd_kills:
            self.findings.count("answers continued over weightd's death")
        self.findings.count("answers complete")
        if got != expected:
            self.findings.add("wrong", f"a whole answer differs: {got} is not {expected}")

    def event(self):
        now = OWN_TIME.seconds
        self.findings.gap(now - self.last_event, "a stream was silent")
        self.last_event = now

    def pause(self):
        self.go.clear()
        if not self.idle.wait(daemons.PATIENCE):
            self.findings.add("hangs", "a stream did not end when asked to pause")

    def resume(self):
        self.last_event = OWN_TIME.seconds
        self.go.set()

    def stop(self):
        self.stopping.set()
        self.go.set()
        self.join(daemons.PATIENCE)


def request(prompt, tokens):
    message = daemons.stream_request(ids=prompt, tokens=tokens)
    message.spec.sampling.temperature = 0
    message.spec.stopping.ignore_eos = True
    message.spec.output.return_token_ids = True
    return message


class Service:
    """One weightd, one inferd a pack, all in one folder; each can be killed and started again."""

    def __init__(self, folder, packs, findings, random_source, only=None):
        self.folder = folder
        self.packs = packs
        self.findings = findings
        self.random = random_source
        self.only = only
        self.tokens = CUDA_TOKENS if only == "cuda" else TOKENS
        self.weightd = None
        self.inferds = [None] * len(packs)
        self.generation = 0
        self.budget = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def environment(self):
        """Of a daemon that starts: its own seed of the fake's scheduler."""
        seed = self.random.randrange(0, 100)
        return {
            "SLUICE_CUDA_MODULE": FAKE_CUDA, **os.environ,
            "SLUICE_FAKE_CUDA": f"seed={seed} reports={self.path('reports')}",
        }  # fmt: skip

    def start_weightd(self, budget):
        self.generation += 1
        self.budget = budget
        arguments = ["--socket", self.path("w.sock"), "--dram-budget", str(budget)]
        for pack in self.packs:
            arguments += ["--pack", pack]
        self.weightd = daemons.Daemon(
            "weightd", arguments, self.path(f"w{self.generation}.log"), env=self.environment()
        )

    def start_inferd(self, index):
        self.generation += 1
        flags, device = random_device(self.random, self.only)
        self.findings.count("starts on " + device)
        self.inferds[index] = daemons.Daemon(
            "inferd",
            ["--pack", self.packs[index], "--weightd", self.path("w.sock"), "--listen", self.target(index),
             "--admin", "unix:" + self.path(f"a{index}.sock"), "--threads", "2", "--context", "512", *flags],
            self.path(f"i{self.generation}.log"), env=self.environment(),
        )  # fmt: skip

    def target(self, index):
        return "unix:" + self.path(f"i{index}.sock")

    def stats(self):
        with grpc.insecure_channel("unix:" + self.path("w.sock")) as channel:
            stub = weights_pb2_grpc.WeightServiceStub(channel)
            return stub.GetStats(weights_pb2.GetStatsRequest(), timeout=daemons.PATIENCE, wait_for_ready=True)

    def answers(self, index, cases):
        """The uninterrupted ones."""
        result = []
        with grpc.insecure_channel(self.target(index)) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for case in cases:
                ids = []
                stream = stub.GenerateStream(
                    request(case["prompt_ids"], self.tokens), timeout=daemons.PATIENCE, wait_for_ready=True
                )
                for response in stream:
                    ids.extend(response.delta.token_ids)
                if len(ids) != self.tokens:
                    raise AssertionError(f"an uninterrupted answer has {len(ids)} tokens")
                result.append((case["prompt_ids"], ids))
        return result

    def check_settled(self, held):
        """With nobody asking, nothing is left of the kills. `held`: (descriptors, anonymous KiB) by process."""
        live = [daemon.process.pid for daemon in self.inferds]

        def settled():
            stats = self.stats()
            return len(stats.sessions) == len(live) and stats.retired_bytes == 0 and stats.in_flight_bytes == 0

        try:
            daemons.wait_until(settled, "dead sessions to end")
        except AssertionError as error:
            self.findings.add("leaks", f"{error}: {self.stats()}")
            return
        stats = self.stats()
        if stats.segment_bytes > self.budget:
            self.findings.add("leaks", f"segments of {stats.segment_bytes} bytes in a budget of {self.budget}")
        for session in stats.sessions:
            if session.outstanding != 0:
                self.findings.add("leaks", f"{session.outstanding} requests of an idle session are outstanding")
        for pid in live:
            if segments_mapped(pid) > stats.segments:
                self.findings.add("leaks", f"{segments_mapped(pid)} segments mapped, {stats.segments} exist")
        lent = set().union(*(slabs_mapped(pid) for pid in live))
        dead = slabs_mapped(self.weightd.process.pid) - lent
        if dead:
            self.findings.add("leaks", f"weightd has {len(dead)} slabs mapped that no living inferd has")
        base = {self.weightd.process.pid: stats.segments, **{pid: 0 for pid in live}}
        for pid, segments in base.items():
            now = (fd_count(pid) - segments, anonymous_kib(pid))
            before = held.setdefault(pid, now)
            if now[0] > before[0] + 4:  # gRPC keeps a few connections for a moment
                self.findings.add("leaks", f"process {pid} has {now[0]} descriptors, had {before[0]}")
            if now[1] > before[1] + 32 * 1024:
                self.findings.add("leaks", f"process {pid} has {now[1]} KiB of its own, had {before[1]}")

    def stop(self):
        for daemon in [*self.inferds, self.weightd]:
            code = daemon.stop(signal.SIGTERM)
            if code != 0:
                self.findings.add("leaks", f"exit code {code} on SIGTERM: {daemon.text()[-500:]}")
        left = [name for name in os.listdir(self.folder) if name.endswith(".sock") or name.endswith(".side")]
        if left:
            self.findings.add("leaks", f"sockets are left: {left}")
        if os.path.exists(self.path("reports")):
            with open(self.path("reports")) as file:
                for line in file:
                    if ": none (" not in line:
                        self.findings.add("wrong", "the fake's checks: " + line.rstrip())

    def kill_all(self):
        for daemon in [*self.inferds, self.weightd]:
            if daemon is not None and daemon.process.poll() is None:
                daemon.stop(signal.SIGKILL)


def await_tokens(clients, findings, text):
    """Waits until one of them has a new token."""
    seen = [client.tokens for client in clients]
    began = OWN_TIME.seconds
    daemons.wait_until(lambda: any(c.tokens > s for c, s in zip(clients, seen)), "a token " + text)
    seconds = OWN_TIME.seconds - began
    findings.gap(seconds, "no token " + text)
    return seconds


def kill_either(service, clients, kills, findings):
    """One inferd, and either daemon dies. Returns {daemon: [seconds to the next token]}."""
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
    """Starts the daemons, finds the right answers, and lets `scenario` kill. Its rows of the table."""
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


def make_packs(folder):
    packs = []
    for bits in ("bf16", "q8"):
        packs.append(os.path.join(folder, bits + ".pack"))
        daemons.subprocess.run(
            [os.path.join(daemons.BIN, "sluice"), "pack", daemons.SAMPLE, "--out", packs[-1], "--bits", bits, "--json"],
            check=True, stdout=daemons.subprocess.DEVNULL, stderr=daemons.subprocess.DEVNULL,
        )  # fmt: skip
    return packs


def main():
    full = os.environ.get("SLUICE_STRESS") == "full"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200 if full else 10, help="of either daemon")
    parser.add_argument("--sim-kills", type=int, default=200 if full else 0, help="of either daemon, on sim alone")
    cuda = 200 if full else 20
    parser.add_argument(
        "--cuda-kills", type=int, default=cuda if os.path.exists(FAKE_CUDA) else 0, help="of either daemon, on cuda"
    )
    parser.add_argument("--pair-kills", type=int, default=50 if full else 4, help="of one of two inferds")
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
