"""capped_decode.py when it is killed early: no memory cgroup and no daemon may be left. The programs are stand-ins: the test
is about the script's own order."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../lab/programs")
sys.path.insert(0, BENCH)

import capped_decode  # noqa: E402

# `synth` makes files of a pack, `run` leaves a daemon behind, `bench` ends with the script.
SLUICE = """#!/bin/sh
case "$1" in
synth) mkdir -p "$PACK" && echo >"$PACK/manifest.json" && echo >"$PACK/dense.bin" && echo >"$PACK/experts.bin";;
run) sleep 1000 >/dev/null 2>&1 & echo '{}';;
bench) exec tail --pid=$PPID -f /dev/null;;
esac
"""
PACK_READS = """#!/bin/sh
echo '{"direct_bytes_per_second":1,"loop":"ring of 16"}'
"""


def wait_for(what, condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about")
        time.sleep(0.01)


class CappedDecodeTest(unittest.TestCase):
    def setUp(self):
        probe = capped_decode.MemoryCgroup(1 << 30)
        if probe.error is not None:
            self.skipTest(f"no memory cgroup can be made: {probe.error}")
        probe.close()
        self.folder = tempfile.TemporaryDirectory()
        for name, text in (("bin/sluice", SLUICE), ("bench/pack_reads", PACK_READS)):
            path = os.path.join(self.folder.name, name)
            os.makedirs(os.path.dirname(path))
            with open(path, "w") as file:
                file.write(text)
            os.chmod(path, 0o755)

    def tearDown(self):
        capped_decode.remove_leftovers()
        self.folder.cleanup()

    def start(self):
        """Returns the script, once its daemon runs in its cgroup, and that cgroup."""
        work = os.path.join(self.folder.name, "work")
        script = subprocess.Popen(
            [sys.executable, os.path.join(BENCH, "capped_decode.py"), "--work", work, "--bin", self.folder.name],
            env={**os.environ, "PACK": os.path.join(work, "qwen3-30b-a3b-7.pack")})
        cgroup = os.path.join(capped_decode.cgroup_root()[0], f"{capped_decode.PREFIX}{script.pid}")
        wait_for("a daemon in the cgroup", lambda: self.daemons(cgroup))
        return script, cgroup

    @staticmethod
    def daemons(cgroup):
        try:
            with open(os.path.join(cgroup, "cgroup.procs")) as file:
                return file.read().split()
        except FileNotFoundError:
            return []

    def test_sigterm_leaves_no_cgroup_and_no_daemon(self):
        script, cgroup = self.start()
        script.send_signal(signal.SIGTERM)
        self.assertEqual(script.wait(60), 128 + signal.SIGTERM)
        self.assertFalse(os.path.exists(cgroup))

    def test_next_run_removes_leftovers_of_killed_run(self):
        script, cgroup = self.start()
        script.kill()
        script.wait()
        self.assertTrue(self.daemons(cgroup), "nothing was left, so nothing is shown")
        following, _ = self.start()
        self.assertFalse(os.path.exists(cgroup))
        following.send_signal(signal.SIGTERM)
        following.wait(60)


if __name__ == "__main__":
    unittest.main()
