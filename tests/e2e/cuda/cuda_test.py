"""Device cuda between two real daemons, on the fake CUDA library (tests/cuda_fake): its module takes the place of the one
that is linked to the real runtime. Tokens are device host's, and no check of the fake has anything to report.

The same commands run on a GPU where SLUICE_CUDA_MODULE names the real module; what only the fake can be made to do is left
out there."""
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness  # noqa: E402

BUILD = os.path.dirname(harness.BIN)
FAKE = os.path.join(BUILD, "tests", "libsluice_cuda_fake.so")
MODULE = os.environ.get("SLUICE_CUDA_MODULE", FAKE)
ON_FAKE = os.path.basename(MODULE) == os.path.basename(FAKE)
PROMPT = "4,5,6,7,8"
TOKENS = 6
of_the_fake = unittest.skipUnless(ON_FAKE, "the fake alone can be told to")


class CudaTestCase(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = os.path.join(cls.work, "tiny.pack")
        subprocess.run(
            [harness.BIN + "/sluice", "pack", harness.TINY, "--out", cls.tiny, "--bits", "q4", "--json"],
            check=True, capture_output=True,
        )  # fmt: skip

    def setUp(self):
        super().setUp()
        self.reports = os.path.join(self.runtime, "fake_reports")
        self.environment["SLUICE_CUDA_MODULE"] = MODULE
        self.by_hand = []  # daemons that start() has started
        self.fake()

    def tearDown(self):
        for daemon in self.by_hand:
            daemon.kill()
            daemon.wait()
        super().tearDown()

    def fake(self, **options):
        """Configures the fake for daemons started from now on."""
        options = {"seed": 0, "reports": self.reports, **options}
        self.environment["SLUICE_FAKE_CUDA"] = " ".join(f"{name}={value}" for name, value in options.items())

    def reported(self):
        """Returns the reports of the fakes of ended daemons, one line each."""
        if not os.path.exists(self.reports):
            return []
        with open(self.reports) as file:
            return file.read().splitlines()

    def run_tiny(self, *args, tokens=TOKENS):
        return ("run", "--pack", self.tiny, "--token-ids", PROMPT, "-n", tokens, "--temperature", 0, "--ignore-eos",
                "--context", 64, "--parallel", 1, *args)  # fmt: skip

    def start(self, name, *args):
        """Starts a daemon directly; its log is `name`.log."""
        with open(os.path.join(self.runtime, name + ".log"), "ab") as file:
            command = [harness.BIN + "/" + name, "--pack", self.tiny, *args]
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment)
        self.by_hand.append(daemon)
        return daemon

    def start_weightd(self):
        return self.start("weightd", "--socket", os.path.join(self.runtime, "w.sock"), "--dram-budget", "8MiB")

    def start_inferd(self, *args):
        return self.start("inferd", "--weightd", os.path.join(self.runtime, "w.sock"), "--listen",
                          "unix:" + os.path.join(self.runtime, "i.sock"), "--device", "cuda", "--context", "64",
                          *args)  # fmt: skip

    def log_of(self, name):
        with open(os.path.join(self.runtime, name + ".log"), errors="replace") as file:
            return file.read()

    def expect_clean(self, processes=2):
        """Checks that so many processes used the fake, without a reported error."""
        if not ON_FAKE:
            return
        self.wait_for(lambda: len(self.reported()) >= processes, "reports")
        for line in self.reported():
            self.assertIn(": none (", line)
            if "(0 kernels," in line:  # weightd
                self.assertIn(" 0 pageable", line)


