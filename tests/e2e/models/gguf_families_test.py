"""GGUF files of the families whose layers differ or have a state, written from tiny checkpoints as llama.cpp's converter
would: their logits and greedy tokens are the golden ones of the checkpoints."""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import gguf_writer
import harness

TINY = os.path.join(harness.ROOT, "tests/data/tiny")


def read(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.loads(file.read().replace("Infinity", "1e999"))
    tensors = harness.read_safetensors(os.path.join(folder, "model.safetensors"))
    return config, {name: np.asarray(values, np.float32) for name, values in tensors.items()}


CASES = {
    "qwen3_next": lambda c, t: gguf_writer.qwen(c, t, "qwen3next"),
    "qwen3_next_fused": lambda c, t: gguf_writer.qwen(c, t, "qwen3next", fused=True),
    "qwen3_5_moe": lambda c, t: gguf_writer.qwen(c, t, "qwen35moe"),
    "granitemoehybrid": gguf_writer.granite_hybrid,
    "nemotron_h": gguf_writer.nemotron,
    "gemma4": gguf_writer.gemma4,
}


class GgufFamiliesTest(harness.TestCase):
    def logits(self, name, golden, path):
        with open(path + ".json", "w") as out:
            json.dump(golden["input_ids"].tolist(), out)
        self.ok("logits", "--pack", path, "--kv", "f32", "--token-ids-file", path + ".json", "--out", path + ".out")
        return harness.read_safetensors(path + ".out")["logits"]

    def check(self, name):
        folder = os.path.join(TINY, name.replace("_fused", ""))
        golden = harness.read_safetensors(os.path.join(folder, "golden.safetensors"))
        keys, tensors = CASES[name](*read(folder))
        path = os.path.join(self.work, name)
        gguf_writer.write(path + ".gguf", keys, tensors)
        self.ok("pack", path + ".gguf", "--out", path + ".pack", "--bits", "source")
        difference = float(np.abs(self.logits(name, golden, path + ".pack") - golden["logits"]).max())
        print(f"{name}: largest difference {difference:.1e}")
        self.assertLessEqual(difference, 2e-3)
        ids = ",".join(map(str, golden["prompt_ids"].tolist()))
        greedy = golden["greedy_ids"].tolist()
        answer = self.ok_json("run", "--pack", path + ".pack", "--kv", "f32", "--token-ids", ids, "-n", len(greedy),
                              "--temperature", 0, "--ignore-eos")
        self.assertEqual(answer["token_ids"], greedy)
        self.check_kept_rows(name, golden, path, keys, tensors)

    def check_kept_rows(self, name, golden, path, keys, tensors):
        """Native rows, with down projections repacked, are about as close to the file's values as all rows in q8. These models
        are so small that rounding alone changes routing, so only the magnitude at the middle position is checked."""
        gguf_writer.write(path + ".q8.gguf", keys, tensors, gguf_writer.Q8_0)
        logits = {}
        for kind, bits in [("values", ["--bits", "source"]), ("kept", []), ("anew", ["--bits", "q8"])]:
            pack = f"{path}.{kind}"
            self.ok("pack", path + ".q8.gguf", "--out", pack, *bits)
            logits[kind] = self.logits(name, golden, pack)
        kept, anew = (
            float(np.median(np.sqrt(((logits[kind] - logits["values"]) ** 2).mean(axis=-1))))
            for kind in ("kept", "anew")
        )
        print(f"{name}: {kept / golden['logits'].std():.3f} kept, {anew / golden['logits'].std():.3f} all in q8")
        self.assertGreater(kept, 0)
        self.assertLess(kept, 1.5 * anew)

    def test_gemma4_tokenizer_merges_spaces(self):
        keys, tensors = CASES["gemma4"](*read(os.path.join(TINY, "gemma4")))
        path = os.path.join(self.work, "tokens")
        gguf_writer.write(path + ".gguf", keys, tensors)
        self.ok("pack", path + ".gguf", "--out", path + ".pack")
        written = "hello world\n"
        with open(path + ".txt", "w") as out:
            out.write(written)
        got = self.ok_json("tokenize", "--pack", path + ".pack", "--text-file", path + ".txt")["ids"]
        names = keys["tokenizer.ggml.tokens"]
        self.assertEqual([names[i] for i in got], ["<bos>", "hello", "\u2581w", *"orld", "<0x0A>"])
        ids = ",".join(map(str, got[1:]))
        self.assertEqual(self.ok_json("detokenize", "--pack", path + ".pack", "--token-ids", ids)["text"], written)

    def test_gguf_results_equal_the_checkpoint(self):
        for name in CASES:
            with self.subTest(name):
                self.check(name)


if __name__ == "__main__":
    harness.main()
