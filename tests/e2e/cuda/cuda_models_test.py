"""What device cuda computes for every family, encoding, budget, transport and preset, on the fake CUDA library, between two
real daemons: the kernels' arithmetic is the reference's to the bit, so logits are those of device host, and policies choose
what they choose on device sim."""
import json
import os
import subprocess

import cuda_test

harness = cuda_test.harness

TINY = os.path.dirname(harness.TINY)
POSITIONS = 11  # the most that every family holds: MiniMax-M3 has its indexer beyond
REFUSED = {"qwen4_exp": "several streams"}  # device cuda names what it lacks
LEARNED = ["floe", "corm", "intra", "adapmoe", "importance"]


class CudaModelsTest(cuda_test.CudaTestCase):
    def setUp(self):
        super().setUp()
        self.ids = os.path.join(self.runtime, "ids.json")
        self.out = os.path.join(self.runtime, "logits.safetensors")

    def packed(self, source, bits):
        path = os.path.join(self.work, f"{os.path.basename(source)}-{bits}.pack")
        if not os.path.exists(path):
            subprocess.run(
                [harness.BIN + "/sluice", "pack", source, "--out", path, "--bits", bits, "--json"],
                check=True, capture_output=True,
            )  # fmt: skip
        return path

    def tiny_family(self, family, bits):
        """Builds the pack and selects the golden tokens for logits()."""
        source = os.path.join(TINY, family)
        golden = harness.read_safetensors(os.path.join(source, "golden.safetensors"))
        with open(self.ids, "w") as file:
            json.dump([int(i) for i in golden["input_ids"].reshape(-1)[:POSITIONS]], file)
        return self.packed(source, bits)

    def logits(self, pack, *device):
        """Returns the bytes of the logits after each of the golden's first tokens."""
        self.ok(*self.logits_command(pack, *device))
        with open(self.out, "rb") as file:
            return file.read()

    def logits_command(self, pack, *device):
        return ("logits", "--pack", pack, "--token-ids-file", self.ids, "--out", self.out, "--device", *device, "--quiet")

    def expect_no_report(self):
        for line in self.reported():
            self.assertIn(": none (", line)

    def test_logits_of_every_family_are_hosts(self):
        families = sorted(os.listdir(TINY))
        self.assertGreater(len(families), 20)
        for number, family in enumerate(families):
            with self.subTest(family=family):
                self.fake(seed=number % 4)
                pack = self.tiny_family(family, ["bf16", "q4"][number % 2])
                if family in REFUSED:
                    code, _, error = self.sluice(*self.logits_command(pack, "cuda"))
                    self.assertNotEqual(code, 0)
                    self.assertIn(REFUSED[family], error)
                    continue
                self.assertEqual(self.logits(pack, "cuda"), self.logits(pack, "host"))
        self.expect_no_report()

    def test_logits_equal_host_for_all_settings(self):
        for number, bits in enumerate(["f16", "q8", "q4", "q3", "q2"]):
            pack = self.tiny_family("mixtral", bits)
            host = self.logits(pack, "host")
            for transport in ["push", "pull"]:
                budget = ["25%", "50%", "100%"][number % 3]
                with self.subTest(bits=bits, transport=transport, budget=budget):
                    self.fake(seed=number % 4)
                    self.assertEqual(
                        self.logits(pack, "cuda", "--device-budget", budget, "--transport", transport), host
                    )
        self.expect_no_report()

    def test_presets_choose_what_they_choose_on_sim(self):
        pack = self.packed(harness.SAMPLE, "q4")
        text = os.path.join(harness.DATA, "wikitext2_head.txt")
        self.ok("calibrate", "--pack", pack, "--text", text, "--max-tokens", 1024, "--window", 256, "--json")
        for preset in LEARNED:
            tokens = {}
            for device in ["sim", "cuda"]:
                answer = self.ok_json(
                    "run", "--pack", pack, "--prompt", "The film is", "-n", 6, "--temperature", 0,
                    "--ignore-eos", "--preset", preset, "--device", device, "--device-budget", "50%",
                )  # fmt: skip
                tokens[device] = answer["token_ids"]
            with self.subTest(preset=preset):
                self.assertEqual(tokens["cuda"], tokens["sim"])
        self.expect_no_report()


if __name__ == "__main__":
    harness.main()
