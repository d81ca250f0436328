"""Two models by turns behind one server, on memory for one and a half of them.

  model_switches.py [--shape SHAPE] [--layers N] [--bits BITS] [--switches N] [--clients N] [--tokens N] [--cold N]
                    [--folder DIR] [--seed N] [--json FILE]

Makes two synthetic packs in the folder (kept if they are there), and asks each model alone for its greedy answers. Then
clients, half of them over HTTP and half over gRPC, ask the models by turns: weightd may hold the weights of one and a half,
and one inferd fits beside them. Counted are tokens that differ, requests that fail, and memory above a budget:
what the server reports, what weightd's segments take, and what inferds have of their own. Exit code 0 only if nothing was.

Times of a switch, from the server's order to unload one model until the other one serves: warm ones under the clients' load;
cold ones (--cold) with a new server, and packs dropped from the page cache. Programs and stubs as for the end-to-end tests.
"""
import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import daemons
import grpc

NAMES = ("alpha", "beta")
PROMPTS = ["The river", "A film", "Seven: 1, ", "In winter "]
SAMPLE_SECONDS = 0.02
MIB = 1 << 20


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=600)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Server:
    """`sluice serve` of some packs in a runtime directory of its own, and the lines that it writes with their times."""

    def __init__(self, options, packs, *more):
        self.runtime = tempfile.mkdtemp(prefix="sl-", dir="/tmp")
        self.socket = os.path.join(self.runtime, "http.sock")
        self.target = "unix:" + os.path.join(self.runtime, "inferd.sock")
        self.lines = []
        words = [os.path.join(daemons.BIN, "sluice"), "serve", "--http", "unix:" + self.socket]
        for pack in packs:
            words += ["--pack", pack]
        words += ["--context", str(options.context), "--parallel", str(options.clients), *more]
        environment = {**os.environ, "SLUICE_RUNTIME_DIR": self.runtime}
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)  # fmt: skip
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        daemons.wait_until(self._answers, "the server")

    def _read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def _answers(self):
        if self.process.poll() is not None:
            raise AssertionError("\n".join(line for _, line in self.lines))
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def get(self, path):
        connection = UnixConnection(self.socket)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name):
        text = self.get("/metrics")[1]
        return {m[1]: float(m[2]) for m in re.finditer("^" + name + r'\{model="(\w+)"\} (\S+)$', text, re.M)}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.reader.join()
        self.process.stderr.close()
        shutil.rmtree(self.runtime)
        if code != 0:
            raise AssertionError("\n".join(line for _, line in self.lines[-20:]))

    def processes(self, name):
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
            except OSError:
                continue
            if os.path.basename(words[0]) == name and any(self.runtime in word for word in words):
                found.append(entry)
        return found


def ask_http(server, model, prompt, tokens):
    """The answer's text; an error is a string that no answer is."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    connection = UnixConnection(server.socket)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps({**body, "model": model}), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return json.loads(text)["choices"][0]["text"] if answer.status == 200 else f"HTTP {answer.status}: {text}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"HTTP: {error!r}"
    finally:
        connection.close()


def ask_grpc(channel, model, prompt, tokens, streams):
    """The answer's token ids; an error is a string that no answer is."""
    spec = daemons.spec(text=prompt, tokens=tokens, model=model)
    spec.sampling.temperature = 0
    spec.stopping.ignore_eos = True
    stub = daemons.inference_pb2_grpc.InferenceServiceStub(channel)
    try:
        if not streams:
            return list(stub.Generate(daemons.inference_pb2.GenerateRequest(spec=spec)).token_ids)
        events = list(stub.GenerateStream(daemons.inference_pb2.GenerateStreamRequest(spec=spec)))
        if not events or events[-1].WhichOneof("event") != "finished":
            return "the stream has no end"
        return [token for event in events for token in event.delta.token_ids]
    except grpc.RpcError as error:
        return f"gRPC {error.code()}: {error.details()}"


