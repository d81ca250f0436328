"""Several inferds on one weightd: the same pack twice, and another one beside it."""
import os
import subprocess
import threading
import unittest

import daemons
from daemons import grpc, inference_pb2, inference_pb2_grpc, spec, weights_pb2, weights_pb2_grpc


class SharingTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.other_pack = self.daemons.path("other")
        subprocess.run(
            [os.path.join(daemons.BIN, "sluice"), "pack", daemons.SAMPLE, "--out", self.other_pack, "--bits", "q8",
             "--json"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.daemons.start_weightd("--pack", self.other_pack, "--dram-budget", "256MiB", "--preload",
                                   "off")  # fmt: skip
        self.weights = weights_pb2_grpc.WeightServiceStub(grpc.insecure_channel("unix:" + self.daemons.path("w.sock")))

    def stats(self):
        return self.weights.GetStats(weights_pb2.GetStatsRequest())

    def start(self, name, pack):
        """Starts an inferd with its own sockets; returns its stub."""
        inferd = daemons.Daemon(
            "inferd",
            ["--pack", pack, "--weightd", self.daemons.path("w.sock"), "--listen", "unix:" + self.daemons.path(name),
             "--admin", "unix:" + self.daemons.path(name + ".admin"), "--kv", "f32", "--parallel", "2"],
            self.daemons.path(name + ".log"),
        )  # fmt: skip
        self.addCleanup(inferd.stop)
        inferd.wait_for(r"info serving\n")
        return inference_pb2_grpc.InferenceServiceStub(grpc.insecure_channel("unix:" + self.daemons.path(name)))

    def answer(self, stub, case):
        response = stub.Generate(inference_pb2.GenerateRequest(spec=spec(case["prompt"], tokens=48)))
        return list(response.token_ids)

    def test_second_inferd_shares_dram_of_a_pack(self):
        case = daemons.greedy_cases()[0]
        first = self.start("first", self.daemons.pack)
        self.assertEqual(case["greedy_ids"], self.answer(first, case))
        cold = self.stats()
        self.assertGreater(cold.bytes_read, 0)

        second = self.start("second", self.daemons.pack)
        self.assertEqual(case["greedy_ids"], self.answer(second, case))
        warm = self.stats()
        print("read from SSD: first start %d bytes, second start %d" % (cold.bytes_read, warm.bytes_read - cold.bytes_read))
        self.assertEqual(cold.bytes_read, warm.bytes_read)
        self.assertEqual(2, len(warm.sessions))
        self.assertEqual([0], [session.bytes_read for session in warm.sessions[1:]])

        third = self.start("third", self.other_pack)
        expected = self.answer(third, case)
        self.assertEqual(48, len(expected))
        self.assertGreater(self.stats().bytes_read, warm.bytes_read)

        wrong = []

        def ask(stub, right):
            for _ in range(3):
                if self.answer(stub, case) != right:
                    wrong.append(right)

        threads = [
            threading.Thread(target=ask, args=work)
            for work in ((first, case["greedy_ids"]), (second, case["greedy_ids"]), (third, expected))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], wrong)
        end = self.stats()
        self.assertEqual(0, end.evictions + end.checksum_failures + end.sessions_lost)


if __name__ == "__main__":
    unittest.main()
