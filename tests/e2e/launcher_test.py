"""Discovery, start, sharing and shutdown of daemons."""
import fcntl
import os
import signal
import socket
import subprocess
import threading

import harness


class LauncherTest(harness.TestCase):
    def test_daemons_end_with_their_command(self):
        self.ok(*self.greedy_run(self.greedy[0]))
        self.assertEqual(self.processes(), [])

    def test_daemons_end_after_large_answers(self):
        base, text = os.path.join(self.work, "base"), os.path.join(harness.DATA, "wikitext2_head.txt")
        for _ in range(4):
            self.ok("perplexity", "--pack", self.pack, "--text", text, "--max-tokens", 300, "--window", 60,
                    "--save-base", base)  # fmt: skip
            # A process still alive after 5 s is killed, before it could report.
            with open(os.path.join(self.runtime, "inferd.log")) as log:
                self.assertTrue(log.read().endswith(" info ended\n"), self.logs())

    def test_successive_commands_may_change_options(self):
        for kv in ("f32", "f16", "f32"):
            self.ok(*self.greedy_run(self.greedy[0], "--kv", kv))

    def test_concurrent_starts_share_daemons(self):
        runs = [self.start(*self.greedy_run(self.greedy[i], "--kv", "f32", "--json", "--keep", "30s")) for i in range(3)]
        for i, run in enumerate(runs):
            code, out, err = run.finish()
            self.assertEqual(code, 0, err + self.logs())
            self.assertEqual(harness.json.loads(out)["token_ids"], self.greedy[i]["greedy_ids"])
        self.assertEqual(len(self.processes("weightd")), 1)
        self.assertEqual(len(self.processes("inferd")), 1)
        os.kill(self.only_process("sluice"), signal.SIGTERM)

    def supervisor(self):
        """A connection to the supervisor: a user of the daemons."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(os.path.join(self.runtime, "supervisor.sock"))
        return connection

    def test_idle_daemons_give_way_to_new_options(self):
        self.ok(*self.greedy_run(self.greedy[0], "--keep", "10m", "--kv", "f32"))
        kept = self.processes("inferd")
        for option, value in (("--kv", "f16"), ("--dram-budget", "12MiB")):
            code, out, err = self.sluice(*self.greedy_run(self.greedy[0], "--keep", "10m", option, value))
            self.assertEqual(code, 0, err)
            self.assertIn("are started anew", err)
            self.assertIn(option, err)
            self.assertNotEqual(self.processes("inferd"), kept)
            kept = [self.only_process("inferd")]
        self.ok(*self.greedy_run(self.greedy[0], "--dram-budget", "16MiB"))
        self.assertEqual(self.processes(), [], "the new ones are not kept unless that was asked for")

    def test_busy_daemons_are_not_replaced(self):
        self.ok(*self.greedy_run(self.greedy[0], "--keep", "10m", "--device", "sim", "--device-budget", "25%",
                                 "--link-gbps", "0.05"))
        address = f"unix:{self.runtime}/inferd.sock"
        client = self.start(*self.greedy_run(self.greedy[1], "--address", address, "--ignore-eos", n=400))
        client.read(5)
        code, _, err = self.sluice(*self.greedy_run(self.greedy[0], "--kv", "f32"))
        self.assertEqual(code, 1)
        self.assertIn("Others use it", err)
        client.kill()
        os.kill(self.only_process("sluice"), signal.SIGTERM)

    def test_option_mismatch_is_refused_by_name(self):
        self.ok(*self.greedy_run(self.greedy[0], "--keep", "10m", "--kv", "f32", "--dram-budget", "12MiB"))
        inferd = self.only_process("inferd")
        user = self.supervisor()
        self.addCleanup(user.close)
        self.ok(*self.greedy_run(self.greedy[1], "--kv", "f32"))
        self.assertEqual(self.processes("inferd"), [inferd])
        for option, value in (("--kv", "f16"), ("--dram-budget", "16MiB"), ("--prefill-chunk", "7")):
            code, out, err = self.sluice(*self.greedy_run(self.greedy[0], option, value))
            self.assertEqual((code, out), (1, ""))
            self.assertIn("FAILED_PRECONDITION", err)
            self.assertIn(option, err)
        other = os.path.join(self.work, "tiny.pack")
        self.ok("pack", harness.TINY, "--out", other, "--force")
        code, out, err = self.sluice("run", "--pack", other, "--token-ids", "1", "-n", 1)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("is model", err)
        self.assertIn("Others use it", err)
        self.assertEqual(self.processes("inferd"), [inferd])
        os.kill(self.only_process("sluice"), signal.SIGTERM)

    def test_ending_inferd_is_not_reused(self):
        self.ok(*self.greedy_run(self.greedy[0], "--keep", "10m"))
        ending = self.only_process("inferd")
        os.kill(ending, signal.SIGSTOP)
        self.kill_daemon("sluice")
        path = os.path.join(self.work, "said")
        with open(path, "w") as said:
            run = subprocess.Popen(
                [harness.BIN + "/sluice", *map(str, self.greedy_run(self.greedy[0], "--verbose"))],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip

        def met():
            with open(path) as said:
                return "found inferd" in said.read()

        self.wait_for(met, "the command to find the old inferd")
        os.kill(ending, signal.SIGCONT)
        code = run.wait(harness.PATIENCE)
        with open(path) as said:
            self.assertEqual(code, 0, said.read() + self.logs())

    def test_start_waits_for_sockets_to_be_released(self):
        with open(os.path.join(self.runtime, "weightd.sock.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            release = threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN))
            release.start()
            self.ok(*self.greedy_run(self.greedy[0]))
            release.join()

    def test_long_socket_wait_names_its_holder(self):
        with open(os.path.join(self.runtime, "weightd.sock.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("4711\n")
            lock.flush()
            # The command waits for one of these: the line, or five seconds.
            release = threading.Timer(2.5, fcntl.flock, (lock, fcntl.LOCK_UN))
            release.start()
            code, _, err = self.sluice("run", "--pack", self.pack, "--prompt", "Once", "-n", "1")
            release.join()
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"waiting for process 4711, which has not let go of \S*/weightd\.sock \(up to")

    def test_killed_command_leaves_nothing(self):
        run = self.start(*self.greedy_run(self.greedy[0], "--ignore-eos", n=400))
        run.read(20)
        run.kill()

    def test_killed_supervisor_leaves_nothing(self):
        self.ok(*self.greedy_run(self.greedy[0], "--keep", "10m"))
        self.kill_daemon("sluice")

    def test_interrupt_ends_answer_and_daemons(self):
        # Rate low enough that on no machine the answer ends before the signal.
        slow = ("--device", "sim", "--device-budget", "25%", "--link-gbps", "0.05")
        run = self.start(*self.greedy_run(self.greedy[0], "--ignore-eos", *slow, n=400))
        run.read(20)
        run.popen.send_signal(signal.SIGINT)
        code, _, err = run.finish()
        self.assertEqual(code, 1)
        self.assertIn("CANCELLED: interrupted", err)
        self.assertEqual(self.processes(), [])

    def test_failed_start_shows_the_daemons_reason(self):
        code, out, err = self.sluice(*self.greedy_run(self.greedy[0], "--dram-budget", "1KiB"))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("RESOURCE_EXHAUSTED", err)
        self.assertIn("weightd.log", err)
        self.environment["SLUICE_CUDA_MODULE"] = "/nonexistent.so"
        code, out, err = self.sluice(*self.greedy_run(self.greedy[0], "--device", "cuda"))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("cuda", err)

    def test_one_line_states_options_unless_quiet(self):
        _, _, err = self.sluice(*self.greedy_run(self.greedy[0], "--kv", "f32"))
        self.assertIn("kv f32", err.splitlines()[0])
        _, _, err = self.sluice(*self.greedy_run(self.greedy[0], "--quiet"))
        self.assertEqual(err, "")
        _, _, err = self.sluice(*self.greedy_run(self.greedy[0], "--json"))
        self.assertEqual(err, "")

    def test_given_address_is_used_and_not_replaced(self):
        self.ok(*self.greedy_run(self.greedy[0], "--kv", "f32", "--keep", "10m"))
        address = f"unix:{self.runtime}/inferd.sock"
        before = self.processes("inferd")
        run = self.ok_json(*self.greedy_run(self.greedy[1], "--address", address))
        self.assertEqual(run["token_ids"], self.greedy[1]["greedy_ids"])
        self.assertEqual(self.processes("inferd"), before)
        os.kill(self.only_process("sluice"), signal.SIGTERM)
        self.wait_for(lambda: not self.processes(), "the daemons to end")
        code, _, err = self.sluice(*self.greedy_run(self.greedy[1], "--address", address))
        self.assertEqual(code, 1)
        self.assertIn("UNAVAILABLE", err)

    def test_admin_option_names_the_admin_socket(self):
        self.ok(*self.greedy_run(self.greedy[0], "--keep", "10m"))
        own = os.path.join(self.runtime, "own.sock")
        os.symlink(os.path.join(self.runtime, "inferd.sock"), own)
        bench = ("bench", "--pack", self.pack, "-p", 0, "-n", 2, "-r", 1, "--address", "unix:" + own)
        code, _, err = self.sluice(*bench)
        self.assertEqual(code, 1)
        self.assertIn("--admin unix:PATH", err)
        operators = os.path.join(self.runtime, "inferd-admin.sock")
        for name in (operators, "unix:" + operators):
            self.assertEqual(self.ok_json(*bench, "--admin", name)[0]["test"], "tg2")
        code, _, err = self.sluice(*bench, "--admin", operators + ".not")
        self.assertEqual(code, 1)
        self.assertIn(operators + ".not", err)
        code, _, err = self.sluice("bench", "--pack", self.pack, "--admin", operators)
        self.assertEqual(code, 1)
        self.assertIn("--address", err)
        os.kill(self.only_process("sluice"), signal.SIGTERM)


if __name__ == "__main__":
    harness.main()
