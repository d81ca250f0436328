"""The daemons that kill_loop.py kills: their start, and their allowed resources once all is quiet."""
import os
import re
import signal

import kill_clients  # adds the end-to-end tests' folder to the path
import daemons
from daemons import grpc, inference_pb2_grpc, weights_pb2, weights_pb2_grpc

TOKENS = 120
CUDA_TOKENS = 24  # the fake makes some 15 a second of them
FAKE_CUDA = os.path.join(daemons.BIN, "..", "tests", "libsluice_cuda_fake.so")
MIB = 1 << 20


def small_budget(random_source):
    """From little above a session's reserve to all of the sample."""
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
    """Shareable device memory that a process has mapped, by the numbers of the memory files that represent it on sim
    and on the fake."""
    with open(f"/proc/{pid}/maps") as file:
        lines = [line.split(maxsplit=5) for line in file]
    return {fields[4] for fields in lines if len(fields) > 5 and re.match("/memfd:(sluice-slab|fake cuda)", fields[5])}


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"RssAnon:\s+(\d+)", file.read()).group(1))


class Service:
    """One weightd, one inferd per pack, all in one folder; each can be killed and started again."""

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
        self.weightd_options = []  # of the next starts, beside those drawn
        self.inferd_options = []
        self.clock = None  # a daemons.WallClock that later starts follow
        self.threads = 2  # of inferd

    def path(self, name):
        return os.path.join(self.folder, name)

    def environment(self):
        """A starting daemon's environment: its own seed of the fake's scheduler, and the wall clock to follow."""
        seed = self.random.randrange(0, 100)
        return {
            "SLUICE_CUDA_MODULE": FAKE_CUDA, **os.environ,
            **(self.clock.environment if self.clock else {}),
            "SLUICE_FAKE_CUDA": f"seed={seed} reports={self.path('reports')}",
        }  # fmt: skip

    def start_weightd(self, budget):
        self.generation += 1
        self.budget = budget
        arguments = ["--socket", self.path("w.sock"), "--dram-budget", str(budget), "--preload", "off"]
        for pack in self.packs:
            arguments += ["--pack", pack]
        arguments += self.weightd_options
        self.weightd = daemons.Daemon(
            "weightd", arguments, self.path(f"w{self.generation}.log"), env=self.environment()
        )

    def draw_device(self):
        """The flags of the next inferd's device, and its name."""
        return random_device(self.random, self.only)

    def start_inferd(self, index):
        self.generation += 1
        flags, device = self.draw_device()
        self.findings.count("starts on " + device)
        self.inferds[index] = daemons.Daemon(
            "inferd",
            ["--pack", self.packs[index], "--weightd", self.path("w.sock"), "--listen", self.target(index),
             "--admin", "unix:" + self.path(f"a{index}.sock"), "--threads", str(self.threads), "--context", "512", *flags,
             *self.inferd_options],
            self.path(f"i{self.generation}.log"), env=self.environment(),
        )  # fmt: skip

    def target(self, index):
        return "unix:" + self.path(f"i{index}.sock")

    def stats(self):
        with grpc.insecure_channel("unix:" + self.path("w.sock")) as channel:
            stub = weights_pb2_grpc.WeightServiceStub(channel)
            return stub.GetStats(weights_pb2.GetStatsRequest(), timeout=daemons.PATIENCE, wait_for_ready=True)

    def answers(self, index, cases):
        """The uninterrupted responses."""
        result = []
        with grpc.insecure_channel(self.target(index)) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for case in cases:
                ids = []
                stream = stub.GenerateStream(
                    kill_clients.request(case["prompt_ids"], self.tokens), timeout=daemons.PATIENCE, wait_for_ready=True
                )
                for response in stream:
                    ids.extend(response.delta.token_ids)
                if len(ids) != self.tokens:
                    raise AssertionError(f"an uninterrupted answer has {len(ids)} tokens")
                result.append((case["prompt_ids"], ids))
        return result

    def check_settled(self, held):
        """Checks that without requests the kills leave nothing behind. `held`: (descriptors, anonymous KiB) by process."""
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
