"""One inferd under a hundred times the requests that it can serve.

  overload.py [--seconds N] [--times X] [--seed N] [--parallel N] [--queue N] [--refusal-ms X] [--speed X] [--json FILE]

Ten minutes of overload by default; some seconds in ctest (--cut), ten minutes there with SLUICE_STRESS=full. Rounds of two
phases take turns, so that other load on the machine meets both: as many clients as the batch has places, alone; then a flood over
HTTP and gRPC that offers `--times` the requests which were served a second alone, whatever it is answered, with slow readers and
dead ones beside it.

Always checked: every answer's tokens, an end of every request within 60 s, and the form of each refusal (429 or 503 with
Retry-After; RESOURCE_EXHAUSTED or UNAVAILABLE with RetryInfo). A full run also fails if a refusal's p99 lies above --refusal-ms,
if the median speed of answers under the flood lies below --speed of that alone, or if the daemons grow (soak_fit.py).
The clients run on the same machine: their work is in every figure.
"""
import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import time

from kill_clients import OWN_TIME, Findings
from kill_loop import sluice
from kill_service import MIB, Service
from soak_clients import LIMIT, Ask, Asker, Endpoint, choice_text, grpc_spec, http_request
import daemons
import soak_fit
from daemons import grpc, inference_pb2, inference_pb2_grpc

FLOOD = os.path.join(daemons.BIN, "..", "tests", "flood")
BUDGET = 64 * MIB  # all of the sample: the disk is not what is tested
WAYS = ("http completion stream", "http chat stream", "stream")
GRPC_SHARE = 0.1  # of the flood; its clients cost ten times as much
READERS = ("slow", "dead", "dead")  # beside the flood
ROUNDS = 11  # a sample of the idle daemons after each: enough for a slope
ALONE = 0.15  # seconds alone per second of overload
TICK = 0.05  # seconds between two bursts of gRPC
REFUSALS = {"429", "503", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}


class Refused(Exception):
    """`formed`: the refusal says when to try again."""

    def __init__(self, code, formed):
        super().__init__(code)
        self.code, self.formed = code, formed


