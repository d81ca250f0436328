"""Security of the servers: TLS and certificate reload, client certificates, unix sockets, CORS."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from daemons import grpc, inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc, spec  # noqa: E402
from http_test import SAY  # noqa: E402

TLS = "tests/data/tls/"


def read(name):
    with open(TLS + name, "rb") as file:
        return file.read()


class SafetyTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)

    def start(self, *arguments):
        for name in ("chain.pem", "key.pem"):
            self.install("server_1", name)
        self.daemons.start_weightd()
        self.daemons.start_inferd(*arguments)

    def install(self, server, name):
        """Installs one of a server's files in the configured path."""
        shutil.copy(TLS + server + (".pem" if name == "chain.pem" else ".key"), self.daemons.path(name))

    def https(self, port, **limits):
        context = ssl.create_default_context(cafile=TLS + "ca.pem")
        for name, value in limits.items():
            setattr(context, name, value)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=daemons.PATIENCE, context=context)
        self.addCleanup(connection.close)
        return connection

    @staticmethod
    def server_of(connection):
        return dict(pair[0] for pair in connection.sock.getpeercert()["subject"])["commonName"]

    def models(self, connection, **headers):
        connection.request("GET", "/v1/models", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def test_https_serves_and_reloads_certificate(self):
        self.start("--http", "0.0.0.0:0", "--http-tls-certificate", self.daemons.path("chain.pem"),
                   "--http-tls-key", self.daemons.path("key.pem"))  # fmt: skip
        port = int(re.search(r"over HTTP to 0\.0\.0\.0:(\d+)", self.daemons.inferd.text()).group(1))
        old = self.https(port)
        self.assertEqual(200, self.models(old))
        self.assertEqual("first server", self.server_of(old))
        body = json.dumps({"messages": SAY, "max_tokens": 24, "stream": True})
        old.request("POST", "/v1/chat/completions", body)
        self.assertTrue(old.getresponse().read().endswith(b"data: [DONE]\n\n"))

        # Refused: old TLS versions and plain text.
        with self.assertRaises(ssl.SSLError):
            self.models(self.https(port, maximum_version=ssl.TLSVersion.TLSv1_1))
        plain = socket.create_connection(("127.0.0.1", port), daemons.PATIENCE)
        plain.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertNotIn(b"200", plain.recv(1000))
        plain.close()

        # A key that does not match the certificate changes nothing; a matching pair does, and open
        # connections continue.
        self.install("server_2", "key.pem")
        self.daemons.inferd.process.send_signal(signal.SIGHUP)
        self.daemons.inferd.wait_for("certificate stay as they were")
        self.assertEqual(200, self.models(self.https(port)))
        self.install("server_2", "chain.pem")
        self.daemons.inferd.process.send_signal(signal.SIGHUP)

        def renewed():
            fresh = self.https(port)
            return self.models(fresh) == 200 and self.server_of(fresh) == "second server"

        daemons.wait_until(renewed, "the second certificate")
        self.assertEqual((200, "first server"), (self.models(old), self.server_of(old)))

    def test_endless_handshakes_are_cut(self):
        self.start("--http", "0.0.0.0:0", "--http-tls-certificate", self.daemons.path("chain.pem"),
                   "--http-tls-key", self.daemons.path("key.pem"))  # fmt: skip
        port = int(re.search(r"over HTTP to 0\.0\.0\.0:(\d+)", self.daemons.inferd.text()).group(1))
        silent, begun = (socket.create_connection(("127.0.0.1", port), daemons.PATIENCE) for _ in range(2))
        with silent, begun:
            begun.sendall(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello's first bytes
            self.assertEqual(200, self.models(self.https(port)))
            for connection in (silent, begun):
                self.assertEqual(b"", self.rest_of(connection))

    @staticmethod
    def rest_of(connection):
        try:
            return connection.recv(1000)
        except ConnectionResetError:
            return b""

    def start_grpc(self):
        """Its port; with client certificates."""
        self.start(
            "--listen", "0.0.0.0:0", "--tls-certificate", self.daemons.path("chain.pem"),
            "--tls-key", self.daemons.path("key.pem"), "--tls-client-ca", TLS + "ca.pem",
        )  # fmt: skip
        return re.search(r"clients connect to.* 0\.0\.0\.0:(\d+)", self.daemons.inferd.text()).group(1)

    def test_grpc_renews_its_certificate(self):
        port = int(self.start_grpc())
        context = ssl.create_default_context(cafile=TLS + "ca.pem")
        context.load_cert_chain(TLS + "client.pem", TLS + "client.key")
        context.set_alpn_protocols(["h2"])

        def server():
            with socket.create_connection(("127.0.0.1", port), daemons.PATIENCE) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                    return dict(pair[0] for pair in connection.getpeercert()["subject"])["commonName"]

        self.assertEqual("first server", server())
        own = grpc.ssl_channel_credentials(read("ca.pem"), read("client.key"), read("client.pem"))
        with grpc.secure_channel("127.0.0.1:%d" % port, own) as channel:
            models = model_pb2_grpc.ModelServiceStub(channel)
            models.GetModel(model_pb2.GetModelRequest(), timeout=20)
            self.install("server_2", "key.pem")
            self.install("server_2", "chain.pem")
            daemons.wait_until(lambda: server() == "second server", "the second certificate")
            models.GetModel(model_pb2.GetModelRequest(), timeout=20)  # open connections continue

    def test_grpc_lets_in_whom_the_authority_signed(self):
        port = self.start_grpc()

        def ask(credentials):
            with grpc.secure_channel("127.0.0.1:" + port, credentials) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                request = inference_pb2.GenerateRequest(spec=spec("The film", tokens=4))
                return stub.Generate(request, timeout=20).text

        own = grpc.ssl_channel_credentials(read("ca.pem"), read("client.key"), read("client.pem"))
        self.assertTrue(ask(own))
        self.assertIn("cert:alice", self.daemons.inferd.text())
        strange = grpc.ssl_channel_credentials(read("ca.pem"), read("stranger.key"), read("stranger.pem"))
        for credentials in (strange, grpc.ssl_channel_credentials(read("ca.pem"))):
            with self.assertRaises(grpc.RpcError) as raised:
                ask(credentials)
            self.assertEqual(grpc.StatusCode.UNAVAILABLE, raised.exception.code())
        with grpc.insecure_channel("127.0.0.1:" + port) as channel:
            with self.assertRaises(grpc.RpcError):
                model_pb2_grpc.ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest(), timeout=20)
        # The unix socket is unchanged.
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            model_pb2_grpc.ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest(), timeout=20)

    def test_grpc_beyond_loopback_needs_all_of_tls(self):
        self.install("server_1", "chain.pem")
        self.install("server_2", "key.pem")
        tls = ["--tls-certificate", self.daemons.path("chain.pem"), "--tls-key", self.daemons.path("key.pem")]
        for arguments, words in [
            (["--listen", "0.0.0.0:0"], "--tls-certificate"),
            (["--listen", "0.0.0.0:0", *tls], "--tls-client-ca"),
            (["--listen", "0.0.0.0:0", *tls, "--tls-client-ca", TLS + "ca.pem"], "--tls-key"),
        ]:
            result = daemons.subprocess.run(
                [os.path.join(daemons.BIN, "inferd"), *self.daemons.inferd_arguments(), *arguments],
                capture_output=True, text=True, timeout=daemons.PATIENCE,
            )  # fmt: skip
            self.assertNotEqual(0, result.returncode)
            self.assertIn(words, result.stdout + result.stderr)

    def test_http_over_a_unix_socket_knows_its_peers(self):
        self.daemons.start_weightd()
        path = self.daemons.path("h.sock")
        keys = self.daemons.path("keys")
        with open(keys, "w") as file:
            file.write("ann " + "0" * 64 + "\n")
        self.daemons.start_inferd("--http", "unix:" + path, "--http-keys", keys)

        class UnixConnection(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(daemons.PATIENCE)
                self.sock.connect(path)

        self.assertEqual(0o600, os.stat(path).st_mode & 0o777)
        connection = UnixConnection("localhost")
        self.addCleanup(connection.close)
        self.assertEqual(200, self.models(connection))
        connection.request("POST", "/v1/chat/completions", json.dumps({"messages": SAY, "max_tokens": 4}))
        answer = json.loads(connection.getresponse().read())
        self.assertEqual(4, answer["usage"]["completion_tokens"])
        self.assertEqual(0, self.daemons.inferd.stop())
        self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
