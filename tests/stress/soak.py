"""A long run of both daemons under mixed clients and every disturbance that this machine allows.

  soak.py [--seconds N] [--state FILE [--resume]] [--seed N] [--clients N] [--only sim|cuda] [--json FILE]

Two hours by default, some seconds with SLUICE_STRESS=ci, ten minutes with SLUICE_STRESS=full in ctest (--cut). With --state
the run's figures are saved after each cycle, and --resume continues them up to --seconds, which is then the sum of all parts.

Clients over HTTP and gRPC ask for streams, answers, chats, completions and scored texts, greedy and sampled by seed; they
cancel, read slowly, or not at all. Every answer is compared with that of an undisturbed run. Cycles of new daemons take
turns: inferd dies, weightd dies, none dies, both die and the pack is replaced. Within a cycle the seed draws disturbances:
kills, starts with another preset or device, resizes, a truncated file, corrupted extents, a disk that does not answer, a
full one and a wall clock set forth and back. An error is allowed only to a request that overlaps a disturbance which explains it.

Between disturbances the clients pause, and the resources of both idle daemons are sampled. Exit code 0 only if no
token was wrong, no request went without an end for 60 s, nothing unexplained failed, and no fitted slope lies above its mark
(soak_fit.py) by three standard errors.
"""
import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import unittest

from kill_clients import OWN_TIME, Findings
from kill_loop import sluice
from kill_service import MIB, Service
from soak_clients import LIMIT, Asker, Endpoint, Failed, all_asks
import daemons
import soak_fit
from daemons import admin_pb2, admin_pb2_grpc, grpc
from stuck_disk_test import Throttle

BUDGET = 14 * MIB  # about half of the sample's experts
TOKENS = 48
CYCLES = ("inferd", "weightd", "none", "both")
# The tokens of these presets are those of `exact` (`sluice preset show`); the devices agree on the sample's greedy ones.
PRESETS = ("exact", "auto", "layerwise", "ondemand", "lru_prefetch", "static_hot", "resident")
UNAVAILABLE = {"UNAVAILABLE", "503", "lost", "event"}
DAMAGE = {"DATA_LOSS", "500", "502", "event"} | UNAVAILABLE
# Codes that each disturbance may end a request with; resizes, a full disk and a set clock may end none.
ALLOWED = {
    "kill of inferd": UNAVAILABLE, "kill of weightd": UNAVAILABLE, "preset change": UNAVAILABLE,
    "corruption": DAMAGE, "truncation": DAMAGE, "replaced pack": DAMAGE | {"FAILED_PRECONDITION", "NOT_FOUND"},
    "stuck disk": {"DEADLINE_EXCEEDED", "504", "event"} | UNAVAILABLE, "resize": set(), "full disk": set(),
    "clock jump": set(),
}  # fmt: skip


class Log:
    """When which disturbance lasted, in seconds of time.monotonic()."""

    def __init__(self):
        self.spans = []

    def begin(self, name):
        span = [name, time.monotonic(), None]
        self.spans.append(span)
        return span

    def during(self, began):
        return {name for name, _, end in self.spans if end is None or end >= began}


def other_model(folder):
    """A copy of the sample model in which experts 0 and 1 of every layer are exchanged: the same shapes, other answers."""
    path = os.path.join(folder, "other")
    shutil.copytree(daemons.SAMPLE, path)
    file = os.path.join(path, "model.safetensors")
    os.chmod(file, 0o644)
    with open(file, "rb") as stream:
        data = bytearray(stream.read())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name, tensor in header.items():
        other = name.replace(".experts.0.", ".experts.1.")
        if other != name:
            a, b = (slice(*(8 + size + at for at in t["data_offsets"])) for t in (tensor, header[other]))
            data[a], data[b] = data[b], data[a]
    with open(file, "wb") as stream:
        stream.write(data)
    return path


