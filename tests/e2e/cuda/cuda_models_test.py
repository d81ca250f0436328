"""What device cuda computes for every family, encoding, budget, transport and preset, on the fake CUDA library, between two
real daemons: the kernels' arithmetic is the reference's to the bit, so logits are those of device host, and policies choose
what they choose on device sim."""
import json
import os
import subprocess

import cuda_test
import sparse_attention_test as sparse
import streams_test as streams

harness = cuda_test.harness

TINY = os.path.dirname(harness.TINY)
POSITIONS = 11
CHOOSING = ["minimax_m3", "qwen4_exp"]  # these leave positions out behind the 11th
# Families without golden logits here, by their configuration and what writes their weights.
SPARSE = {**sparse.CONFIG, **sparse.GLM, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]}
WRITTEN = {
    "deepseek_v32": ({**sparse.CONFIG, **sparse.DEEPSEEK}, sparse.write_model),
    "glm_moe_dsa": (SPARSE, sparse.write_model),
    "glm5_next": (streams.GLM, lambda folder, config: streams.write_model(folder, config, streams.glm_shapes)),
    "deepseek_v4": (streams.DEEPSEEK, lambda folder, config: streams.write_model(folder, config, streams.deepseek_shapes)),
    "deepseek_v4-rates": ({**streams.DEEPSEEK, **streams.SHORT_RATES},
                          lambda folder, config: streams.write_model(folder, config, streams.deepseek_shapes)),
}  # fmt: skip
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
        golden = harness.read_safetensors(os.path.join(source, "golden.safetensors"))["input_ids"].reshape(-1)
        self.select(golden if family in CHOOSING else golden[:POSITIONS])
        return self.packed(source, bits)

    def select(self, tokens):
        with open(self.ids, "w") as file:
            json.dump([int(i) for i in tokens], file)

    def logits(self, pack, *device):
        """Returns the bytes of the logits after each of the selected tokens."""
        self.ok("logits", "--pack", pack, "--token-ids-file", self.ids, "--out", self.out, "--device", *device, "--quiet")
        with open(self.out, "rb") as file:
            return file.read()

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
                self.assertEqual(self.logits(pack, "cuda"), self.logits(pack, "host"))
        self.expect_no_report()

    def test_logits_of_newer_families_are_hosts(self):
        for number, (name, (config, write)) in enumerate(WRITTEN.items()):
            folder = os.path.join(self.work, name)
            _, tokens = write(folder, config)
            self.select(tokens)
            pack = self.packed(folder, "bf16")
            for kv, chunk in [(["f32", "f16", "q8"][number % 3], 17), (["q8", "f32", "f16"][number % 3], 128)]:
                with self.subTest(family=name, kv=kv):
                    self.fake(seed=number % 4)
                    options = ["--kv", kv, "--prefill-chunk", chunk]
                    self.assertEqual(self.logits(pack, "cuda", *options), self.logits(pack, "host", *options))
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
