"""The wall clock of both daemons is set while they serve: no timeout, deadline or measurement may notice."""
import http.client
import json
import os
import socket
import unittest

import daemons
from daemons import grpc, inference_pb2_grpc, stream_request

DAY = 86_400
TOKENS = 1000  # over two seconds: absl::Now() looks at the clock every two
JUMPS = (DAY, 0, -30 * DAY)  # forth, back, further back


class UnixHttp(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=daemons.PATIENCE)
        self.path = path

    def connect(self):
        if self.sock is not None:
            raise AssertionError("the server closed a kept connection")
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.clock = daemons.WallClock(self.daemons.path("clock"))
        environment = {**os.environ, **self.clock.environment}
        # Most experts are read anew for each token.
        self.daemons.start_weightd("--dram-budget", "4MiB", "--read-timeout", "2s", env=environment)
        self.daemons.start_inferd("--parallel", "2", "--threads", "1", "--http", "unix:" + self.daemons.path("h.sock"), env=environment)
        self.case = daemons.greedy_cases()[0]
        self.prompt = stream_request(ids=self.case["prompt_ids"], tokens=TOKENS)
        self.prompt.spec.stopping.ignore_eos = True
        channel = grpc.insecure_channel(self.daemons.unix_target())
        self.addCleanup(channel.close)
        self.stub = inference_pb2_grpc.InferenceServiceStub(channel)

    def check_running(self):
        for daemon in (self.daemons.weightd, self.daemons.inferd):
            self.assertIsNone(daemon.process.poll(), daemon.text())
            self.assertNotIn(" error ", daemon.text())

    def stream(self, jump=None):
        """The token ids of one answer, whose first token sets the clock to `jump`."""
        ids = []
        for event in self.stub.GenerateStream(self.prompt, timeout=daemons.PATIENCE):
            if jump is not None and not ids:
                self.clock.set(jump)
            ids += event.delta.token_ids
        return ids

    def test_streams_survive_jumps(self):
        expected = self.stream()
        self.assertEqual(TOKENS, len(expected))
        self.assertEqual(self.case["greedy_ids"], expected[: len(self.case["greedy_ids"])])
        for jump in JUMPS:
            self.assertEqual(expected, self.stream(jump))
        self.check_running()

    def test_deadlines_hold_right_after_a_jump(self):
        request = stream_request(ids=self.case["prompt_ids"], tokens=2)
        for jump in JUMPS:
            self.clock.set(jump)
            for _ in range(3):
                list(self.stub.GenerateStream(request, timeout=daemons.PATIENCE))

    def ask(self, connection, tokens):
        body = {"prompt": self.case["prompt_ids"], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        self.assertEqual(200, answer.status, text)
        return json.loads(text)["choices"][0]["text"]

    def test_kept_connections_survive_jumps(self):
        connection = UnixHttp(self.daemons.path("h.sock"))
        self.addCleanup(connection.close)
        expected = self.ask(connection, 8)
        for jump in JUMPS:
            self.clock.set(jump)
            # Takes longer than the server's timers, which run four times a second.
            other = UnixHttp(self.daemons.path("h.sock"))
            self.assertEqual(expected, self.ask(other, TOKENS)[: len(expected)])
            other.close()
            self.assertEqual(expected, self.ask(connection, 8))
        self.check_running()

    def test_answers_show_the_wall_clock(self):
        connection = UnixHttp(self.daemons.path("h.sock"))
        self.addCleanup(connection.close)
        created = []
        for jump in (0, DAY):
            self.clock.set(jump)
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "A", "max_tokens": 1}),
                               {"Content-Type": "application/json"})  # fmt: skip
            created.append(json.loads(connection.getresponse().read())["created"])
        self.assertAlmostEqual(DAY, created[1] - created[0], delta=DAY / 2)

    def test_daemons_end_in_time_after_a_jump(self):
        self.clock.set(-DAY)
        self.assertEqual(0, self.daemons.inferd.stop())
        self.assertEqual(0, self.daemons.weightd.stop())


if __name__ == "__main__":
    unittest.main()
