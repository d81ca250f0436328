"""Starts real daemons on the sample model for tests in Python, and talks to them with grpcio.

The stubs are generated at build time (SLUICE_STUBS); the programs are in SLUICE_BIN.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# ctest names the build; by hand it is the release build of this tree.
BUILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "release")
STUBS = os.environ.get("SLUICE_STUBS", os.path.join(BUILD, "python"))
sys.path.append(STUBS)

import google  # noqa: E402
import grpc  # noqa: E402

# The stubs of google.rpc, grpc.health and grpc.reflection lie beside, not in, the installed packages.
google.__path__.append(os.path.join(STUBS, "google"))
grpc.__path__.append(os.path.join(STUBS, "grpc"))

from google.rpc import error_details_pb2, status_pb2  # noqa: E402
from grpc.health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from sluice.inference.v1 import (  # noqa: E402
    admin_pb2,
    admin_pb2_grpc,
    evaluation_pb2,
    evaluation_pb2_grpc,
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from sluice.weights.v1 import weights_pb2, weights_pb2_grpc  # noqa: E402

BIN = os.environ.get("SLUICE_BIN", os.path.join(BUILD, "bin"))
SAMPLE = "deploy/sample"
PATIENCE = 60  # seconds: longer than anything takes on a busy machine


def greedy_cases():
    with open("tests/data/sample_greedy.json") as file:
        return json.load(file)


def wait_until(condition, what):
    """Polls, since the other process has nothing to wait on. A turn counts for 5 s at most: a
    suspended machine must not cause a timeout."""
    left = PATIENCE
    last = time.monotonic()
    while not condition():
        now = time.monotonic()
        left -= min(now - last, 5)
        last = now
        if left < 0:
            raise AssertionError("gave up waiting for " + what)
        time.sleep(0.01)


class Daemon:
    """One program, its log in a file."""

    def __init__(self, name, arguments, log, **popen):
        self.log_path = log
        self.log = open(log, "wb")
        self.process = subprocess.Popen(
            [os.path.join(BIN, name)] + arguments, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, **popen
        )

    def text(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def wait_for(self, pattern):
        def seen():
            if re.search(pattern, self.text()):
                return True
            if self.process.poll() is not None:
                raise AssertionError("exited with %s: %s" % (self.process.returncode, self.text()))
            return False

        wait_until(seen, pattern)
        return re.search(pattern, self.text())

    def stop(self, number=signal.SIGTERM):
        """Signals and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self):
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("did not end: " + self.text())
        self.log.close()
        return code


class WallClock:
    """The wall clock of daemons that start with `environment`, which may be set while they run."""

    def __init__(self, path):
        self.path = path
        self.seconds = open(path, "wb", buffering=0)
        self.set(0)
        library = os.path.abspath(os.path.join(BIN, "..", "tests", "libsluice_clock_jump.so"))
        self.environment = {"LD_PRELOAD": library, "SLUICE_CLOCK_JUMP": path}

    def set(self, seconds):
        """Sets the clock so many seconds ahead of the machine's, or back."""
        os.pwrite(self.seconds.fileno(), seconds.to_bytes(8, "little", signed=True), 0)


class Daemons:
    """weightd and inferd over a pack of the sample model in a folder of their own."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="sluice-e2e-")
        self.pack = self.path("pack")
        subprocess.run(
            [os.path.join(BIN, "sluice"), "pack", SAMPLE, "--out", self.pack, "--bits", "bf16", "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.weightd = None
        self.inferd = None

    def path(self, name):
        return os.path.join(self.dir, name)

    def start_weightd(self, *arguments, **popen):
        self.weightd = Daemon(
            "weightd", ["--pack", self.pack, "--socket", self.path("w.sock")] + list(arguments), self.path("w.log"), **popen
        )
        self.weightd.wait_for("weightd serves")

    def inferd_arguments(self):
        return [
            "--pack", self.pack, "--weightd", self.path("w.sock"),
            "--listen", "unix:" + self.path("i.sock"), "--listen", "127.0.0.1:0",
            "--admin", "unix:" + self.path("a.sock"),
        ]  # fmt: skip

    def start_inferd(self, *arguments, wait=True, log="i.log", **popen):
        self.inferd = Daemon("inferd", self.inferd_arguments() + list(arguments), self.path(log), **popen)
        if wait:
            self.inferd.wait_for(r"info serving\n")

    def unix_target(self):
        return "unix:" + self.path("i.sock")

    def tcp_target(self):
        return "127.0.0.1:" + self.inferd.wait_for(r"clients connect to.* 127\.0\.0\.1:(\d+)").group(1)

    def admin(self):
        return admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel("unix:" + self.path("a.sock")))

    def close(self):
        for daemon in (self.inferd, self.weightd):
            if daemon is not None and daemon.process.poll() is None:
                daemon.stop(signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)


def spec(text=None, ids=None, tokens=16, **fields):
    result = generation_pb2.GenerationSpec(**fields)
    if text is not None:
        result.text = text
    else:
        result.token_ids.ids.extend(ids)
    result.stopping.max_tokens = tokens
    return result


def stream_request(*args, **kwargs):
    return inference_pb2.GenerateStreamRequest(spec=spec(*args, **kwargs))


def details(error):
    """Returns the details in google.rpc.Status of an RpcError or of an ended call."""
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            return status_pb2.Status.FromString(value).details
    return []


def reason(error):
    """Returns the reason of its ErrorInfo."""
    info = error_details_pb2.ErrorInfo()
    return next((info.reason for detail in details(error) if detail.Unpack(info)), "")


def has_retry_hint(error):
    return any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details(error))
