#!/usr/bin/python3
"""Three hosts in network namespaces behind HAProxy with the configuration of this folder, on the sample model: 20 requests
a second, HTTP and gRPC mixed, while all hosts are restarted one after the other, one is killed and one is unplugged; then
the hit rates of the prefix caches, with and without routing of prompts by their prefix. Run by hand, as root; needs a build,
haproxy, iproute2 and Debian's python3-grpcio.

usage: try_fleet.py [--seconds N] [--rate N] [--record FILE] [--only SCENARIO]
--record: service times of all answers as JSON lines, for lab/fleet/simulate.py
"""
import argparse
import collections
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests/e2e"))
os.chdir(ROOT)

import daemons  # noqa: E402

FRONT = "10.77.0.1"
HOSTS = ("10.77.0.11", "10.77.0.12", "10.77.0.13")
BRIDGE = "slfleet"
GROUPS = 24  # prefixes: more than one host's KV cache keeps, fewer than those of all hosts keep
# Words of a prefix: 24 long prefixes exceed one host's cache.
SHORT, LONG = 100, 320
PATIENCE = 60
# Long streams, so that a host has running answers when it is lost.
LONG_STREAMS, LONG_TOKENS, LONG_NUMBERS = 12, 700, 1000000
HEARD = 2  # seconds until the front balancer knows a host's state: four checks


def run(*words):
    subprocess.run(words, check=True)


def ask_haproxy(path, command):
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(path)
        admin.sendall(command.encode() + b"\n")
        return b"".join(iter(lambda: admin.recv(65536), b"")).decode()


