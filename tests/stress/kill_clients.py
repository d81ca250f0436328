"""Clients of a service whose daemons are killed, and their checks: kill_loop.py's other half."""
import collections
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from daemons import grpc, inference_pb2_grpc  # noqa: E402

HANG = 5.0  # seconds


class OwnTime(threading.Thread):
    """Seconds in which this program could run: a machine that stands still is not a hang of a daemon."""

    TICK = 0.02
    MOST = 0.25  # maximum seconds counted per tick

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
    """Errors and counters."""

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


class Repeater(threading.Thread):
    """Calls once() over and over until stopped; can be paused."""

    def __init__(self):
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.idle = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            if not self.go.is_set():
                self.idle.set()
                self.go.wait(1)
                continue
            self.idle.clear()
            self.once()
        self.idle.set()

    def pause(self):
        """`idle` is set once the last call of once() has ended."""
        self.go.clear()

    def resume(self):
        self.go.set()

    def stop(self):
        self.stopping.set()
        self.go.set()


class Client(Repeater):
    """Streams one response after the other."""

    def __init__(self, target, answers, seed, findings, must_answer=False):
        super().__init__()
        self.target = target
        self.answers = answers
        self.random = random.Random(seed)
        self.findings = findings
        self.must_answer = must_answer  # its inferd is never killed: any error is a failure
        self.tokens = 0
        self.last_event = OWN_TIME.seconds

    def once(self):
        self.stream(self.random.choice(self.answers))

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
                time.sleep(0.02)  # its inferd is down: retries as clients do
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
        super().pause()
        if not self.idle.wait(daemons.PATIENCE):
            self.findings.add("hangs", "a stream did not end when asked to pause")

    def resume(self):
        self.last_event = OWN_TIME.seconds
        super().resume()

    def stop(self):
        super().stop()
        self.join(daemons.PATIENCE)


def request(prompt, tokens):
    message = daemons.stream_request(ids=prompt, tokens=tokens)
    message.spec.sampling.temperature = 0
    message.spec.stopping.ignore_eos = True
    message.spec.output.return_token_ids = True
    return message
