#!/usr/bin/python3
"""Simulates a fleet of a thousand hosts: the effect of a balancer that routes prompts by their prefix on the time to the first
token and on the caches' hit rate, by load, and the losses when one host in a hundred vanishes.

usage: simulate.py [--hosts N] [--requests N] [--service FILE] [--seed N]

Service times are drawn from measured ones (service_times.json, made by summarize.py of a run of
deploy/fleet/try_fleet.py --record), the balancer is that of deploy/fleet/haproxy-front.cfg:
- affine: HAProxy's consistent hashing, 16 points per host on the ring, with hash-balance-factor: a host with more than 1.25
  times (with fewer than six hosts 1.6 times) the mean number of running requests is skipped for the next one of the ring;
- even: leastconn.
A host computes as many answers at a time as the measured one, in the order of their arrival; its cache keeps prefixes and
evicts the least recently used ones. A host that vanishes loses its running requests. It still gets requests until two checks
have failed (1 s); they go elsewhere if they cannot connect (0.5 s), or are cut with all others when the checks have failed.

Not modelled: slowdown between answers other than in the measured mix, networks, clients that retry. Full load is the rate that
fills all slots of all hosts under even routing (by the mean service time of "even" at half load).
"""
import argparse
import bisect
import collections
import heapq
import json
import os

import numpy

PLACES_A_HOST = 16  # points on the ring: HAProxy's BE_WEIGHT_SCALE for weight 1
BALANCE_FACTOR, OF_FEW, FEW = 1.25, 1.6, 6  # as in haproxy-front.cfg
CHECKS = 1.0  # seconds until two checks have failed: inter 500ms, fall 2
CONNECT = 0.5  # seconds: timeout connect
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Host:
    __slots__ = ("running", "waiting", "connecting", "cache", "alive", "seen_dead")

    def __init__(self):
        self.running = 0  # running answers
        self.waiting = collections.deque()
        self.connecting = 0  # requests sent to a host that has vanished
        self.cache = collections.OrderedDict()  # groups whose prefix is cached, the least recently used first
        self.alive = True
        self.seen_dead = False  # the balancer has noticed the loss

    def load(self):
        return self.running + len(self.waiting) + self.connecting


