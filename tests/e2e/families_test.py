"""Every family in unusual shapes and switches, against goldens that transformers made from the same files."""
import json
import os

import numpy as np

import family_cases
import harness


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

    def test_logits_and_greedy_tokens_of_every_shape_equal_the_golden_ones(self):
        self.assertGreater(len(family_cases.names()), 10)
        for name in family_cases.names():
            with self.subTest(name):
                self.check(name)


if __name__ == "__main__":
    harness.main()