def events_text(body):
    """The text of a stream of events, chunks already joined. Raises Refused for an error among them."""
    text = ""
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: {"):
            data = json.loads(event[6:])
            if "error" in data:
                raise Refused(str(data["error"].get("code")), False)
            text += "".join(map(choice_text, data["choices"]))
    return text


def join_chunks(body):
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        parts.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(parts)


def read_answer(raw):
    """The text of a whole answer. Raises Refused."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    status = lines[0].split()[1]
    if status != "200":
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        raise Refused(status, fields.get("retry-after", "").isdigit())
    return events_text(join_chunks(body))


class Phase:
    """One phase's requests, and what became of them."""

    def __init__(self, service, expected, findings, source):
        self.service = service
        self.expected = expected
        self.findings = findings
        self.random = source
        self.http = [ask for ask in expected if ask.way.startswith("http")]
        self.grpc = [ask for ask in expected if ask.way == "stream"]
        self.refusals = {"HTTP": [], "gRPC": []}  # seconds
        self.speeds = []  # tokens a second of answers that ended within the phase
        self.offered = self.served = self.in_time = 0
        self.began = time.monotonic()

    def end(self, ask, got, first, last, ended, seconds):
        """A whole answer: `first` and `last` are the times of its first and last tokens."""
        if got != self.expected[ask]:
            self.findings.add("wrong", f"{ask.way}: {got} is not {self.expected[ask]}")
        self.served += 1
        if ended <= seconds:
            self.in_time += 1
            if last > first:
                self.speeds.append((ask.tokens - 1) / (last - first))
        self.findings.count("answers, " + ask.way)

    def refuse(self, ask, refused, seconds, begun):
        self.findings.count(f"refusals {refused.code}, {ask.way}")
        self.refusals["HTTP" if ask.way.startswith("http") else "gRPC"].append(seconds)
        if refused.code not in REFUSALS or not refused.formed or begun:
            self.findings.add("wrong", f"{ask.way}: refused {refused.code}, says when to try again: {refused.formed}, "
                                       f"in the midst of an answer: {begun}")  # fmt: skip

    async def ask_grpc(self, stub, seconds):
        ask, times, ids = self.random.choice(self.grpc), [], []
        began, own = time.monotonic(), OWN_TIME.seconds
        self.offered += 1
        try:
            request = inference_pb2.GenerateStreamRequest(spec=grpc_spec(ask))
            async for event in stub.GenerateStream(request, timeout=2 * LIMIT):
                if event.delta.token_ids:
                    times.append(time.monotonic())
                    ids.extend(event.delta.token_ids)
            self.end(ask, ids, times[0], times[-1], times[-1] - self.began, seconds)
        except grpc.aio.AioRpcError as error:
            refused = Refused(error.code().name, daemons.has_retry_hint(error))
            self.refuse(ask, refused, time.monotonic() - began, bool(times))
        self.check_time(ask, OWN_TIME.seconds - own)

    def check_time(self, ask, seconds):
        if seconds > LIMIT:
            self.findings.add("hangs", f"{ask.way}: {seconds:.1f} s")

    async def flood_grpc(self, rate, clients, seconds):
        """`rate` requests a second in bursts, whether or not others have ended; or clients that ask one after the other."""
        channels = [grpc.aio.insecure_channel(self.service.target(0), options=[("grpc.use_local_subchannel_pool", 1)])
                    for _ in range(4)]  # fmt: skip
        stubs = itertools.cycle([inference_pb2_grpc.InferenceServiceStub(channel) for channel in channels])

        async def client():
            while time.monotonic() - self.began < seconds:
                await self.ask_grpc(next(stubs), seconds)

        tasks = {asyncio.ensure_future(client()) for _ in range(clients)}
        due = 0.0
        while time.monotonic() - self.began < seconds:
            due = min(due + rate * TICK, rate)  # a stop of the machine is made up for by a second at most
            while due >= 1:
                due -= 1
                task = asyncio.ensure_future(self.ask_grpc(next(stubs), seconds))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(TICK)
        if tasks:
            await asyncio.wait(tasks)
        for channel in channels:
            await channel.close()

    async def flood_http(self, rate, clients, seconds):
        """The same by a program that costs little."""
        path = self.service.path("requests")
        turns = [self.random.choice(self.http) for _ in range(256)]
        with open(path, "wb") as file:
            for ask in turns:
                where, body = http_request(ask)
                data = json.dumps(body).encode()
                whole = (f"POST {where} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         f"Content-Length: {len(data)}\r\n\r\n").encode() + data  # fmt: skip
                file.write(b"%d\n" % len(whole) + whole)
        program = await asyncio.create_subprocess_exec(
            FLOOD, self.service.path("http.sock"), path, str(rate), str(clients), str(seconds), stdout=asyncio.subprocess.PIPE,
            limit=1 << 26)  # fmt: skip
        out, _ = await program.communicate()
        if program.returncode != 0:
            self.findings.add("wrong", f"the flood ended with code {program.returncode}")
        for line in out.decode().splitlines():
            self.judge_http(turns, line.split(" "), seconds)

    def judge_http(self, turns, fields, seconds):
        ask = turns[int(fields[0]) % len(turns)]
        headed, first, last, ended = (int(field) / 1e6 for field in fields[1:5])
        self.offered += 1
        if fields[5] == "-":
            self.findings.add("wrong", f"{ask.way}: cut after {last:.1f} s")
            return
        self.check_time(ask, last)
        try:
            self.end(ask, read_answer(bytes.fromhex(fields[5])), first, last, ended, seconds)
        except Refused as refused:
            self.refuse(ask, refused, headed, False)

    async def run(self, rate, clients, seconds):
        await asyncio.gather(self.flood_http(rate * (1 - GRPC_SHARE), clients - clients // 4, seconds),
                             self.flood_grpc(rate * GRPC_SHARE, clients // 4, seconds))  # fmt: skip


class Overload:
    def __init__(self, options):
        self.options = options
        self.findings = Findings()
        self.folder = daemons.tempfile.mkdtemp(prefix="sluice-overload-", dir="/tmp")
        self.random = random.Random(options.seed)
        self.samples, self.alone_speeds, self.alone_rates, self.speeds = [], [], [], []
        self.refusals = {"HTTP": [], "gRPC": []}
        self.offered = self.served = self.most_memory = 0

    def start(self):
        pack = os.path.join(self.folder, "pack")
        sluice("pack", daemons.SAMPLE, "--out", pack, "--bits", "bf16", "--json")
        self.service = service = Service(self.folder, [pack], self.findings, self.random)
        service.draw_device = lambda: (["--device", "host"], "host")
        service.threads = self.options.threads
        service.inferd_options = ["--http", "unix:" + service.path("http.sock"), "--preset", "exact", "--parallel",
                                  str(self.options.parallel), "--max-queue", str(self.options.queue)]  # fmt: skip
        service.start_weightd(BUDGET)
        service.start_inferd(0)
        service.inferds[0].wait_for(r"info serving\n")
        self.endpoint = Endpoint(service.target(0), service.path("http.sock"))
        self.asks = [Ask(way, case["prompt"], tuple(case["prompt_ids"]), seed, self.options.tokens)
                     for way in WAYS for case in daemons.greedy_cases()[:4] for seed in (0, 7)]  # fmt: skip
        self.expected = {ask: self.endpoint.ask(ask)[0] for ask in self.asks}

    def judge(self, ask, manner, got, whole, error, seconds, began):
        """Ends of slow and dead readers."""
        if seconds > LIMIT or (error is not None and error.code == "no end"):
            self.findings.add("hangs", f"{ask.way}, {manner}: {seconds:.1f} s")
        elif error is not None:
            self.findings.count(f"refusals {error.code}, {manner} readers")
            if error.code not in REFUSALS:
                self.findings.add("wrong", f"{ask.way}, {manner}: {error}")
        else:
            self.findings.count(f"{manner} readers, {ask.way}")
            if manner == "slow" and got != self.expected[ask]:
                self.findings.add("wrong", f"{ask.way}, {manner}: {got} is not {self.expected[ask]}")

    async def watch(self):
        """Notes the most memory under the flood."""
        while True:
            used = soak_fit.usage(self.service.inferds[0].process.pid)
            self.most_memory = max(self.most_memory, used["memory KiB"])
            await asyncio.sleep(1)

    async def sample(self):
        """The resources of both daemons once the flood's connections are gone."""
        await asyncio.sleep(0.5)
        for name, daemon in (("weightd", self.service.weightd), ("inferd", self.service.inferds[0])):
            self.samples.append((name, "run", time.monotonic(), soak_fit.usage(daemon.process.pid)))

    def phase(self):
        return Phase(self.service, self.expected, self.findings, self.random)

    async def round(self, seconds):
        alone = self.phase()
        length = max(2.0, ALONE * seconds)
        await alone.run(0, self.options.parallel, length)
        self.alone_speeds += alone.speeds
        self.alone_rates.append(alone.in_time / length)
        if any(alone.refusals.values()):
            self.findings.add("wrong", "a refusal with a place for each client")
        askers = [Asker(self.endpoint, self.asks, self.random.random(), self.judge, (manner,)) for manner in READERS]
        for asker in askers:
            asker.start()
        watcher = asyncio.ensure_future(self.watch())
        flood = self.phase()
        await flood.run(self.options.times * statistics.mean(self.alone_rates), 0, seconds)
        for asker in askers:
            asker.stop()
        while any(asker.is_alive() for asker in askers):
            await asyncio.sleep(0.02)
        watcher.cancel()
        await self.sample()
        self.offered += flood.offered
        self.served += flood.in_time
        self.speeds += flood.speeds
        for how, seconds in flood.refusals.items():
            self.refusals[how] += seconds

    async def rounds(self):
        for _ in range(self.options.rounds):
            await self.round(self.options.seconds / self.options.rounds)

    def run(self):
        try:
            self.start()
            asyncio.run(self.rounds())
            self.service.check_settled({})
            self.service.stop()
        except AssertionError as error:
            self.findings.add("hangs", str(error))
        finally:
            self.service.kill_all()
            shutil.rmtree(self.folder, ignore_errors=True)

    def figures(self):
        alone = statistics.median(self.alone_speeds) if self.alone_speeds else 0.0
        under = statistics.median(self.speeds) if self.speeds else 0.0
        seconds = self.options.seconds
        rate = statistics.mean(self.alone_rates) if self.alone_rates else 0.0
        figures = {
            "seconds of overload": seconds, "answered a second alone": rate, "answered a second under overload": self.served / seconds,
            "offered a second": self.offered / seconds, "offered by answered alone": self.offered / seconds / max(1e-9, rate),
            "tokens a second alone": alone, "tokens a second under overload": under, "speed kept": under / max(1e-9, alone),
            "most memory of inferd, MiB": self.most_memory / 1024, "load of the machine": os.getloadavg()[1],
        }  # fmt: skip
        for how, times in self.refusals.items():
            times = sorted(times) or [0.0]
            figures["refusals by " + how] = len(times)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
                figures[f"{how} refusal {name} ms"] = 1000 * times[min(len(times) - 1, int(share * len(times)))]
        return figures

    def judge_run(self, figures, rows):
        """What a full run must show."""
        for how in self.refusals:
            if figures[f"{how} refusal p99 ms"] > self.options.refusal_ms:
                self.findings.add("wrong", f"the p99 of a refusal by {how} is {figures[f'{how} refusal p99 ms']:.1f} ms")
        if figures["speed kept"] < self.options.speed:
            self.findings.add("wrong", f"answers keep {figures['speed kept']:.2f} of their speed alone")
        for process, name, slope, *_, failed in rows:
            if failed:
                self.findings.add("leaks", f"{process} grows by {slope:.0f} {name} an hour")


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="of overload")
    parser.add_argument("--cut", action="store_true", help="the length of a test, nothing timed asserted")
    parser.add_argument("--times", type=float, default=100, help="requests offered by requests served alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--queue", type=int, default=8)
    parser.add_argument("--tokens", type=int, help="of each answer")
    parser.add_argument("--threads", type=int, default=1, help="of inferd; the clients need the others")
    parser.add_argument("--refusal-ms", type=float, default=50)
    parser.add_argument("--speed", type=float, default=0.9)
    parser.add_argument("--json", default="")
    options = parser.parse_args(arguments)
    full = not options.cut or os.environ.get("SLUICE_STRESS") == "full"
    options.seconds = options.seconds or (600 if full else 6)
    options.tokens = options.tokens or (400 if full else 100)
    options.rounds = ROUNDS if full else 1
    return options


def main():
    options = options_of(sys.argv[1:])
    print(f"seed {options.seed}, {options.seconds:.0f} s of overload in {options.rounds} rounds", flush=True)
    OWN_TIME.start()
    overload = Overload(options)
    overload.run()
    figures, rows = overload.figures(), soak_fit.fits(overload.samples)
    if not options.cut:
        overload.judge_run(figures, rows)
    if not all(overload.refusals.values()):
        overload.findings.add("wrong", "nothing was refused: this was no overload")
    print("\n".join(f"{name}: {value:.2f}" for name, value in figures.items()))
    print("\n".join(f"{name}: {count}" for name, count in sorted(overload.findings.counts.items())))
    for process, name, slope, error, _, count, mark, _ in rows:
        print(f"{process}, {name}: {slope:.1f} an hour, standard error {error:.1f}, {count} samples, mark {mark:.0f}")
    found = [f"{what}: {text[:600]}" for what in ("wrong", "hangs", "leaks") for text in getattr(overload.findings, what)]
    print("\n".join(found[:30]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"figures": figures, "slopes": rows, "samples": overload.samples, "counts": overload.findings.counts, "found": found}, file)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
