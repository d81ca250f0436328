"""Disconnects at random moments, over HTTP and gRPC mixed, leave no resources behind. 400 of them, and 10,000
with SLUICE_STRESS=full."""
import json
import os
import random
import re
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from daemons import grpc, inference_pb2_grpc, stream_request  # noqa: E402
from http_test import SAY, HttpEndpoint, http_arguments  # noqa: E402

DISCONNECTS = 10_000 if os.environ.get("SLUICE_STRESS") == "full" else 400
CLIENTS = 8
# Bound for inferd's own memory: a leak per request would exceed it a thousandfold. Allocators keep some.
GROWTH = 24 << 20
GAUGES = ("inferd_requests_running", "inferd_requests_waiting", "inferd_calls_active", "inferd_unsent_bytes",
          "inferd_kv_pages_used", "inferd_grammars_waiting")  # fmt: skip


class DisconnectsTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.daemons.start_weightd()
        self.daemons.start_inferd(*http_arguments("--parallel", "4", "--max-queue", "64", "--context", "512"))
        self.port = int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", self.daemons.inferd.text()).group(1))

    def http_disconnect(self, rng):
        body = {"messages": SAY, "max_tokens": rng.choice((1, 20, 400)), "ignore_eos": True, "n": rng.choice((1, 1, 3)),
                "stream": rng.random() < 0.6, "logprobs": rng.random() < 0.2}  # fmt: skip
        if rng.random() < 0.2:
            body.update({"ignore_eos": False, "guided_regex": "[a-z ]{5,%d}" % rng.choice((20, 60))})
        if rng.random() < 0.1:
            body["messages"] = [{"role": "user", "content": "word " * 300}]
        data = json.dumps(body).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data)
        with socket.create_connection(("127.0.0.1", self.port), daemons.PATIENCE) as connection:
            sent = (head + data)[: rng.choice((len(head) // 2, len(head) + 5, 1 << 20, 1 << 20, 1 << 20))]
            connection.sendall(sent)
            if len(sent) == len(head + data) and rng.random() < 0.7:
                connection.settimeout(rng.uniform(0.0005, 0.05))
                try:
                    for _ in range(rng.randrange(1, 8)):
                        if not connection.recv(500):
                            break
                except TimeoutError:
                    pass
            if rng.random() < 0.3:  # a reset, not an end
                linger = (1).to_bytes(4, sys.byteorder) + (0).to_bytes(4, sys.byteorder)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def grpc_disconnect(self, rng, stub):
        deadline = rng.uniform(0.001, 0.05) if rng.random() < 0.3 else None
        call = stub.GenerateStream(stream_request("The film", tokens=rng.choice((1, 20, 400))), timeout=deadline)
        try:
            for _ in range(rng.randrange(4)):
                next(call, None)
        except grpc.RpcError:
            pass  # the deadline, or a full queue
        call.cancel()

    def leave(self, first):
        rng = random.Random(first)
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            while True:
                with self.lock:
                    if self.left == 0:
                        return
                    self.left -= 1
                if rng.random() < 0.6:
                    self.http_disconnect(rng)
                else:
                    self.grpc_disconnect(rng, stub)

    def depart(self, count):
        self.left = count
        self.lock = threading.Lock()
        threads = [threading.Thread(target=self.leave, args=(count + i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(0, self.left)
        daemons.wait_until(self.idle, "gauges back to zero")

    def metrics(self):
        return HttpEndpoint(self.port).ask("GET", "/metrics")[2]

    def idle(self):
        metrics = self.metrics()
        return all("\n%s 0\n" % name in metrics for name in GAUGES)

    def memory(self):
        """Returns inferd's own memory; mapped segments of weightd do not count."""
        with open("/proc/%d/status" % self.daemons.inferd.process.pid) as file:
            return int(re.search(r"RssAnon:\s+(\d+) kB", file.read()).group(1)) << 10

    def test_nothing_stays_behind(self):
        warm = DISCONNECTS // 4
        self.depart(warm)
        before = self.memory()
        begin = time.monotonic()
        self.depart(DISCONNECTS - warm)
        after = self.memory()
        print("%d disconnects, %.0f a second, memory %.1f MiB, then %.1f MiB" % (
            DISCONNECTS, (DISCONNECTS - warm) / (time.monotonic() - begin), before / 2**20, after / 2**20), flush=True)  # fmt: skip
        self.assertLess(after - before, GROWTH)
        self.assertIn("inferd_expert_leases 0\n", self.metrics())
        answer = HttpEndpoint(self.port).post("/v1/chat/completions", {"messages": SAY, "max_tokens": 8, "temperature": 0})
        self.assertEqual(8, answer["usage"]["completion_tokens"])


if __name__ == "__main__":
    unittest.main()