def make_packs(options):
    packs = []
    for seed, name in enumerate(NAMES, start=options.seed):
        packs.append(os.path.join(options.folder, name))
        if not os.path.exists(os.path.join(packs[-1], "manifest.json")):
            words = [os.path.join(daemons.BIN, "sluice"), "synth", "--shape", options.shape, "--seed", str(seed), "-q"]
            words += ["--layers", str(options.layers)] if options.layers else []
            words += ["--bits", options.bits] if options.bits else []
            subprocess.run([*words, "--out", packs[-1]], check=True, stdout=subprocess.DEVNULL)
    return packs


def pack_files(pack):
    return [os.path.join(folder, name) for folder, _, names in os.walk(pack) for name in names]


def drop_caches(packs):
    for path in (path for pack in packs for path in pack_files(pack)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def answers_alone(options, packs):
    """{(model, prompt): (text, token ids)}, each model served by itself."""
    expected = {}
    for name, pack in zip(NAMES, packs):
        with Server(options, [pack]) as server, grpc.insecure_channel(server.target) as channel:
            for prompt in PROMPTS:
                text = ask_http(server, name, prompt, options.tokens)
                ids = ask_grpc(channel, name, prompt, options.tokens, streams=True)
                if not isinstance(ids, list) or len(ids) != options.tokens:
                    raise AssertionError(f"{name} alone: {text} {ids}")
                expected[name, prompt] = (text, ids)
    return expected


def needs(options, packs):
    """Bytes that each model takes beside its weights."""
    with Server(options, packs) as server:
        for name in NAMES:
            ask_http(server, name, PROMPTS[0], 1)
        return server.metric("sluice_model_memory_bytes")


class Memory(threading.Thread):
    """Samples what the daemons take; `most` has the largest values."""

    def __init__(self, server, models_budget, dram_budget):
        super().__init__()
        self.server, self.models_budget, self.dram_budget = server, models_budget, dram_budget
        self.most = {"reported": 0, "inferds": 0, "inferd": 0, "segments": 0, "weightd": 0}
        self.samples = 0
        self.over = threading.Event()

    def run(self):
        address = "unix:" + os.path.join(self.server.runtime, "weightd.sock")
        with grpc.insecure_channel(address, [("grpc.default_authority", "localhost")]) as channel:
            stub = daemons.weights_pb2_grpc.WeightServiceStub(channel)
            while not self.over.wait(SAMPLE_SECONDS):
                self._keep("reported", sum(self.server.metric("sluice_model_memory_bytes").values()))
                own = [status(pid, "RssAnon") for pid in self.server.processes("inferd")]
                self._keep("inferds", sum(own))
                self._keep("inferd", max(own, default=0))
                stats = stub.GetStats(daemons.weights_pb2.GetStatsRequest(), wait_for_ready=True, timeout=60)
                self._keep("segments", stats.segment_bytes)
                for pid in self.server.processes("weightd"):
                    self._keep("weightd", status(pid, "RssShmem") + status(pid, "RssAnon"))
                self.samples += 1

    def _keep(self, name, value):
        self.most[name] = max(self.most[name], value)

    def findings(self):
        found = [] if self.samples > 0 and self.most["segments"] > 0 else ["memory was not sampled"]
        for name, budget in (("reported", self.models_budget), ("inferds", self.models_budget),
                             ("segments", self.dram_budget)):  # fmt: skip
            if self.most[name] > budget:
                found.append(f"{name}: {self.most[name]} bytes, and the budget is {budget}")
        return found


def status(pid, field):
    """A size of /proc/PID/status in bytes; 0 of a process that has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Client(threading.Thread):
    """Asks the models by turns until `over`, over HTTP or gRPC."""

    def __init__(self, number, server, options, expected, over):
        super().__init__()
        self.number, self.server, self.options = number, server, options
        self.expected, self.over = expected, over
        self.answers = 0
        self.wrong = []
        self.seconds = []

    def run(self):
        with grpc.insecure_channel(self.server.target) as channel:
            turn = self.number
            while not self.over.is_set():
                name, prompt = NAMES[turn % 2], PROMPTS[(turn // 2 + self.number) % len(PROMPTS)]
                began = time.monotonic()
                if self.number % 2 == 0:
                    got = ask_http(self.server, name, prompt, self.options.tokens)
                    want = self.expected[name, prompt][0]
                else:
                    got = ask_grpc(channel, name, prompt, self.options.tokens, streams=turn % 4 < 2)
                    want = self.expected[name, prompt][1]
                self.seconds.append(time.monotonic() - began)
                self.answers += 1
                if got != want:
                    self.wrong.append((name, prompt, got))
                turn += 1


def switch_times(lines):
    """Seconds from each order to unload a model until the other one serves, and of those the loads alone."""
    switches, loads = [], []
    unloading = None
    for at, line in lines:
        if line.startswith("sluice: unloading"):
            unloading = at
        elif (match := re.match(r"sluice: loaded \w+ in ([\d.]+) s", line)) is not None:
            loads.append(float(match[1]))
            if unloading is not None:
                switches.append(at - unloading)
                unloading = None
    return switches, loads


def spread(seconds):
    ordered = sorted(seconds)
    return {
        "count": len(ordered), "median": statistics.median(ordered), "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "max": ordered[-1],
    }  # fmt: skip


def run_warm(options, server, budgets, expected):
    memory = Memory(server, *budgets)
    over = threading.Event()
    clients = [Client(number, server, options, expected, over) for number in range(options.clients)]
    for thread in [memory, *clients]:
        thread.start()
    try:
        while len(switch_times(server.lines)[0]) < options.switches and not any(client.wrong for client in clients):
            time.sleep(0.05)
    finally:
        over.set()
        for client in clients:
            client.join()
        memory.over.set()
        memory.join()
    findings = memory.findings() + [entry for client in clients for entry in client.wrong]
    losses = server.metric("sluice_model_losses_total")
    if any(losses.values()):
        findings.append(f"inferds were lost: {losses}")
    switches, loads = switch_times(server.lines)
    return findings, {
        "answers": sum(client.answers for client in clients),
        "switch_seconds": spread(switches), "load_seconds": spread(loads),
        "answer_seconds": spread([s for client in clients for s in client.seconds]),
        "memory": memory.most, "memory_samples": memory.samples,
    }  # fmt: skip


def run_cold(options, packs, more):
    """Seconds of the first switch of a new server, and from its request to the first answer of one token."""
    drop_caches(packs)
    with Server(options, packs, *more) as server:
        ask_http(server, NAMES[0], PROMPTS[0], 1)
        began = time.monotonic()
        ask_http(server, NAMES[1], PROMPTS[0], 1)
        answered = time.monotonic() - began
        return switch_times(server.lines)[0][0], answered


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--bits", default="")
    parser.add_argument("--switches", type=int, default=50 if os.environ.get("SLUICE_STRESS") == "full" else 12)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--cold", type=int, default=1)
    parser.add_argument("--folder", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    made = None if options.folder else tempfile.mkdtemp(prefix="sluice-switches-")
    options.folder = options.folder or made
    try:
        os.makedirs(options.folder, exist_ok=True)
        packs = make_packs(options)
        pack_bytes = max(sum(os.path.getsize(path) for path in pack_files(pack)) for pack in packs)
        expected = answers_alone(options, packs)
        models_budget = int(1.5 * max(needs(options, packs).values()))
        dram_budget = int(1.5 * pack_bytes)
        more = ("--models-budget", str(models_budget), "--dram-budget", str(dram_budget))
        with Server(options, packs, *more) as server:
            findings, result = run_warm(options, server, (models_budget, dram_budget), expected)
        cold = [run_cold(options, packs, more) for _ in range(options.cold)]
    finally:
        if made is not None:
            shutil.rmtree(made)
    result |= {"pack_bytes": pack_bytes, "models_budget": models_budget, "dram_budget": dram_budget}
    if cold:
        result["cold_switch_seconds"] = spread([switch for switch, _ in cold])
        result["cold_answer_seconds"] = spread([answer for _, answer in cold])
    print(json.dumps(result, indent=1))
    for finding in findings:
        print("FOUND", finding)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**result, "findings": [str(finding) for finding in findings]}, file, indent=1)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
