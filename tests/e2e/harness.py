"""Helpers of the end-to-end tests: the built programs in their own runtime directory, processes found by it,
a reader of safetensors. The programs are those of $SLUICE_BIN."""
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build/release/bin"))
SAMPLE = os.path.join(ROOT, "deploy/sample")
TINY = os.path.join(ROOT, "tests/data/tiny/mixtral")
DATA = os.path.join(ROOT, "tests/e2e/data")
FULL = os.environ.get("SLUICE_STRESS") == "full"
# Timeout for a loaded machine: an operation that exceeds it hangs.
PATIENCE = 120


def read_safetensors(path):
    """Tensors by name, as numpy arrays; bf16 as float32."""
    kinds = {"F32": "<f4", "I64": "<i8", "BF16": "<u2"}
    with open(path, "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = numpy.frombuffer(data[begin:end], kinds[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        tensors[name] = values
    return tensors


class Process:
    """A running `sluice`, its output as it comes."""

    def __init__(self, args, environment):
        self.popen = subprocess.Popen(
            args, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.out = b""
        self.err = b""
        self.reader = threading.Thread(target=self._drain_stderr)
        self.reader.start()

    def _drain_stderr(self):
        self.err = self.popen.stderr.read()

    def read(self, count):
        """Waits for `count` bytes of standard output (fewer at its end)."""
        while len(self.out) < count:
            chunk = os.read(self.popen.stdout.fileno(), 65536)
            if not chunk:
                break
            self.out += chunk
        return self.out

    def finish(self):
        """(exit code, standard output, standard error) once it has ended."""
        self.read(1 << 40)
        code = self.popen.wait(PATIENCE)
        self.reader.join()
        self.popen.stdout.close()
        self.popen.stderr.close()
        return code, self.out.decode(), self.err.decode()

    def kill(self):
        self.popen.kill()
        return self.finish()


class TestCase(unittest.TestCase):
    """Each test has its own runtime directory, and leaves no process behind."""

    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.mkdtemp(prefix="sluice-e2e-")
        cls.pack = os.path.join(cls.work, "sample.pack")
        subprocess.run([BIN + "/sluice", "pack", SAMPLE, "--out", cls.pack, "--json"], check=True, capture_output=True)
        with open(os.path.join(DATA, "sample_greedy.json")) as file:
            cls.greedy = json.load(file)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.work)

    def setUp(self):
        self.runtime = tempfile.mkdtemp(prefix="sl-", dir="/tmp")
        self.environment = {**os.environ, "SLUICE_RUNTIME_DIR": self.runtime}
        self.environment.pop("SLUICE_HOST", None)

    def tearDown(self):
        self.assertEqual(self.wait_for(lambda: not self.processes(), "processes to end"), True)
        if sys.exc_info() == (None, None, None):
            shutil.rmtree(self.runtime)

    def sluice(self, *args, program="sluice"):
        """Runs to the end: (exit code, standard output, standard error)."""
        result = subprocess.run(
            [os.path.join(BIN, program), *map(str, args)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
        return result.returncode, result.stdout.decode(), result.stderr.decode()

    def ok(self, *args):
        """Standard output of a run that must succeed."""
        code, out, err = self.sluice(*args)
        self.assertEqual(code, 0, err + self.logs())
        return out

    def ok_json(self, *args):
        return json.loads(self.ok(*args, "--json"))

    def lab_json(self, *args):
        """Runs sluice-lab and returns its measurement."""
        code, out, err = self.sluice(*args, "--json", program="sluice-lab")
        self.assertEqual(code, 0, err + self.logs())
        return json.loads(out)

    def start(self, *args):
        return Process([BIN + "/sluice", *map(str, args)], self.environment)

    def greedy_run(self, row, *args, n=None):
        """The arguments of a greedy answer to a prompt of sample_greedy.json."""
        return (
            "run", "--pack", self.pack, "--token-ids", ",".join(map(str, row["prompt_ids"])),
            "-n", n or len(row["greedy_ids"]), "--temperature", 0, *args,
        )

    def processes(self, name=""):
        """Ids of the processes of this test's runtime directory whose program is `name`."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as file:
                        words = file.read().split(b"\0")
                except OSError:
                    continue
                inside = any(self.runtime.encode() in word for word in words[1:])
                if inside and os.path.basename(words[0]).startswith(name.encode()):
                    found.append(int(entry))
        return found

    def only_process(self, name):
        found = []

        def look():
            found[:] = self.processes(name)
            return len(found) == 1

        self.wait_for(look, f"one {name}")
        return found[0]

    def kill_daemon(self, name):
        """kill -9; returns when it is dead."""
        pid = self.only_process(name)
        watch = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(select.select([watch], [], [], PATIENCE)[0], f"{name} does not die")
        os.close(watch)
        return pid

    def wait_for(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"waiting for {what}")
            select.select([], [], [], 0.005)
        return True

    def logs(self):
        """The daemons' logs, for a failure's message."""
        text = ""
        for name in ("supervisor", "weightd", "inferd"):
            path = os.path.join(self.runtime, name + ".log")
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    text += f"\n--- {name}.log\n" + "".join(file.readlines()[-40:])
        return text


def main():
    unittest.main(verbosity=2)
