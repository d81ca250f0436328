"""A disk that stops answering under the real weightd: the kernel holds its reads back (cgroup I/O throttling at a
byte a second), and lets them go again.

Needs root and a cgroup hierarchy that throttles the disk of the temporary folder; says so where there is none.
"""
import os
import signal
import unittest

import daemons
from daemons import grpc, inference_pb2, inference_pb2_grpc, spec, weights_pb2, weights_pb2_grpc

V1 = "/sys/fs/cgroup/blkio"
V2 = "/sys/fs/cgroup"


class Throttle:
    """A cgroup that can throttle reads from the disk of `folder` to one byte per second."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        node = os.path.realpath("/sys/dev/block/%d:%d" % (os.major(device), os.minor(device)))
        if not os.path.isdir(node):
            raise unittest.SkipTest("not run: %s is on no disk" % folder)
        if os.path.exists(os.path.join(node, "partition")):
            node = os.path.dirname(node)
        with open(os.path.join(node, "dev")) as file:
            self.device = file.read().strip()
        v1 = os.path.exists(V1 + "/blkio.throttle.read_bps_device")
        self.group = "%s/sluice-test-%d" % (V1 if v1 else V2, os.getpid())
        self.home = (V1 if v1 else V2) + "/cgroup.procs"
        self.knob = self.group + ("/blkio.throttle.read_bps_device" if v1 else "/io.max")
        self.words = ("%s 1", "%s 0") if v1 else ("%s rbps=1", "%s rbps=max")
        try:
            os.mkdir(self.group)
        except OSError as error:
            raise unittest.SkipTest("not run: no cgroup can be made: %s" % error)
        if not os.path.exists(self.knob):
            os.rmdir(self.group)
            raise unittest.SkipTest("not run: cgroups here do not throttle I/O")

    def take(self, pid):
        with open(self.group + "/cgroup.procs", "w") as file:
            file.write(str(pid))

    def set(self, stuck):
        with open(self.knob, "w") as file:
            file.write(self.words[0 if stuck else 1] % self.device)

    def close(self):
        self.set(False)
        with open(self.group + "/cgroup.procs") as file:
            for pid in file.read().split():
                with open(self.home, "w") as home:
                    home.write(pid)
        os.rmdir(self.group)


@unittest.skipUnless(os.geteuid() == 0, "not run: only root can hold a disk's reads back")
class StuckDiskTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.throttle = Throttle(self.daemons.dir)
        self.addCleanup(self.throttle.close)
        self.case = daemons.greedy_cases()[0]

    def start(self, io):
        # Holds half of the experts: every answer reads some. A busy disk may take a part of a second by itself.
        self.daemons.start_weightd("--io", io, "--read-timeout", "1s", "--drain-timeout", "200ms",
                                   "--dram-budget", "14MiB")  # fmt: skip
        self.daemons.start_inferd("--kv", "f32", "--parallel", "1", "--drain-timeout", "200ms")
        self.client = inference_pb2_grpc.InferenceServiceStub(grpc.insecure_channel(self.daemons.unix_target()))
        self.weights = weights_pb2_grpc.WeightServiceStub(grpc.insecure_channel("unix:" + self.daemons.path("w.sock")))
        self.throttle.take(self.daemons.weightd.process.pid)
        # weightd copies from the page cache what it holds of the pack, which has just been written.
        for name in ("dense.bin", "experts.bin"):
            with open(os.path.join(self.daemons.pack, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def answer(self):
        response = self.client.Generate(
            inference_pb2.GenerateRequest(spec=spec(self.case["prompt"], tokens=48)), timeout=daemons.PATIENCE
        )
        return list(response.token_ids)

    def outlives_a_stuck_disk(self, io):
        self.start(io)
        self.assertEqual(self.case["greedy_ids"], self.answer())
        self.throttle.set(True)
        with self.assertRaises(grpc.RpcError) as caught:
            self.answer()
        self.assertEqual(grpc.StatusCode.DEADLINE_EXCEEDED, caught.exception.code())
        self.assertEqual("WEIGHTS_LATE", daemons.reason(caught.exception))
        stats = self.weights.GetStats(weights_pb2.GetStatsRequest())
        self.assertGreater(stats.timed_out, 0)
        self.assertGreater(stats.slow_reads, 0)
        print("%s: %d reads slow, %d requests timed out" % (stats.io_engine, stats.slow_reads, stats.timed_out))

        self.throttle.set(False)
        self.assertEqual(self.case["greedy_ids"], self.answer())

        self.throttle.set(True)
        with self.assertRaises(grpc.RpcError):
            self.answer()
        self.assertEqual(0, self.daemons.inferd.stop())
        self.daemons.weightd.process.send_signal(signal.SIGTERM)
        self.daemons.weightd.wait_for("ended with reads that the disk has not answered")
        self.throttle.set(False)  # the kernel does not end a process with pending reads
        self.assertEqual(0, self.daemons.weightd.wait())

    def test_stuck_disk_is_survived_with_io_uring(self):
        self.outlives_a_stuck_disk("uring")

    def test_stuck_disk_is_survived_with_pread(self):
        self.outlives_a_stuck_disk("pread")


if __name__ == "__main__":
    unittest.main(verbosity=2)