class UnixHttp(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Host:
    """One network namespace with weightd, inferd on unix sockets, and HAProxy."""

    def __init__(self, number, folder, pack):
        self.address = HOSTS[number - 1]
        self.space = "slhost%d" % number
        self.pack = pack
        self.folder = os.path.join(folder, self.space)
        os.makedirs(self.folder)
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", "sl%d" % number, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        run("ip", "link", "set", "sl%d" % number, "master", BRIDGE, "up")
        self.link = "sl%d" % number
        run("ip", "-n", self.space, "addr", "add", self.address + "/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", self.space, "link", "set", device, "up")
        self.answers_before = 0  # answers of processes that have ended
        self.start()
        self.balancer = None
        self.start_balancer()

    def path(self, name):
        return os.path.join(self.folder, name)

    def spawn(self, log, *words, **environment):
        with open(self.path(log), "ab") as out:
            return subprocess.Popen(["ip", "netns", "exec", self.space, *words], stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=out, env={**os.environ, **environment})  # fmt: skip

    def start(self):
        program = lambda name: os.path.join(daemons.BIN, name)  # noqa: E731
        self.weightd = self.spawn("weightd.log", program("weightd"), "--pack", self.pack, "--socket", self.path("w.sock"))
        self.inferd = self.spawn(
            "inferd.log", program("inferd"), "--pack", self.pack, "--weightd", self.path("w.sock"), "--threads", "1",
            "--listen", "unix:" + self.path("i.sock"), "--admin", "unix:" + self.path("a.sock"),
            "--http", "unix:" + self.path("h.sock"), "--context", "1024", "--parallel", "8", "--kv-budget", "8MiB",
        )  # fmt: skip
        daemons.wait_until(lambda: self.http_status("/health") == 200, "inferd of " + self.space)

    def start_balancer(self):
        self.balancer = self.spawn(
            "haproxy.log", "haproxy", "-db", "-f", os.path.join(ROOT, "deploy/fleet/haproxy-host.cfg"),
            SLUICE_ADMIN=self.path("haproxy.sock"), SLUICE_HTTP_SOCKET=self.path("h.sock"),
            SLUICE_GRPC_SOCKET=self.path("i.sock"),
        )  # fmt: skip

    def http_text(self, path):
        connection = UnixHttp(self.path("h.sock"))
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def http_status(self, path):
        return self.http_text(path)[0]

    def answers(self):
        """Returns the number of complete answers of inferd here, over all of its processes that were stopped in order."""
        match = re.search(r'^inferd_responses_total\{code="OK"\} (\d+)', self.http_text("/metrics")[1], re.M)
        return self.answers_before + (int(match.group(1)) if match else 0)

    def busy(self):
        stat = ask_haproxy(self.path("haproxy.sock"), "show stat").splitlines()
        rows = [line.split(",") for line in stat if line.startswith("inferd_") and ",BACKEND," in line]
        return sum(int(row[4]) for row in rows)

    def restart(self):
        """Restarts the host as an operator would; the front balancer learns of it only by the host's health."""
        ask_haproxy(self.path("haproxy.sock"), "disable server server/open")
        time.sleep(HEARD)
        daemons.wait_until(lambda: self.busy() == 0, "the streams of " + self.space)
        self.answers_before = self.answers()
        for process in (self.inferd, self.weightd):
            process.terminate()
            if process.wait(PATIENCE) != 0:
                raise AssertionError("%s: exit code %d" % (self.space, process.returncode))
        self.start()
        ask_haproxy(self.path("haproxy.sock"), "enable server server/open")

    def kill(self):
        for process in (self.balancer, self.inferd, self.weightd):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def unplug(self):
        run("ip", "link", "set", self.link, "down")


class Fleet:
    def __init__(self, affine=True):
        self.folder = tempfile.mkdtemp(prefix="sluice-fleet-")
        self.affine = affine
        self.hosts = []
        self.front = None

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        pack = os.path.join(self.folder, "pack")
        run(os.path.join(daemons.BIN, "sluice"), "pack", "deploy/sample", "--out", pack, "--bits", "bf16", "--quiet")
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", FRONT + "/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        self.hosts = []
        for i in range(1, len(HOSTS) + 1):
            self.hosts.append(Host(i, self.folder, pack))
        with open("deploy/fleet/haproxy-front.cfg") as file:
            text = file.read()
        if not self.affine:
            text = re.sub(r"  balance hash .*\n  hash-type .*\n(?:  #.*\n)*  hash-balance-factor .*\n", "  balance leastconn\n", text)
        self.config = os.path.join(self.folder, "front.cfg")
        with open(self.config, "w") as file:
            file.write(text)
        environment = {"SLUICE_HTTP": FRONT + ":8080", "SLUICE_GRPC": FRONT + ":9090", "SLUICE_ADMIN": os.path.join(self.folder, "front.sock")}
        for i, host in enumerate(self.hosts, 1):
            environment["SLUICE_HOST%d" % i] = host.address
        self.front_log = open(os.path.join(self.folder, "front.log"), "wb")
        self.front = subprocess.Popen(["haproxy", "-db", "-f", self.config], env={**os.environ, **environment},
                                      stdout=self.front_log, stderr=self.front_log)  # fmt: skip
        daemons.wait_until(lambda: self.states().count("UP") == 2 * len(HOSTS), "the balancer to find all hosts")

    def states(self):
        try:
            stat = ask_haproxy(os.path.join(self.folder, "front.sock"), "show stat")
        except OSError:
            return []
        return [line.split(",")[17] for line in stat.splitlines() if line.startswith("hosts_") and ",BACKEND," not in line]

    def running_on(self, server):
        """Returns the ports of HTTP clients, and the number of gRPC streams, that the front balancer has on a host."""
        ports, over_grpc = set(), 0
        for line in ask_haproxy(os.path.join(self.folder, "front.sock"), "show sess").splitlines():
            if "srv=%s " % server in line:
                over_grpc += "be=hosts_grpc" in line
                if "be=hosts_http" in line:
                    ports.add(int(re.search(r"src=[0-9.]+:(\d+)", line).group(1)))
        return ports, over_grpc

    def __exit__(self, *_):
        if self.front is not None:
            self.front.kill()
            self.front.wait()
            self.front_log.close()
        for number in range(1, len(HOSTS) + 1):
            if number <= len(self.hosts):
                self.hosts[number - 1].kill()
            # A namespace is deleted when its last process has ended, its link at once.
            subprocess.run(["ip", "link", "del", "sl%d" % number], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", "slhost%d" % number], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", BRIDGE], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)


