"""Both daemons as services: notifications, socket activation, reload."""
import contextlib
import os
import shutil
import signal
import socket
import unittest
import urllib.error
import urllib.request

import daemons
from daemons import grpc, inference_pb2_grpc, stream_request
from fake_manager import FakeManager


class ServiceTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.manager = FakeManager(self.daemons.path("notify"))
        self.addCleanup(self.manager.close)

    def environment(self, **more):
        return {**os.environ, "NOTIFY_SOCKET": self.daemons.path("notify"), **more}

    def weightd(self, *arguments, **popen):
        return daemons.Daemon(
            "weightd",
            ["--pack", self.daemons.pack, "--socket", self.daemons.path("w.sock")] + list(arguments),
            self.daemons.path("w.log"),
            **popen,
        )

    def life(self, daemon):
        """From READY to the end, with a watchdog of 300 ms."""
        self.manager.until("READY=1")
        for _ in range(3):
            self.manager.until("WATCHDOG=1")
        daemon.process.send_signal(signal.SIGTERM)
        self.manager.until("STOPPING=1")
        self.assertEqual(0, daemon.wait())
        return self.manager.heard

    def test_weightd_notifies_start_and_end(self):
        self.daemons.weightd = self.weightd(env=self.environment(WATCHDOG_USEC="300000"))
        heard = self.life(self.daemons.weightd)
        before = heard[: heard.index("READY=1")]
        self.assertTrue(any("STATUS=fetching an extent" in line for line in before), heard)
        self.assertTrue(any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in before), heard)
        self.assertFalse(any(line.startswith("WATCHDOG") for line in before), heard)

    def test_inferd_notifies_start_and_end(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd(wait=False, env=self.environment(WATCHDOG_USEC="300000"))
        heard = self.life(self.daemons.inferd)
        before = heard[: heard.index("READY=1")]
        self.assertTrue(any(line.startswith("STATUS=") for line in before), heard)

    def test_weightd_is_ready_only_once_a_fetch_works(self):
        for name in ("experts.bin", "dense.bin"):
            damaged = os.path.join(self.daemons.pack, name)
            with open(damaged, "r+b") as file:
                size = os.path.getsize(damaged)
                file.write(b"\xff" * size)
        self.daemons.weightd = self.weightd(env=self.environment())
        self.assertEqual(1, self.daemons.weightd.wait())
        self.assertIn("a test fetch of extent", self.daemons.weightd.text())
        self.manager.socket.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.manager.until("READY=1")

    @contextlib.contextmanager
    def port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            yield taken.getsockname()[1]

    def reload(self, daemon, config, text):
        with open(config, "w") as file:
            file.write(text)
        daemon.process.send_signal(signal.SIGHUP)
        lines = self.manager.until("RELOADING=1")
        self.assertRegex("\n".join(lines), r"MONOTONIC_USEC=\d+")
        self.manager.until("READY=1")

    def reloads(self, daemon, config, base):
        self.manager.until("READY=1")
        self.reload(daemon, config, base + 'log-level = "debug"\ndrain-timeout = "7s"\n')
        for change in ("log-level=debug", "drain-timeout=7s"):
            self.assertIn(change, daemon.text().split("read anew: ")[-1])
        self.reload(daemon, config, base + 'log-level = "debug"\nbudget = "huge"\n')
        self.assertIn("those in effect stay", daemon.text())
        self.reload(daemon, config, base + 'threads = 2\nlog-level = "info"\n')
        self.assertIn('threads needs a restart to become "2"', daemon.text())
        self.assertEqual(0, daemon.stop())

    def test_weightd_reads_its_options_anew_on_sighup(self):
        config = self.daemons.path("w.toml")
        base = 'pack = ["%s"]\nsocket = "%s"\n' % (self.daemons.pack, self.daemons.path("w.sock"))
        with open(config, "w") as file:
            file.write(base)
        self.daemons.weightd = daemons.Daemon(
            "weightd", ["--config", config], self.daemons.path("w.log"), env=self.environment()
        )
        self.reloads(self.daemons.weightd, config, base)

    def test_weightd_reloads_options_on_sighup(self):
        config = self.daemons.path("w.toml")
        base = 'pack = ["%s"]\nsocket = "%s"\n' % (self.daemons.pack, self.daemons.path("w.sock"))
        with open(config, "w") as file:
            file.write(base)
        weightd = self.daemons.weightd = daemons.Daemon(
            "weightd", ["--config", config], self.daemons.path("w.log"), env=self.environment()
        )
        self.manager.until("READY=1")
        rates = 'scrub-rate = "64MiB"\nread-timeout = "3s"\nsession-quota = "1GiB"\nallow-uid = [65534]\n'
        self.reload(weightd, config, base + rates + 'metrics = "127.0.0.1:0"\n')
        applied = weightd.text().split("read anew: ")[-1]
        for change in ("scrub-rate=", "read-timeout=3s", "session-quota=", "allow-uid=65534", "metrics="):
            self.assertIn(change, applied)
        self.assertNotIn("needs a restart", applied)
        url = weightd.wait_for(r"metrics on (\S+)").group(1)

        def scrubbed():
            with urllib.request.urlopen(url, timeout=daemons.PATIENCE) as answer:
                lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
            return float(lines["weightd_scrub_bytes_total"]) > 0

        daemons.wait_until(scrubbed, "the scrub to begin")
        self.reload(weightd, config, base + 'metrics = "192.0.2.1:1"\n')
        self.assertIn("those in effect stay", weightd.text())
        with self.port_in_use() as port:
            self.reload(weightd, config, base + f'metrics = "127.0.0.1:{port}"\n')
        self.assertIn("metrics stay as they were", weightd.text())
        self.assertTrue(scrubbed())
        self.reload(weightd, config, base)
        with self.assertRaises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=daemons.PATIENCE)
        self.assertEqual(0, weightd.stop())

    def test_inferd_reads_its_options_anew_on_sighup(self):
        self.daemons.start_weightd()
        config = self.daemons.path("i.toml")
        with open(config, "w") as file:
            file.write("prefill-chunk = 64\nthreads = 1\n")
        self.daemons.start_inferd("--config", config, wait=False, env=self.environment())
        self.reloads(self.daemons.inferd, config, "prefill-chunk = 64\n")

    def test_inferd_reloads_options_on_sighup(self):
        self.daemons.start_weightd()
        config = self.daemons.path("i.toml")
        with open(config, "w") as file:
            file.write("")
        self.daemons.start_inferd("--config", config, wait=False, env=self.environment())
        inferd = self.daemons.inferd
        self.manager.until("READY=1")
        limits = 'max-queue = 5\nmax-unsent = "2MiB"\nstall-timeout = "7s"\nmax-request-time = "1ms"\nallow-uid = [65534]\nkeep = "1s"\n'
        self.reload(inferd, config, limits + 'metrics = "127.0.0.1:0"\n')
        applied = inferd.text().split("read anew: ")[-1]
        changes = "max-queue=5 max-unsent= stall-timeout=7s max-request-time=1ms allow-uid=65534 keep=1s metrics="
        for change in changes.split():
            self.assertIn(change, applied)
        self.assertNotIn("needs a restart", applied)
        url = inferd.wait_for(r"metrics on (\S+)").group(1)

        def answers():
            with urllib.request.urlopen(url, timeout=daemons.PATIENCE) as answer:
                return answer.read().decode()

        # The limit applies to calls from now on, until it is reset.
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            with self.assertRaises(grpc.RpcError) as caught:
                list(stub.GenerateStream(stream_request("x", tokens=900, stopping={"ignore_eos": True})))
            self.assertEqual(grpc.StatusCode.DEADLINE_EXCEEDED, caught.exception.code())
            self.assertIn('inferd_responses_total{code="DEADLINE_EXCEEDED"} 1', answers())
            self.reload(inferd, config, 'max-queue = 0\nmetrics = "127.0.0.1:0"\n')
            with self.assertRaises(grpc.RpcError) as caught:
                list(stub.GenerateStream(stream_request("x", tokens=4)))
            self.assertEqual(grpc.StatusCode.RESOURCE_EXHAUSTED, caught.exception.code())
            self.reload(inferd, config, 'metrics = "192.0.2.1:1"\n')
            self.assertIn("those in effect stay", inferd.text())
            with self.port_in_use() as port:
                self.reload(inferd, config, f'metrics = "127.0.0.1:{port}"\n')
            self.assertIn("metrics stay as they were", inferd.text())
            self.assertTrue(list(stub.GenerateStream(stream_request("x", tokens=4))))
        self.assertIn('inferd_responses_total{code="OK"} 1', answers())
        self.reload(inferd, config, "")
        with self.assertRaises(urllib.error.URLError):
            answers()
        self.assertEqual(0, inferd.stop())

    def test_inferd_counts_answers_in_its_metrics(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd("--metrics", "127.0.0.1:0")
        url = self.daemons.inferd.wait_for(r"metrics on (\S+)").group(1)
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            list(inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(stream_request("x", tokens=4)))
        with urllib.request.urlopen(url, timeout=daemons.PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        self.assertIn('inferd_responses_total{code="OK"} 1', lines)
        self.assertIn("inferd_time_to_first_token_seconds_count 1", lines)
        self.assertIn("inferd_serving 1", lines)
        if shutil.which("promtool") is None:
            self.skipTest("not run: promtool check metrics (package prometheus); the text was looked at")
        daemons.subprocess.run(["promtool", "check", "metrics"], input="\n".join(lines) + "\n", text=True, check=True)

    def top(self, *arguments):
        return daemons.subprocess.Popen(
            [os.path.join(daemons.BIN, "sluice"), "top", "--weightd", self.daemons.path("w.sock"),
             "--admin", self.daemons.path("a.sock"), "--interval", "50ms"] + list(arguments),
            stdout=daemons.subprocess.PIPE, stderr=daemons.subprocess.PIPE, text=True,
        )  # fmt: skip

    def test_top_shows_present_and_absent_daemons(self):
        out, err = self.top("-n", "1").communicate(timeout=daemons.PATIENCE)
        self.assertEqual(2, out.count("absent"), out + err)
        self.daemons.start_weightd()
        self.daemons.start_inferd()
        out, err = self.top("--json", "-n", "3").communicate(timeout=daemons.PATIENCE)
        shown = daemons.json.loads(out)
        self.assertIn("tokens_per_second", shown["inferd"])
        self.assertGreater(shown["weightd"]["dram_budget_bytes"], 0)
        self.assertTrue(any(session["held_bytes"] > 0 for session in shown["weightd"]["sessions"]), out)

    def test_top_survives_weightd_restart(self):
        self.daemons.start_weightd()
        top = self.top()

        def until(text):
            for line in top.stdout:
                if text in line:
                    return
            self.fail("sluice top ended: " + top.stderr.read())

        until("DRAM")
        self.daemons.weightd.stop(signal.SIGKILL)
        until("weightd absent")
        self.daemons.start_weightd()
        until("DRAM")
        top.send_signal(signal.SIGINT)
        _, err = top.communicate(timeout=daemons.PATIENCE)
        self.assertEqual((0, ""), (top.returncode, err))

    def inherited(self, paths):
        """popen arguments that hand listening sockets of (path, type) on as systemd does."""
        listeners = []
        for path, kind in paths:
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind(path)
            listener.listen(16)
            self.addCleanup(listener.close)
            listeners.append(listener)
        numbers = [listener.fileno() for listener in listeners]

        def place():
            high = [os.dup2(number, 100 + i) for i, number in enumerate(numbers)]
            for i, number in enumerate(high):
                os.dup2(number, 3 + i)
                os.close(number)

        return {
            "preexec_fn": place,
            "close_fds": False,
            "env": {**self.environment(), "LISTEN_FDS": str(len(numbers))},
        }

    def exec_with_pid(self, name, arguments, log, popen):
        """The shell becomes the daemon, so that LISTEN_PID is right."""
        daemon = daemons.Daemon.__new__(daemons.Daemon)
        daemon.log_path = log
        daemon.log = open(log, "wb")
        daemon.process = daemons.subprocess.Popen(
            ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" "$@"', os.path.join(daemons.BIN, name)] + arguments,
            stdin=daemons.subprocess.DEVNULL, stdout=daemon.log, stderr=daemon.log, **popen,
        )  # fmt: skip
        return daemon

    def test_daemons_serve_on_inherited_sockets(self):
        w, side = self.daemons.path("w.sock"), self.daemons.path("w.sock.side")
        self.daemons.weightd = self.exec_with_pid(
            "weightd", ["--pack", self.daemons.pack, "--socket", w], self.daemons.path("w.log"),
            self.inherited([(w, socket.SOCK_STREAM), (side, socket.SOCK_SEQPACKET)]),
        )  # fmt: skip
        self.manager.until("READY=1")
        i, a = self.daemons.path("i.sock"), self.daemons.path("a.sock")
        self.daemons.inferd = self.exec_with_pid(
            "inferd", ["--pack", self.daemons.pack, "--weightd", w, "--listen", "unix:" + i, "--admin", "unix:" + a],
            self.daemons.path("i.log"), self.inherited([(i, socket.SOCK_STREAM), (a, socket.SOCK_STREAM)]),
        )  # fmt: skip
        self.manager.until("READY=1")
        with grpc.insecure_channel("unix:" + i) as channel:
            self.assertTrue(list(inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(stream_request("x"))))
        # Another process than the one that opened the sockets.
        self.assertIn("(process %d," % self.daemons.weightd.process.pid, self.daemons.inferd.text())
        for daemon in (self.daemons.inferd, self.daemons.weightd):
            self.assertEqual(0, daemon.stop())
        for path in (w, side, i, a):
            self.assertTrue(os.path.exists(path), path)
            self.assertFalse(os.path.exists(path + ".lock"), path)

    def test_unnamed_inherited_socket_fails_the_start(self):
        stray = self.daemons.path("stray.sock")
        daemon = self.exec_with_pid(
            "weightd", ["--pack", self.daemons.pack, "--socket", self.daemons.path("w.sock")],
            self.daemons.path("w.log"), self.inherited([(stray, socket.SOCK_STREAM)]),
        )  # fmt: skip
        self.assertEqual(1, daemon.wait())
        self.assertIn(stray, daemon.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