class AnswerTest(CudaTestCase):
    def test_tokens_equal_host_for_all_budgets(self):
        host = self.ok_json(*self.run_tiny())["token_ids"]
        for seed, transport, budget in [(0, "push", "100%"), (1, "push", "25%"), (2, "pull", "25%")]:
            with self.subTest(seed=seed, transport=transport, budget=budget):
                if os.path.exists(self.reports):
                    os.remove(self.reports)
                self.fake(seed=seed)
                answer = self.ok_json(
                    *self.run_tiny("--device", "cuda", "--device-budget", budget, "--transport", transport)
                )
                self.assertEqual(answer["token_ids"], host)
                self.expect_clean(processes=2 if transport == "push" else 1)


    def test_tokens_are_hosts_by_ipc_handles(self):
        """Legacy IPC if requested or if the driver supports nothing else; weightd copies, or inferd into its own memory."""
        host = self.ok_json(*self.run_tiny())["token_ids"]
        for fake, args in [({"seed": 0}, ("--slab-handle", "ipc", "--transport", "push")),
                           ({"seed": 1, "descriptors": 0}, ()),
                           ({"seed": 2, "descriptors": 0}, ("--transport", "pull"))]:  # fmt: skip
            with self.subTest(fake=fake, args=args):
                if "descriptors" in fake and not ON_FAKE:
                    continue
                if os.path.exists(self.reports):
                    os.remove(self.reports)
                self.fake(**fake)
                answer = self.ok_json(*self.run_tiny("--device", "cuda", "--device-budget", "25%", *args))
                self.assertEqual(answer["token_ids"], host)
                self.expect_clean(processes=1 if "pull" in args else 2)


@of_the_fake
class HandleTest(CudaTestCase):
    def start_both(self, weightd, *args):
        """Starts the daemons with this driver for weightd; returns the transport in inferd's log."""
        self.fake(**weightd)
        daemons = [self.start_weightd()]
        self.fake()
        daemons.append(self.start_inferd(*args))
        self.wait_for(lambda: "info serving" in self.log_of("inferd") or daemons[1].poll() is not None, "inferd to serve")
        lines = [line for line in self.log_of("inferd").splitlines() if "transport" in line]
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
        return "\n".join(lines)

    def test_the_log_says_by_which_handle(self):
        for args, handle in [((), "vmm"), (("--slab-handle", "vmm"), "vmm"), (("--slab-handle", "ipc"), "ipc")]:
            with self.subTest(args=args):
                log = self.start_both({}, *args)
                self.assertIn(f"transport push: by {handle}: its trial succeeded", log)
                self.assertIn(f"slabs shared by {handle}", log)
                self.assertIn(f"bytes, shared by {handle}", self.log_of("weightd"))
                os.remove(os.path.join(self.runtime, "inferd.log"))
        self.expect_clean(processes=6)

    def test_unimportable_fds_fall_back_unless_asked(self):
        log = self.start_both({"descriptors": 0})
        self.assertRegex(log, "transport push: by vmm: .*; by ipc: its trial succeeded")
        self.assertIn("slabs shared by ipc", log)
        os.remove(os.path.join(self.runtime, "inferd.log"))
        log = self.start_both({"descriptors": 0}, "--slab-handle", "vmm")
        self.assertRegex(log, "transport pull: weightd cannot copy into this device's memory: by vmm: ")
        self.assertNotIn("by ipc", log)
        self.expect_clean(processes=4)