class Load:
    """Sends requests at a steady rate, whatever their outcome; half of them over HTTP, half over gRPC."""

    def __init__(self, rate, words, seed=7):
        self.rate = rate
        self.random = random.Random(seed)
        vocabulary = "film story young man who city people world first time step life war house night river music".split()
        self.beginnings = [" ".join(self.random.choice(vocabulary) for _ in range(words)) for _ in range(GROUPS)]
        self.results = []
        self.mutex = threading.Lock()
        self.threads = []
        self.over = threading.Event()

    def __enter__(self):
        self.channel = daemons.grpc.insecure_channel(FRONT + ":9090", options=[("grpc.enable_retries", 0)])
        self.stub = daemons.inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.pacer = threading.Thread(target=self.pace)
        self.pacer.start()
        return self

    def pace(self):
        begin = time.monotonic()
        number = 0
        while not self.over.is_set():
            group = self.random.randrange(GROUPS)
            self.send(number, group, 300 if number % 20 == 0 else self.random.randint(8, 24))
            number += 1
            self.over.wait(max(0, begin + number / self.rate - time.monotonic()))

    def send(self, number, group, tokens):
        thread = threading.Thread(target=self.one, args=(number, group, tokens))
        thread.start()
        self.threads.append(thread)

    def one(self, number, group, tokens):
        result = {"number": number, "began": time.monotonic(), "tokens": tokens, "kind": ("http", "grpc")[number % 2]}
        text = "%s And number %d says" % (self.beginnings[group], number)
        try:
            (self.over_http if number % 2 == 0 else self.over_grpc)(result, "group-%d" % group, text, tokens)
            result["ok"] = result["made"] == tokens
            if not result["ok"]:
                result["why"] = "%d of %d tokens" % (result["made"], tokens)
        except Exception as error:  # every failure that a client sees is counted
            result["ok"] = False
            result["why"] = "%s: %s" % (type(error).__name__, str(getattr(error, "details", lambda: error)())[:200])
        result["ended"] = time.monotonic()
        with self.mutex:
            self.results.append(result)

    def over_http(self, result, key, text, tokens):
        connection = http.client.HTTPConnection(FRONT, 8080, timeout=PATIENCE)
        connection.connect()
        result["port"] = connection.sock.getsockname()[1]
        body = {"prompt": text, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, "prompt_cache_key": key}  # fmt: skip
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError("status %d: %s" % (answer.status, answer.read(200)))
        whole = False
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                result.setdefault("first", time.monotonic())
                if event.get("usage"):
                    usage = event["usage"]
                    result.update(made=usage["completion_tokens"], prompt=usage["prompt_tokens"],
                                  cached=usage["prompt_tokens_details"]["cached_tokens"])  # fmt: skip
                if event.get("timings"):
                    result["timings"] = event["timings"]
            whole = whole or line.strip() == b"data: [DONE]"
        connection.close()
        if not whole:
            raise RuntimeError("cut")

    def over_grpc(self, result, key, text, tokens):
        request = daemons.stream_request(text, tokens=tokens)
        request.spec.stopping.ignore_eos = True
        for event in self.stub.GenerateStream(request, metadata=[("x-prompt-cache-key", key)], timeout=PATIENCE):
            kind = event.WhichOneof("event")
            if kind == "delta":
                result.setdefault("first", time.monotonic())
            elif kind == "finished":
                usage = event.finished.usage
                result.update(made=usage.completion_tokens, prompt=usage.prompt_tokens, cached=usage.cached_prompt_tokens)

    def __exit__(self, *_):
        self.over.set()
        self.pacer.join()
        for thread in self.threads:
            thread.join()
        self.channel.close()


def share(results):
    done = [r for r in results if r.get("prompt")]
    return sum(r["cached"] for r in done) / max(1, sum(r["prompt"] for r in done))