class Ring:
    """Consistent hashing with bounded loads."""

    def __init__(self, hosts, groups, random):
        self.hosts = hosts
        points = random.random((len(hosts), PLACES_A_HOST))
        order = numpy.argsort(points, axis=None)
        self.owners = (order // PLACES_A_HOST).tolist()
        self.points = points.ravel()[order].tolist()
        self.starts = [bisect.bisect(self.points, key) % len(self.points) for key in random.random(groups).tolist()]
        self.total = 0
        self.usable = len(hosts)

    def choose(self, group, avoid):
        factor = OF_FEW if len(self.hosts) < FEW else BALANCE_FACTOR
        most = -(-factor * (self.total + 1) // self.usable)
        at = self.starts[group]
        while True:
            host = self.hosts[self.owners[at]]
            if not host.seen_dead and host is not avoid and host.load() < most:
                return host
            at = (at + 1) % len(self.owners)

    def changed(self, host, by):
        self.total += by

    def lost(self, host):
        self.usable -= 1
        self.total -= host.load()


class Least:
    """Least connections; among equals the one unused for longest."""

    def __init__(self, hosts, groups, random):
        self.queues = collections.defaultdict(collections.OrderedDict)
        for host in hosts:
            self.queues[0][host] = None
        self.least = 0

    def choose(self, group, avoid):
        least = self.least
        while True:
            for host in self.queues[least]:
                if host is not avoid:
                    return host
            least += 1

    def changed(self, host, by):
        if host.seen_dead:
            return
        after = host.load()
        self.queues[after - by].pop(host)
        self.queues[after][host] = None
        self.least = min(self.least, after)

    def lost(self, host):
        self.queues[host.load()].pop(host)


class Run:
    def __init__(self, measured, hosts, groups, affine, rate, requests, begin, failing, random):
        self.measured = measured
        self.hosts = [Host() for _ in range(hosts)]
        self.balancer = (Ring if affine else Least)(self.hosts, groups, random)
        self.arrivals = numpy.cumsum(random.exponential(1 / rate, requests)).tolist()
        self.groups = random.integers(groups, size=requests).tolist()
        table = random.choice(numpy.array(measured["answers"]), requests)
        self.prompts, self.decodes = table[:, 0].tolist(), table[:, 1].tolist()
        self.firsts = random.choice(measured["first_seconds"], requests).tolist()
        self.tokens = random.choice(measured["prompt_token_seconds"], requests).tolist()
        self.begin = begin  # earlier requests fill the caches and are not counted
        self.failing = random.choice(hosts, failing, replace=False).tolist() if failing else []
        self.events = []  # (time, number, what, request or host)
        self.number = 0
        self.ttft, self.services = [], []
        self.cached = self.asked = self.lost = self.counted = 0
        self.now = 0.0

    def at(self, time, what, about):
        self.number += 1
        heapq.heappush(self.events, (time, self.number, what, about))

    def begin_answer(self, host, request):
        host.running += 1
        group = self.groups[request]
        shared = self.measured["shared_tokens"] if group in host.cache else 0
        host.cache[group] = None
        host.cache.move_to_end(group)
        if len(host.cache) > self.measured["kept_beginnings"]:
            host.cache.popitem(last=False)
        prompt = int(self.prompts[request])
        first = self.firsts[request] + self.tokens[request] * (prompt - min(shared, prompt - 1))
        if request >= self.begin:
            self.asked += prompt
            self.cached += min(shared, prompt - 1)
            self.ttft.append(self.now + first - self.arrivals[request])
            self.services.append(first + self.decodes[request])
        self.at(self.now + first + self.decodes[request], "end", (host, request))

    def send(self, request, avoid=None):
        host = self.balancer.choose(self.groups[request], avoid)
        if not host.alive:
            host.connecting += 1
            self.balancer.changed(host, 1)
            self.at(self.now + CONNECT, "unreached", (host, request))
            return
        if host.running < self.measured["parallel"]:
            self.begin_answer(host, request)
        else:
            host.waiting.append(request)
        self.balancer.changed(host, 1)

    def end(self, host):
        if not host.alive:
            return  # lost with its host
        host.running -= 1
        self.balancer.changed(host, -1)
        if host.waiting:
            self.begin_answer(host, host.waiting.popleft())

    def fail(self, host):
        host.alive = False
        self.lost += host.load()
        self.at(self.now + CHECKS, "notice", host)

    def notice(self, host):
        self.balancer.lost(host)
        host.seen_dead = True

    def unreached(self, about):
        host, request = about
        if host.seen_dead:
            self.lost += 1
            return
        host.connecting -= 1
        self.balancer.changed(host, -1)
        self.send(request, avoid=host)

    def run(self):
        requests = len(self.arrivals)
        for number in self.failing:
            self.at(self.arrivals[requests * 3 // 4], "fail", self.hosts[number])
        next_request = 0
        while next_request < requests or self.events:
            if next_request < requests and (not self.events or self.arrivals[next_request] <= self.events[0][0]):
                self.now = self.arrivals[next_request]
                self.send(next_request)
                next_request += 1
                continue
            self.now, _, what, about = heapq.heappop(self.events)
            if what == "end":
                self.end(about[0])
            elif what == "send":
                self.send(about)
            else:
                getattr(self, what)(about)
        return self


said = []


def say(text):
    print(text, flush=True)
    said.append(text)


def row(*cells):
    say("| " + " | ".join(str(cell) for cell in cells) + " |")


def write(path):
    with open(path) as file:
        text = file.read()
    begin = text.index("\n\n", text.index("What it printed")) + 2
    with open(path, "w") as file:
        file.write(text[:begin] + "\n".join(said) + "\n" + text[text.index("\nWhat it shows") :])


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=200000)
    parser.add_argument("--service", default=os.path.join(FOLDER, "service_times.json"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", help="puts what it prints into this file, between the lines \"What it printed\" and \"What it shows\"")
    options = parser.parse_args()
    with open(options.service) as file:
        measured = json.load(file)

    def simulate(hosts, affine, rate, requests, begin, failing=0):
        groups = int(measured["beginnings_a_host"] * hosts)
        random = numpy.random.default_rng(options.seed)  # the same arrivals for all variants
        return Run(measured, hosts, groups, affine, rate, requests, begin, failing, random).run()

    say("As measured (%d hosts, %.0f requests a second), to compare:\n" % (measured["hosts"], measured["rate"]))
    row("balancer", "cache share, measured", "simulated")
    row("---", "---", "---")
    for name, affine in (("affine", True), ("even", False)):
        run = simulate(measured["hosts"], affine, measured["rate"], measured["requests"], 0)
        row(name, "%.1f %%" % (100 * measured["cache_share"][name]), "%.1f %%" % (100 * run.cached / run.asked))

    places = options.hosts * measured["parallel"]
    warm = options.requests // 2
    longest = numpy.mean(measured["answers"], axis=0) @ [numpy.mean(measured["prompt_token_seconds"]), 1]
    guess = simulate(options.hosts, False, 0.5 * places / longest, options.requests, warm)
    capacity = places / float(numpy.mean(guess.services))
    say("\n%d hosts, %d requests, 100 %% = %.0f requests a second:\n" % (options.hosts, options.requests, capacity))
    row("load", "balancer", "hosts that vanish", "first token p50", "p99", "cache share", "lost")
    row(*["---"] * 7)
    for load in LOADS:
        for name, affine in (("affine", True), ("even", False)):
            for failing in (0, options.hosts // 100):
                run = simulate(options.hosts, affine, load * capacity, options.requests, warm, failing)
                p50, p99 = numpy.percentile(run.ttft, (50, 99))
                row("%.0f %%" % (100 * load), name, failing, "%.0f ms" % (1000 * p50), "%.0f ms" % (1000 * p99),
                    "%.1f %%" % (100 * run.cached / run.asked), run.lost)  # fmt: skip
    if options.write:
        write(options.write)


if __name__ == "__main__":
    main()
