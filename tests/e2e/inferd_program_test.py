"""The inferd program: start, failed start, service manager notifications, shutdown."""
import os
import signal
import socket
import stat
import subprocess
import sys
import unittest

import daemons
from daemons import grpc, health_pb2, health_pb2_grpc, inference_pb2_grpc, stream_request


class InferdProgramTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)

    def refused(self, *arguments):
        """Starts an inferd that must fail; returns its exit code and output."""
        result = subprocess.run(
            [os.path.join(daemons.BIN, "inferd")] + list(arguments),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=daemons.PATIENCE, text=True,
        )  # fmt: skip
        return result.returncode, result.stdout

    def test_missing_machine_features_are_named(self):
        base = self.daemons.inferd_arguments()
        os.environ["SLUICE_CUDA_MODULE"] = "/nonexistent.so"
        self.addCleanup(os.environ.pop, "SLUICE_CUDA_MODULE")
        for arguments, expected in [
            (["--device", "cuda"], "there is no /nonexistent.so"),
            (["--device", "sim", "--device-budget", "1"], "cannot hold the least working set"),
            (["--listen", "0.0.0.0:0"], "--tls-certificate"),
            (["--context", "9999999"], "9999999"),
        ]:
            code, output = self.refused(*(base + arguments))
            self.assertEqual(1, code, output)
            self.assertIn(expected, output)

    def test_wrong_options_exit_with_2(self):
        base = self.daemons.inferd_arguments()
        for arguments, expected in [
            (["--preset", "nonesuch"], "nonesuch"),
            (["--sparsity", "some"], "some"),
            (["--policy", "nonesuch=1"], "nonesuch"),
            (["--listen", "nowhere"], "nowhere"),
        ]:
            for more in ([], ["--check-config"]):
                code, output = self.refused(*(base + arguments + more))
                self.assertEqual(2, code, output)
                self.assertIn(expected, output)

    def test_missing_pack_or_weightd_fails_the_start(self):
        code, output = self.refused("--pack", self.daemons.path("none"), "--listen", "unix:" + self.daemons.path("i"))
        self.assertEqual(1, code)
        self.assertIn(self.daemons.path("none"), output)
        code, output = self.refused(*(self.daemons.inferd_arguments() + ["--weightd-wait", "100ms"]))
        self.assertEqual(1, code)
        self.assertIn(self.daemons.path("w.sock"), output)

    def test_waiting_for_weightd_is_not_serving(self):
        self.daemons.start_inferd(wait=False)
        self.daemons.inferd.wait_for("waiting for weightd")
        info = self.daemons.admin().GetServerInfo(daemons.admin_pb2.GetServerInfoRequest(), wait_for_ready=True)
        self.assertEqual(daemons.admin_pb2.SERVER_STATE_STARTING, info.state)
        self.assertIn("weightd", info.state_detail)
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            response = health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            self.assertEqual(health_pb2.HealthCheckResponse.NOT_SERVING, response.status)
            with self.assertRaises(grpc.RpcError) as raised:
                list(inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(stream_request("x")))
            self.assertEqual(grpc.StatusCode.UNAVAILABLE, raised.exception.code())
            self.assertEqual("STARTING", daemons.reason(raised.exception))
            self.daemons.start_weightd()
            self.daemons.inferd.wait_for(r"info serving\n")
            daemons.wait_until(
                lambda: health.Check(health_pb2.HealthCheckRequest()).status
                == health_pb2.HealthCheckResponse.SERVING,
                "health",
            )
        self.assertEqual(0, self.daemons.inferd.stop())

    def test_signal_ends_wait_for_weightd_cleanly(self):
        self.daemons.start_inferd(wait=False)
        self.daemons.inferd.wait_for("waiting for weightd")
        self.assertEqual(0, self.daemons.inferd.stop())
        self.assertFalse(os.path.exists(self.daemons.path("i.sock")))
        self.assertFalse(os.path.exists(self.daemons.path("a.sock")))

    def test_sigterm_finishes_answer_and_exits_zero(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd()
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            request = stream_request("Once upon a time", tokens=900)
            request.spec.stopping.ignore_eos = True
            call = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(request)
            next(call)
            self.daemons.inferd.process.send_signal(signal.SIGTERM)
            tokens = sum(len(message.delta.token_ids) for message in call)
            self.assertEqual(900, tokens)
            self.assertEqual(grpc.StatusCode.OK, call.code())
        self.assertEqual(0, self.daemons.inferd.wait())
        self.assertFalse(os.path.exists(self.daemons.path("i.sock")))

    def test_second_signal_cuts_the_answer(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd("--drain-timeout", "1h", "--context", "1024")
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            calls = []
            for _ in range(32):  # seconds of work
                request = stream_request("Once upon a time", tokens=1000)
                request.spec.stopping.ignore_eos = True
                calls.append(stub.GenerateStream(request))
                if len(calls) == 1:
                    next(calls[0])  # runs before the others arrive
            self.daemons.inferd.process.send_signal(signal.SIGTERM)
            self.daemons.inferd.wait_for("ending: ended by a signal")
            self.daemons.inferd.process.send_signal(signal.SIGTERM)
            self.assertEqual(0, self.daemons.inferd.wait())
            self.assertIn("told again", self.daemons.inferd.text())
            self.assertNotEqual(grpc.StatusCode.OK, calls[-1].code())

    def test_second_instance_on_socket_is_refused(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd()
        code, output = self.refused(*self.daemons.inferd_arguments())
        self.assertEqual(1, code)
        self.assertIn("is served by process %d" % self.daemons.inferd.process.pid, output)
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            self.assertTrue(list(inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(stream_request("x"))))

    def test_socket_of_killed_instance_is_reused(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd()
        self.daemons.inferd.stop(signal.SIGKILL)
        self.assertTrue(os.path.exists(self.daemons.path("i.sock")))
        self.daemons.start_inferd(log="i2.log")
        self.assertEqual(0o600, stat.S_IMODE(os.stat(self.daemons.path("i.sock")).st_mode))
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            self.assertTrue(list(inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(stream_request("x"))))

    @unittest.skipUnless(os.geteuid() == 0, "takes on another user's id, which only root may")
    def test_other_users_are_refused_before_http2(self):
        nobody = 65534
        script = (
            "import os, sys, daemons\n"
            "channel = daemons.grpc.insecure_channel(sys.argv[1])\n"  # before the id is dropped: modules load
            "os.setuid(%d)\n"
            "stub = daemons.model_pb2_grpc.ModelServiceStub(channel)\n"
            "try:\n"
            "    stub.ListModels(daemons.model_pb2.ListModelsRequest(), timeout=20)\n"
            "    print('served')\n"
            "except daemons.grpc.RpcError as error:\n"
            "    print(error.code().name)\n"
        ) % nobody
        self.daemons.start_weightd()
        os.chmod(self.daemons.dir, 0o711)
        for number, (arguments, expected) in enumerate([([], "UNAVAILABLE"), (["--allow-uid", str(nobody)], "served")]):
            self.daemons.start_inferd(*arguments, log="i%d.log" % number)
            os.chmod(self.daemons.path("i.sock"), 0o666)  # the file mode allows it, the server must refuse it
            result = subprocess.run(
                [sys.executable, "-c", script, self.daemons.unix_target()],
                stdout=subprocess.PIPE, timeout=daemons.PATIENCE, text=True, check=True,
                env=dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__))),
            )  # fmt: skip
            self.assertEqual(expected, result.stdout.strip())
            self.assertEqual(expected != "served", "uid %d" % nobody in self.daemons.inferd.text())
            self.assertEqual(0, self.daemons.inferd.stop())

    def test_end_of_the_parents_lifeline_ends_it(self):
        self.daemons.start_weightd()
        read_end, write_end = os.pipe()
        self.daemons.start_inferd("--parent-lifeline", str(read_end), pass_fds=[read_end])
        os.close(read_end)
        self.assertIsNone(self.daemons.inferd.process.poll())
        os.close(write_end)
        self.assertEqual(0, self.daemons.inferd.wait())

    def test_ready_is_notified_after_a_first_token(self):
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(self.daemons.path("notify"))
        manager.settimeout(daemons.PATIENCE)
        environment = dict(os.environ, NOTIFY_SOCKET=self.daemons.path("notify"))
        self.daemons.start_inferd(wait=False, env=environment)
        heard = []
        while not any("waiting for weightd" in text for text in heard):
            heard.append(manager.recv(4096).decode())
        self.assertFalse(any("READY=1" in text for text in heard))
        self.daemons.start_weightd()
        while "READY=1" not in heard[-1]:
            heard.append(manager.recv(4096).decode())
        stats = self.daemons.admin().GetStats(daemons.admin_pb2.GetStatsRequest())
        self.assertGreaterEqual(stats.counters.generated_tokens, 1)
        self.daemons.inferd.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in heard[-1]:
            heard.append(manager.recv(4096).decode())
        self.assertEqual(0, self.daemons.inferd.wait())

    def test_self_test_off_serves_without_a_token(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd("--self-test", "off")
        stats = self.daemons.admin().GetStats(daemons.admin_pb2.GetStatsRequest())
        self.assertEqual(0, stats.counters.generated_tokens)
        with grpc.insecure_channel(self.daemons.unix_target()) as channel:
            call = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(stream_request("Once", tokens=2))
            self.assertEqual(2, sum(len(message.delta.token_ids) for message in call))

    def test_server_info_has_launcher_fields(self):
        self.daemons.start_weightd()
        self.daemons.start_inferd("--context", "256", "--kv", "f32")
        info = self.daemons.admin().GetServerInfo(daemons.admin_pb2.GetServerInfoRequest())
        options = {option.name: option for option in info.options}
        self.assertEqual(self.daemons.inferd.process.pid, info.pid)
        self.assertEqual(os.path.realpath(self.daemons.pack), info.pack_path)
        self.assertEqual(32, len(info.model_id))
        self.assertEqual(("256", True), (options["context"].value, options["context"].is_set))
        self.assertEqual(("f32", True), (options["kv"].value, options["kv"].is_set))
        self.assertEqual(("4", False), (options["parallel"].value, options["parallel"].is_set))
        self.assertGreater(int(options["threads"].value), 0)
        self.assertGreater(int(options["kv-budget"].value), 0)
        self.assertIn(info.isa, info.backend)
        self.assertIn("weightd", info.weight_transport)


if __name__ == "__main__":
    unittest.main(verbosity=2)