def first_token(results, q):
    times = sorted(r["first"] - r["began"] for r in results if "first" in r)
    return times[min(len(times) - 1, int(q * len(times)))] if times else float("nan")


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def tell(results):
    for result in [r for r in results if not r["ok"]][:5]:
        print("  failed: %s after %.2f s: %s" % (result["kind"], result["ended"] - result["began"], result["why"]), file=sys.stderr)


def rolling(options):
    with Fleet() as fleet:
        with Load(options.rate, SHORT) as load:
            time.sleep(options.seconds / 4)
            for host in fleet.hosts:
                host.restart()
                daemons.wait_until(lambda: fleet.states().count("UP") == 2 * len(HOSTS), "the balancer to see it")
                time.sleep(1)
            time.sleep(options.seconds / 4)
        made = sum(host.answers() for host in fleet.hosts)
    lost = [r for r in load.results if not r["ok"]]
    tell(lost)
    given = len(load.results) - len(lost)
    # The first token that each inferd generates at its start is no client's answer and not counted.
    row("rolling restart of all three", len(load.results), len(lost), made - given, "-", "%.2f s" % first_token(load.results, 0.99))
    return load.results


def lost_host(options, name, lose):
    """Loses a host while every host has long streams."""
    with Fleet() as fleet:
        with Load(options.rate, SHORT) as load:
            time.sleep(options.seconds / 3)
            for number in range(LONG_STREAMS):
                load.send(LONG_NUMBERS + number, number % GROUPS, LONG_TOKENS)
            time.sleep(1)
            ports, over_grpc = fleet.running_on("host2")
            lose(fleet.hosts[1])
            at = time.monotonic()
            time.sleep(options.seconds * 2 / 3)
    failed = [r for r in load.results if not r["ok"]]
    new = [r for r in failed if r["began"] > at]
    elsewhere = [r for r in failed if r["kind"] == "http" and r.get("port") not in ports and r not in new]
    more = max(0, sum(r["kind"] == "grpc" for r in failed if r not in new) - over_grpc)
    long_failed = sum(r["number"] >= LONG_NUMBERS for r in failed)
    tell(failed)
    after = [r for r in load.results if at < r["began"] < at + 5]
    longest = max((r.get("first", r["ended"]) - r["began"] for r in after), default=float("nan"))
    row("%s; %d streams ran there" % (name, len(ports) + over_grpc), len(load.results),
        "%d of those (%d of %d long ones), %d that ran elsewhere, %d new" % (len(failed) - len(new) - len(elsewhere) - more,
        long_failed, LONG_STREAMS, len(elsewhere) + more, len(new)), "-", "-", "%.2f s the longest in the 5 s after" % longest)  # fmt: skip
    return load.results


def affinity(options, affine):
    with Fleet(affine) as fleet:
        with Load(options.rate, LONG) as load:
            time.sleep(options.seconds)
    tell(load.results)
    name = "by prompt_cache_key" if affine else "by least connections"
    row(name, len(load.results), sum(not r["ok"] for r in load.results), "-", "%.1f %%" % (100 * share(load.results)),
        "%.2f s" % first_token(load.results, 0.99))  # fmt: skip
    return load.results


SCENARIOS = collections.OrderedDict(
    rolling=rolling,
    killed=lambda o: lost_host(o, "a host killed", Host.kill),
    unplugged=lambda o: lost_host(o, "a host unplugged", Host.unplug),
    affine=lambda o: affinity(o, True),
    even=lambda o: affinity(o, False),
)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--record")
    parser.add_argument("--only", choices=list(SCENARIOS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    row("what", "requests", "lost", "doubled", "prompt tokens found in a cache", "first token, p99")
    row(*["---"] * 6)
    for name, scenario in SCENARIOS.items():
        if options.only in (None, name):
            results = scenario(options)
            if options.record:
                with open(options.record, "a") as file:
                    for result in results:
                        file.write(json.dumps({"scenario": name, **result}) + "\n")


if __name__ == "__main__":
    main()
