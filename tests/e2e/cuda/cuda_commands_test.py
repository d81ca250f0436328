"""Measuring commands and calibration on device cuda, between two real daemons, on the fake CUDA library: perplexities and
profiles equal device host; counters give the syncs and copies of a token."""
import filecmp
import os
import re
import shutil

import cuda_test

harness = cuda_test.harness

LAYERS = 2  # of the tiny Mixtral
TEXT = os.path.join(harness.DATA, "wikitext2_head.txt")


class CudaCommandsTest(cuda_test.CudaTestCase):
    def expect_no_report(self):
        for line in self.reported():
            self.assertIn(": none (", line)

    def bench(self, budget, transport):
        rows = self.ok_json(
            "bench", "--pack", self.tiny, "-p", 0, "-n", 16, "-b", 1, "-r", 1, "--context", 64, "--parallel", 1,
            "--device", "cuda", "--device-budget", budget, "--transport", transport,
        )  # fmt: skip
        return rows[0]

    def test_host_syncs_per_token_are_bounded(self):
        resident = self.bench("100%", "push")
        self.assertEqual(resident["device_waits_per_token"], 1)
        # Each step except the prompt's is one graph launch, and no graph is created or updated any more.
        self.assertEqual(resident["device_graph_launches_per_token"], 15 / 16)
        self.assertEqual(resident["device_graph_changes_per_token"], 0)
        self.assertGreater(resident["device_kernels_per_token"], 8 * LAYERS)
        for transport in ["push", "pull"]:
            missing = self.bench("25%", transport)
            with self.subTest(transport=transport):
                self.assertGreaterEqual(missing["device_waits_per_token"], 1)
                self.assertLessEqual(missing["device_waits_per_token"], LAYERS + 1)
        self.expect_no_report()

    def work_of(self, tokens):
        """Returns kernels and copies of inferd for an answer of `tokens` tokens, as counted by the fake."""
        if os.path.exists(self.reports):
            os.remove(self.reports)
        self.ok(*self.run_tiny("--device", "cuda", "--device-budget", "100%", tokens=tokens))
        self.wait_for(lambda: len(self.reported()) >= 2, "reports")
        counts = [re.search(r"\((\d+) kernels, (\d+) copies", line) for line in self.reported()]
        return max(tuple(int(number) for number in count.groups()) for count in counts)

    @cuda_test.of_the_fake
    def test_resident_token_has_bounded_launches(self):
        few, many = self.work_of(8), self.work_of(24)
        kernels, copies = ((there - here) / 16 for here, there in zip(few, many))
        print(f"a token: {kernels} kernels, {copies} copies")
        # A layer: norms, three products of attention, rope, scores and their sum, router, two of experts, combine.
        self.assertLessEqual(kernels, 20 * LAYERS + 10)
        self.assertGreater(kernels, 8 * LAYERS)
        # Changed table entries are uploaded; candidates lie in staging memory, no weights are copied.
        self.assertLessEqual(copies, 2)

    def test_perplexity_is_hosts(self):
        args = ("perplexity", "--pack", self.pack, "--text", TEXT, "--window", 32, "--max-tokens", 64)
        host = self.ok_json(*args)
        for transport in ["push", "pull"]:
            cuda = self.ok_json(*args, "--device", "cuda", "--device-budget", "50%", "--transport", transport)
            self.assertEqual((cuda["ppl"], cuda["nll"]), (host["ppl"], host["nll"]))
        self.expect_no_report()

    def test_calibration_equals_host(self):
        folders = {}
        for device in ["host", "cuda"]:
            pack = os.path.join(self.runtime, device + ".pack")
            shutil.copytree(self.pack, pack)
            self.ok(
                "calibrate", "--pack", pack, "--text", TEXT, "--max-tokens", 64, "--window", 32,
                "--sensitivity-tokens", 0, "--sparsity-tokens", 0, "--no-predictors", "--json", "--device", device,
            )  # fmt: skip
            folders[device] = os.path.join(pack, "profile")
        names = sorted(os.listdir(folders["host"]))
        self.assertGreater(len(names), 1)
        same, different, missing = filecmp.cmpfiles(folders["host"], folders["cuda"], names, shallow=False)
        print(f"equal: {same}; not: {different}; missing: {missing}")
        self.assertEqual((different, missing), ([], []))
        self.expect_no_report()


if __name__ == "__main__":
    harness.main()
