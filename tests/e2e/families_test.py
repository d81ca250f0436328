"""Every family in unusual shapes and settings, against goldens of transformers from the same files."""
import json
import os

import numpy as np

import family_cases
import harness


TINY = os.path.join(harness.ROOT, "tests/data/tiny")


def divergence(base, other):
    """Mean KL divergence of the next token's distributions."""

    def log_softmax(rows):
        rows = rows.astype(np.float64) - rows.max(-1, keepdims=True)
        return rows - np.log(np.exp(rows).sum(-1, keepdims=True))

    base, other = log_softmax(base), log_softmax(other)
    return float((np.exp(base) * (base - other)).sum(-1).mean())


class FamiliesTest(harness.TestCase):
    def check(self, name):
        folder = os.path.join(self.work, name)
        case = family_cases.load(name)
        family_cases.write_model(folder, case)
        golden = harness.read_safetensors(os.path.join(family_cases.FOLDER, name + ".safetensors"))
        self.ok("pack", folder, "--out", folder + ".pack", "--bits", "bf16")
        with open(folder + ".json", "w") as out:
            json.dump(golden["input_ids"].tolist(), out)
        options = ("--pack", folder + ".pack", "--kv", "f32", "--prefill-chunk", 17)
        self.ok("logits", *options, "--token-ids-file", folder + ".json", "--out", folder + ".out")
        logits = harness.read_safetensors(folder + ".out")["logits"]
        difference = float(np.abs(logits - golden["logits"]).max())
        print(f"{name}: largest difference {difference:.1e} of logits up to {np.abs(logits).max():.0f}")
        self.assertLessEqual(difference, 2e-3)
        ids = ",".join(map(str, golden["prompt_ids"].tolist()))
        greedy = golden["greedy_ids"].tolist()
        answer = self.ok_json("run", *options, "--token-ids", ids, "-n", len(greedy), "--temperature", 0, "--ignore-eos")
        self.assertEqual(answer["token_ids"], greedy)

    def test_every_shape_equals_its_golden(self):
        self.assertGreater(len(family_cases.names()), 10)
        for name in family_cases.names():
            with self.subTest(name):
                self.check(name)

    def test_divergence_falls_with_more_bits(self):
        # If a choice of experts flips early, 48 tokens cannot distinguish q8 from q4: these two are compared
        # over all.
        logarithms = []
        for family in sorted(os.listdir(TINY)):
            golden = harness.read_safetensors(os.path.join(TINY, family, "golden.safetensors"))
            tokens = len(golden["input_ids"])
            path = os.path.join(self.work, family)
            with open(path + ".json", "w") as out:
                json.dump(golden["input_ids"].tolist()[:tokens], out)
            found = []
            for bits in ("q8", "q4", "q2"):
                self.ok("pack", os.path.join(TINY, family), "--out", path + bits, "--bits", bits, "--group", 16)
                self.ok("logits", "--pack", path + bits, "--token-ids-file", path + ".json", "--out", path + ".out")
                found.append(divergence(golden["logits"][:tokens], harness.read_safetensors(path + ".out")["logits"]))
            print(f"{family}: divergence of q8, q4, q2: {', '.join(f'{value:.1e}' for value in found)}")
            with self.subTest(family):
                self.assertLess(max(found[:2]), found[2])
            logarithms.append(np.log(found))
        self.assertLess(np.mean([q8 - q4 for q8, q4, _ in logarithms]), np.log(0.5))


if __name__ == "__main__":
    harness.main()