class StartTest(CudaTestCase):
    @of_the_fake
    def test_a_cold_gpu_may_take_longer_than_weightd(self):
        """--weightd-wait is for a daemon that does not answer; the time of the device's trial is none of it."""
        self.fake(context_ms=4000)
        self.start_weightd()
        inferd = self.start_inferd("--weightd-wait", "3s")
        self.wait_for(lambda: "info serving" in self.log_of("inferd") or inferd.poll() is not None, "inferd to serve")
        self.assertIsNone(inferd.poll(), self.log_of("inferd"))

    def refused(self, *args):
        began = time.monotonic()
        code, out, err = self.sluice(*self.run_tiny("--device", "cuda", *args))
        self.assertEqual((code, out), (1, ""))
        return err, time.monotonic() - began

    def test_what_is_missing_is_named(self):
        self.environment["SLUICE_CUDA_MODULE"] = "/nonexistent/libsluice_cuda.so"
        err, _ = self.refused()
        self.assertIn("the module is missing", err)
        self.assertIn("/nonexistent/libsluice_cuda.so", err)
        self.environment["SLUICE_CUDA_MODULE"] = os.path.join(harness.BIN, "sluice")
        err, _ = self.refused()
        self.assertIn("the module", err)
        if not ON_FAKE:
            return
        self.environment["SLUICE_CUDA_MODULE"] = MODULE
        self.fake(devices=0)
        err, _ = self.refused()
        self.assertIn("the device is missing", err)

    @of_the_fake
    def test_too_little_device_memory_fails_the_start(self):
        for mebibytes, message in [(1, "bytes: cudaErrorMemoryAllocation"), (6, "bytes free, and")]:
            self.fake(memory_mib=mebibytes)
            err, _ = self.refused()
            self.assertIn("RESOURCE_EXHAUSTED", err)
            self.assertIn(message, err)
        self.fake()
        err, _ = self.refused("--device-budget", "5MiB")
        self.assertIn("cannot hold the least working set", err)

    @of_the_fake
    def test_out_of_memory_only_happens_at_start(self):
        """Every device size from too small to large enough for all: a successful start implies complete answers."""
        whole = self.ok(*self.run_tiny("--quiet", tokens=48))
        answered = refused = 0
        for mebibytes in range(2, 16):
            self.fake(memory_mib=mebibytes)
            code, out, err = self.sluice(*self.run_tiny("--quiet", "--device", "cuda", tokens=48))
            if code == 0:
                self.assertEqual(out, whole)
                answered += 1
            else:
                self.assertEqual((answered, out), (0, ""), f"{mebibytes} MiB: {err}")
                self.assertRegex(err, r"start.*: RESOURCE_EXHAUSTED: .*\d+ bytes")
                refused += 1
        self.assertGreater(refused, 1)
        self.assertGreater(answered, 1)
        self.assertEqual([line for line in self.reported() if ": none (" not in line], [])

    @unittest.skipUnless(ON_FAKE and not os.path.exists("/dev/nvidiactl"), "this machine has a GPU's driver")
    def test_a_missing_driver_is_named(self):
        self.environment["SLUICE_CUDA_MODULE"] = os.path.join(harness.BIN, "libsluice_cuda.so")
        err, _ = self.refused()
        self.assertIn("the driver is missing", err)


@of_the_fake
class KillTest(CudaTestCase):
    """kill -9; the fake's device memory is memory files, so held memory can be counted. Kills at random points, of either
    daemon: tests/stress/kill_loop.py."""

    TOKENS = 24

    def device_memory(self, pid):
        """Returns the mapped device allocations of a process, and descriptors of them."""
        try:
            mapped = len(self.device_files(pid))
            folder = f"/proc/{pid}/fd"
            links = []
            for name in os.listdir(folder):
                try:
                    links.append(os.readlink(os.path.join(folder, name)))
                except FileNotFoundError:
                    pass  # closed meanwhile
            return mapped + sum("memfd:fake cuda memory" in link for link in links)
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def device_files(self, pid):
        """Device memory that a process has mapped, by the numbers of its files."""
        with open(f"/proc/{pid}/maps") as file:
            return {line.split()[4] for line in file if "memfd:fake cuda memory" in line}

    def answer(self, *args):
        return self.run_tiny("--device", "cuda", "--device-budget", "25%", "--quiet", *args, tokens=self.TOKENS)

    def test_weightd_death_during_trial_is_survived(self):
        weightd = self.start_weightd()
        inferd = self.start_inferd("--transport", "push")
        self.wait_for(lambda: self.device_memory(weightd.pid) > 0, "what is lent for the trial")
        weightd.kill()
        weightd.wait()  # its lock of the socket is free
        self.start_weightd()
        self.wait_for(lambda: "info serving" in self.log_of("inferd") or inferd.poll() is not None, "inferd to serve")
        self.assertIsNone(inferd.poll(), self.log_of("inferd"))

    def test_killed_inferd_releases_device_memory(self):
        whole = self.ok(*self.answer("--keep", "10m"))
        weightd = self.only_process("weightd")
        held = self.device_memory(weightd)
        self.assertGreater(held, 0)
        slabs = self.device_files(weightd)
        self.assertEqual(slabs - self.device_files(self.only_process("inferd")), set(), "inferd gave it back")
        inferd = self.kill_daemon("inferd")
        self.wait_for(lambda: self.processes("inferd") not in ([], [inferd]), "the next inferd")
        self.assertEqual(self.ok(*self.answer()), whole)
        self.assertEqual(self.device_memory(weightd), held, "the next one's slabs, and none of the first's")
        os.kill(self.only_process("sluice"), signal.SIGTERM)


if __name__ == "__main__":
    harness.main()