class Soak:
    """The state of a run, and its disturbances."""

    def __init__(self, options, state):
        self.options, self.state = options, state
        self.findings = Findings()
        self.folder = daemons.tempfile.mkdtemp(prefix="sluice-soak-", dir="/tmp")
        self.pack, self.other = (os.path.join(self.folder, name) for name in ("pack", "other.pack"))
        self.asks = all_asks(daemons.greedy_cases()[:4], TOKENS)
        self.expected = []  # of each pack: {ask: answer}
        self.lock = threading.Lock()
        self.longest = 0.0
        self.skipped = collections.Counter()
        self.service = self.endpoint = None
        self.full = None

    # Reference answers.

    def make_packs(self):
        sluice("pack", daemons.SAMPLE, "--out", self.pack, "--bits", "bf16", "--json")
        sluice("pack", other_model(self.folder), "--out", self.other, "--bits", "bf16", "--json")
        for pack in (self.pack, self.other):
            self.open_service("of-" + os.path.basename(pack), pack, random.Random(0))
            self.service.start_weightd(64 * MIB)
            self.start_inferd(preset="exact", device=["--device", "host"])
            self.service.inferds[0].wait_for(r"info serving\n")
            self.expected.append({ask: self.endpoint.ask(ask)[0] for ask in self.asks})
            self.service.stop()
        same = sum(self.expected[0][ask] == self.expected[1][ask] for ask in self.asks)
        if same > len(self.asks) // 4:
            raise AssertionError(f"the packs agree on {same} of {len(self.asks)} answers")
        by_key = collections.defaultdict(list)
        for ask, answer in self.expected[0].items():
            if ask.way.startswith("http ") or ask.way in ("stream", "generate"):
                by_key[ask.way.removesuffix(" stream") if " " in ask.way else "ids", ask.prompt, ask.seed].append(answer)
        if any(answers[0] != answer for answers in by_key.values() for answer in answers):
            raise AssertionError("whole answers and streams differ without a disturbance")

    # Daemons.

    def open_service(self, name, pack, source):
        work = os.path.join(self.folder, name)
        os.makedirs(work)
        self.service = Service(work, [pack], self.findings, source, self.options.only)
        self.service.clock = daemons.WallClock(self.service.path("clock"))
        self.service.weightd_options = ["--read-timeout", "500ms", "--drain-timeout", "1s"]
        self.endpoint = Endpoint(self.service.target(0), self.service.path("http.sock"))
        self.drawn_device = self.service.draw_device

    def start_inferd(self, preset=None, device=None):
        """Presets of slots need a device with slots."""
        service = self.service
        preset = preset or service.random.choice(PRESETS)
        flags, name = device and (device, "host") or self.drawn_device()
        if preset not in ("exact", "auto") and "host" in flags:
            preset = "exact"
        flags = [flag for i, flag in enumerate(flags) if preset == "exact" or "--policy" not in (flag, flags[i - 1])]
        service.draw_device = lambda: (flags, name)
        service.inferd_options = ["--http", "unix:" + service.path("http.sock"), "--preset", preset, "--parallel", "4",
                                  "--stall-timeout", "1s", "--drain-timeout", "500ms"]  # fmt: skip
        if self.full is not None:
            service.inferd_options += ["--prefix-file", os.path.join(self.full, "prefixes")]
        self.findings.count("starts with preset " + preset)
        service.start_inferd(0)

    def recover(self, text):
        """Waits until an answer is right again."""
        ask = self.asks[0]
        last = [None]

        def right():
            try:
                got, _ = self.endpoint.ask(ask)
            except Failed as failed:
                last[0] = failed
                if self.service.inferds[0].process.poll() is not None:
                    raise AssertionError(f"inferd ended {text}: {self.service.inferds[0].text()[-600:]}")
                return False
            return got == self.expected[self.current][ask] or self.report("wrong", f"the first answer {text}")

        try:
            daemons.wait_until(right, f"an answer {text}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {last[0]}") from error

    def report(self, what, text):
        self.findings.add(what, f"{self.where}: {text}")
        return True

    # Judging.

    def judge(self, ask, manner, got, whole, error, seconds, began):
        disturbed = self.log.during(began)
        with self.lock:
            self.longest = max(self.longest, seconds)
        if seconds > LIMIT or (error is not None and error.code == "no end"):
            self.report("hangs", f"{ask.way}, {manner}: {seconds:.1f} s, {disturbed}")
        if error is not None:
            allowed = set().union(*(ALLOWED[name] for name in disturbed))
            self.findings.count(f"ended {error.code}")
            if error.code not in allowed | {"no end"}:
                self.report("wrong", f"{ask.way}, {manner}, in {disturbed}: {error}")
            return
        self.findings.count(f"{ask.way}, {manner}")
        wanted = [answers[ask] for i, answers in enumerate(self.expected)
                  if i == self.current or "replaced pack" in disturbed]  # fmt: skip
        if manner != "dead" and not any(got == (answer if whole else answer[: len(got)]) for answer in wanted):
            self.report("wrong", f"{ask.way}, {manner}, seed {ask.seed}, in {disturbed}: {got} is not {wanted}")

    # Disturbances. Each leaves the service as it was, or says why it did not happen.

    def kill(self, name):
        span = self.log.begin("kill of " + name)
        daemon = self.service.weightd if name == "weightd" else self.service.inferds[0]
        daemon.stop(signal.SIGKILL)
        if name == "weightd":
            self.service.start_weightd(BUDGET)
        else:
            self.start_inferd()
        self.finish(span)

    def finish(self, span):
        self.recover("after " + span[0])
        span[2] = time.monotonic()
        self.findings.count(span[0])

    def change_preset(self):
        span = self.log.begin("preset change")
        code = self.service.inferds[0].stop(signal.SIGTERM)
        if code != 0:
            self.report("wrong", f"inferd ended with code {code}")
        self.start_inferd()
        self.finish(span)

    def tune(self, dram, kv=None, count=True):
        span = self.log.begin("resize")
        request = admin_pb2.TuneRequest(dram_budget_bytes=dram)
        if kv is not None:
            request.kv_budget_bytes = kv
        with grpc.insecure_channel("unix:" + self.service.path("a0.sock")) as channel:
            tuned = admin_pb2_grpc.AdminServiceStub(channel).Tune(request, timeout=LIMIT, wait_for_ready=True)
        self.service.budget = dram
        if tuned.segment_bytes > dram:
            self.report("leaks", f"segments of {tuned.segment_bytes} bytes after a resize to {dram}")
        span[2] = time.monotonic()
        if count:
            self.findings.count("resize")
        return tuned

    def resize(self):
        kv = self.service.random.uniform(0.4, 1) * self.kv_bytes
        self.tune(int(self.service.random.uniform(6, 20) * MIB), int(kv))

    def experts(self):
        return os.path.join(self.pack, "experts.bin")

    def drop_from_memory(self):
        """What weightd holds is not read again: it must give most of it back, and the page cache all."""
        self.tune(5 * MIB, count=False)
        with open(self.experts(), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def truncate(self):
        span = self.log.begin("truncation")
        with open(self.experts(), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(size // 2)
            rest = file.read()
            file.truncate(size // 2)
            self.drop_from_memory()
            time.sleep(self.service.random.uniform(0.2, 1))
            file.seek(size // 2)
            file.write(rest)
            file.flush()
            os.fsync(file.fileno())
        self.tune(BUDGET, count=False)
        self.finish(span)

    def corrupt(self):
        """Flips a bit every 64 KiB of some part. Extents found bad stay so until weightd starts again."""
        span = self.log.begin("corruption")
        with open(self.experts(), "r+b") as file:
            data = file.read()
            bad = bytearray(data)
            for at in range(self.service.random.randrange(65536), len(bad), 65536):
                bad[at] ^= 4
            for content in (bad, data):
                file.seek(0)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if content is bad:
                    self.drop_from_memory()
                    time.sleep(self.service.random.uniform(0.2, 1))
        self.service.weightd.stop(signal.SIGKILL)
        self.service.start_weightd(BUDGET)
        self.finish(span)

    def hold_disk(self):
        """Holds reads back for longer than read-timeout, and in one case of three than four times that."""
        try:
            throttle = Throttle(self.folder)
        except unittest.SkipTest as skipped:
            self.skipped["stuck disk: " + str(skipped)] += 1
            return
        span = self.log.begin("stuck disk")
        try:
            throttle.take(self.service.weightd.process.pid)
            self.drop_from_memory()
            throttle.set(True)
            time.sleep(self.service.random.choice((0.7, 1.0, 3.0)))
        finally:
            throttle.close()
        self.tune(BUDGET, count=False)
        self.finish(span)

    def fill_disk(self):
        """The file of prefixes lies on a disk without space, and a pack finds none there."""
        if self.full is None:
            self.skipped["full disk: no file system can be mounted"] += 1
            return
        span = self.log.begin("full disk")
        filler = os.path.join(self.full, "filler")
        try:
            with open(filler, "wb") as file:
                file.write(bytes(64 * MIB))
        except OSError:
            pass
        target = os.path.join(self.full, "pack")
        packed = daemons.subprocess.run(
            [os.path.join(daemons.BIN, "sluice"), "pack", daemons.SAMPLE, "--out", target, "--bits", "bf16"],
            stdout=daemons.subprocess.DEVNULL, stderr=daemons.subprocess.PIPE, text=True,
        )  # fmt: skip
        if packed.returncode != 1 or os.path.exists(target):
            self.report("wrong", f"packing on a full disk ended {packed.returncode}: {packed.stderr}")
        time.sleep(self.service.random.uniform(0.2, 1))
        os.unlink(filler)
        self.finish(span)

    def set_clock(self):
        span = self.log.begin("clock jump")
        self.service.clock.set(self.service.random.randrange(-1000, 1000) * 3600)
        time.sleep(self.service.random.uniform(0.5, 3))
        span[2] = time.monotonic()
        self.findings.count(span[0])

    def replace_pack(self):
        """Another model takes the pack's place, and the old one again: weightd dies first, inferd serves on or ends requests."""
        span = self.log.begin("replaced pack")
        spare = self.pack + ".spare"
        os.rename(self.pack, spare)
        os.rename(self.other, self.pack)
        time.sleep(self.service.random.uniform(0.1, 0.5))
        self.service.weightd.stop(signal.SIGKILL)
        self.service.start_weightd(BUDGET)
        time.sleep(self.service.random.uniform(0.1, 1))
        self.service.inferds[0].stop(signal.SIGKILL)
        self.start_inferd()
        self.current = 1 - self.current
        os.rename(spare, self.other)
        self.finish(span)

    def disturbances(self, dies):
        always = [self.resize, self.truncate, self.hold_disk, self.fill_disk, self.set_clock]
        inferd = [lambda: self.kill("inferd"), lambda: self.kill("inferd"), self.change_preset]
        weightd = [lambda: self.kill("weightd"), lambda: self.kill("weightd"), self.corrupt]
        return {
            "inferd": always + inferd, "weightd": always + weightd, "none": always + [self.resize] * 2,
            "both": always + inferd + weightd + [self.replace_pack] * 2,
        }[dies]  # fmt: skip

    # A cycle.

    def sample(self, askers, held):
        for asker in askers:
            asker.pause()
        for asker in askers:
            if not asker.idle.wait(LIMIT + 10):
                self.report("hangs", "a client did not end its request")
        self.tune(BUDGET, count=False)
        gauges = ("inferd_requests_running", "inferd_requests_waiting", "inferd_calls_active", "inferd_unsent_bytes")

        def idle():
            text = self.endpoint.metrics()
            return all(re.search(rf"^{name} 0$", text, re.M) for name in gauges)

        try:
            daemons.wait_until(idle, "requests without clients to end")
        except AssertionError as error:
            self.report("leaks", str(error))
        self.service.check_settled(held)
        for name, daemon in (("weightd", self.service.weightd), ("inferd", self.service.inferds[0])):
            pid = daemon.process.pid
            life = f"{self.state['cycle']}.{pid}"
            self.state["samples"].append((name, life, self.elapsed(), soak_fit.usage(pid)))
        for asker in askers:
            asker.resume()

    def elapsed(self):
        return self.state["seconds"] + OWN_TIME.seconds - self.began

    def cycle(self, seconds):
        number = self.state["cycle"]
        dies = CYCLES[number % len(CYCLES)]
        self.where = f"cycle {number}, {dies} dies"
        print(f"{self.where}, {self.elapsed():.0f} s, {sum(self.findings.counts.values())} ends", flush=True)
        source = random.Random(f"{self.state['seed']} {number}")
        self.log, self.current = Log(), 0
        self.began = OWN_TIME.seconds
        self.open_service(f"cycle{number}", self.pack, source)
        self.service.start_weightd(BUDGET)
        self.start_inferd()
        self.recover("at the start")
        self.kv_bytes = self.tune(BUDGET, count=False).kv_bytes
        askers = [Asker(self.endpoint, self.asks, source.random(), self.judge) for _ in range(self.options.clients)]
        for asker in askers:
            asker.start()
        held, turn, sampled = {}, [], self.began
        try:
            while OWN_TIME.seconds - self.began < seconds:
                time.sleep(source.uniform(0, 0.05 * min(seconds, 60)))
                turn = turn or source.sample(self.disturbances(dies), len(self.disturbances(dies)))
                turn.pop()()
                if OWN_TIME.seconds - sampled > min(seconds / 20, 15):
                    self.sample(askers, held)
                    sampled = OWN_TIME.seconds
            self.sample(askers, held)
            if self.current == 1:
                self.log.begin("replaced pack")
                self.replace_pack()
        finally:
            for asker in askers:
                asker.stop()
            for asker in askers:
                asker.join(LIMIT)
        self.service.stop()
        self.state["seconds"] = self.elapsed()
        self.began = OWN_TIME.seconds
        self.state["cycle"] += 1

    def save(self):
        for name in ("wrong", "hangs", "leaks"):
            self.state[name] = self.state[name][: self.kept[name]] + getattr(self.findings, name)
        self.state["counts"] = dict(self.kept["counts"] + self.findings.counts)
        self.state["skipped"] = sorted(set(self.state["skipped"]) | set(self.skipped))
        self.state["longest"] = max(self.state["longest"], self.longest)
        if self.options.state:
            with open(self.options.state + ".new", "w") as file:
                json.dump(self.state, file)
            os.replace(self.options.state + ".new", self.options.state)

    def run(self):
        self.kept = {name: len(self.state[name]) for name in ("wrong", "hangs", "leaks")}
        self.kept["counts"] = collections.Counter(self.state["counts"])
        self.where = "reference"
        self.began = OWN_TIME.seconds
        shared = soak_fit.shared_names()
        full = mounted(os.path.join(self.folder, "full"))
        try:
            self.make_packs()
            self.full = full
            length = max(5, min(900, self.options.seconds / 8))
            while self.state["seconds"] < self.options.seconds and not self.too_many():
                self.cycle(min(length, self.options.seconds - self.state["seconds"] + 1))
                self.save()
        except AssertionError as error:
            self.report("hangs", str(error))
        finally:
            self.service.kill_all()
            if full is not None:
                daemons.subprocess.run(["umount", "-l", full], check=False)
            shutil.rmtree(self.folder, ignore_errors=True)
        if soak_fit.shared_names() - shared:
            self.report("leaks", f"/dev/shm has {soak_fit.shared_names() - shared}")
        self.save()

    def too_many(self):
        return len(self.findings.wrong) + len(self.findings.hangs) > 20


def mounted(folder):
    """A small file system of its own; None where none can be mounted."""
    os.makedirs(folder)
    done = daemons.subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "sluice-soak", folder],
                                  stderr=daemons.subprocess.DEVNULL, check=False)  # fmt: skip
    return folder if done.returncode == 0 else None


def table(state, rows):
    lines = [f"{state['seconds']:.0f} s in {state['cycle']} cycles, seed {state['seed']}, longest request {state['longest']:.1f} s", "",
             "| what | times |", "|---|---|"]  # fmt: skip
    lines += [f"| {name} | {count} |" for name, count in sorted(state["counts"].items())]
    lines += ["", "| process | resource | slope an hour | standard error | samples | mark |", "|---|---|---|---|---|---|"]
    for process, name, slope, error, _, count, mark, failed in rows:
        lines.append(f"| {process} | {name} | {slope:.2f} | {error:.2f} | {count} | {mark:.0f}{' FAILED' * failed} |")
    lines += ["not done here: " + text for text in state["skipped"]]
    return "\n".join(lines)


def options_of(arguments):
    stress = os.environ.get("SLUICE_STRESS", "ci")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--cut", action="store_true", help="the length of a test: 600 s with SLUICE_STRESS=full, else 8")
    parser.add_argument("--state", default="", help="a file that keeps the run's figures")
    parser.add_argument("--resume", action="store_true", help="continues the run of that file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--only", choices=("sim", "cuda"))
    parser.add_argument("--json", default="")
    options = parser.parse_args(arguments)
    if options.resume and not options.state:
        parser.error("--resume needs --state")
    if options.seconds is None:
        options.seconds = 7200 if not options.cut else 600 if stress == "full" else 8
    return options


def main():
    options = options_of(sys.argv[1:])
    state = {"seed": options.seed, "seconds": 0.0, "cycle": 0, "samples": [], "counts": {}, "skipped": [],
             "wrong": [], "hangs": [], "leaks": [], "longest": 0.0}  # fmt: skip
    if options.resume:
        with open(options.state) as file:
            state = json.load(file)
    print(f"seed {state['seed']}, {options.seconds:.0f} s, of them done {state['seconds']:.0f}", flush=True)
    OWN_TIME.start()
    soak = Soak(options, state)
    soak.run()
    rows = soak_fit.fits(state["samples"])
    print(table(state, rows))
    found = [f"{name}: {text[:600]}" for name in ("wrong", "hangs", "leaks") for text in state[name]]
    print("\n".join(found[:30]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**state, "slopes": rows}, file)
    return 1 if found or any(row[-1] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
