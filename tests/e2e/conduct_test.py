"""Privacy and robustness of the daemons: prompts in logs, keepalive pings, request floods."""
import socket
import struct
import time
import unittest

import daemons
from daemons import grpc, inference_pb2, inference_pb2_grpc, spec, stream_request

# HTTP/2 (RFC 9113): frame types and the interval at which inferd lets clients ping (daemon/grpc_server.cc).
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
PING_EVERY = 10.5  # seconds
OFFERED = 10_000  # requests of the flood
TOGETHER = 2000  # of these concurrently


def frame(kind, flags=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", 0) + payload


class Http2:
    """A minimal HTTP/2 connection."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(daemons.PATIENCE)
        self.socket.connect(path)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def next(self):
        """Returns type, flags and payload of the next frame; acknowledges settings."""
        while True:
            head = self.read(9)
            payload = self.read(int.from_bytes(head[:3], "big"))
            if head[3] == SETTINGS and not head[4] & ACK:
                self.socket.sendall(frame(SETTINGS, ACK))
                continue
            return head[3], head[4], payload

    def ping(self, number):
        """True if the answer arrived rather than the end of the connection."""
        try:
            self.socket.sendall(frame(PING, 0, struct.pack(">Q", number)))
            while True:
                kind, flags, payload = self.next()
                if kind == GOAWAY:
                    return False
                if kind == PING and flags & ACK:
                    return payload == struct.pack(">Q", number)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return False


class ConductTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)

    def start(self, *arguments):
        self.daemons.start_weightd("--log-level", "debug")
        self.daemons.start_inferd("--log-level", "debug", *arguments)
        self.channel = grpc.insecure_channel(self.daemons.unix_target())
        self.addCleanup(self.channel.close)
        return inference_pb2_grpc.InferenceServiceStub(self.channel)

    def connect(self):
        connection = Http2(self.daemons.path("i.sock"))
        self.addCleanup(connection.socket.close)
        return connection

    def test_no_log_holds_what_was_asked_or_answered(self):
        """Covers successful and failed answers, at the most verbose log level."""
        client = self.start("--context", "64")
        prompt = "Quixotic zebras juggle xylophones"
        answer = client.Generate(inference_pb2.GenerateRequest(spec=spec(prompt, tokens=16)))
        self.assertTrue(answer.text)
        with self.assertRaises(grpc.RpcError):
            client.Generate(inference_pb2.GenerateRequest(spec=spec(prompt * 20, tokens=16)))
        logs = self.daemons.inferd.text() + self.daemons.weightd.text()
        self.assertIn("completion=16", logs)
        for secret in ("Quixotic", "xylophone", answer.text.strip()):
            self.assertNotIn(secret, logs)

    def test_permitted_pings_keep_idle_connection(self):
        self.start()
        connection = self.connect()
        for number in range(4):
            self.assertTrue(connection.ping(number), "ping %d was answered by GOAWAY" % number)
            if number < 3:
                time.sleep(PING_EVERY)  # the test needs real time to pass

    def test_pings_in_a_burst_end_the_connection(self):
        self.start()
        connection = self.connect()
        self.assertFalse(all(connection.ping(number) for number in range(10)))

    def test_request_flood_does_not_grow_the_server(self):
        client = self.start("--max-queue", "8", "--parallel", "1")

        def resident():
            with open("/proc/%d/status" % self.daemons.inferd.process.pid) as file:
                return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))

        def flood(count):
            ended = []
            calls = [client.GenerateStream(stream_request("x", tokens=64)) for _ in range(count)]
            for call in calls:
                try:
                    list(call)
                    ended.append("OK")
                except grpc.RpcError as error:
                    ended.append(daemons.reason(error))
            return ended

        flood(TOGETHER)  # connections, threads and buffers exist from here on
        before = resident()
        ended = [end for _ in range(OFFERED // TOGETHER) for end in flood(TOGETHER)]
        self.assertEqual({"OK", "QUEUE_FULL"}, set(ended))
        grown = resident() - before
        print("%d refused of %d, %d KiB grown" % (ended.count("QUEUE_FULL"), OFFERED, grown))
        self.assertLess(grown, 16 << 10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
