"""GGUF files of the families whose layers differ or have a state, written from tiny checkpoints as llama.cpp's converter
would: their logits and greedy tokens are the golden ones of the checkpoints."""
import json
import os
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import gguf_newer
import gguf_writer
import harness
import sparse_attention_test as sparse
import streams_test as streams

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
    "nemotron_h_latent": gguf_writer.nemotron,
    "hy_v3": gguf_newer.hy_v3,
    "exaone_moe": gguf_newer.exaone_moe,
    "mellum": gguf_newer.mellum,
    "laguna": gguf_newer.laguna,
    "cohere2_moe": gguf_newer.cohere2_moe,
    "step3p5": gguf_newer.step3p5,
    "mimo_v2_flash": gguf_newer.mimo_v2_flash,
    "minimax_m3": gguf_newer.minimax_m3,
    "kimi_linear": gguf_newer.kimi_linear,
    "bailing_hybrid": gguf_newer.bailing_hybrid,
    "jamba": gguf_newer.jamba,
    "deepseek_v32": lambda c, t: gguf_newer.indexed(c, t, "deepseek32"),
    "glm_moe_dsa": lambda c, t: gguf_newer.indexed(c, t, "glm-dsa"),
    "glm_moe_dsa_shared": lambda c, t: gguf_newer.indexed(c, t, "glm-dsa"),
    "deepseek_v4": gguf_newer.deepseek_v4,
}


def step(config):
    """A ramp that ends between frequencies of a head."""
    return config | {"rope_scaling": config["rope_scaling"] | {"original_max_position_embeddings": 4096}}


def minimax(config):
    """The limit that files do not state."""
    return config | {"text_config": config["text_config"] | {"swiglu_limit": 7.0}}


# Changes of a checkpoint's configuration, whose own logits are the expected ones then.
CHANGES = {"step3p5": step, "minimax_m3": minimax}
# Checkpoints with random weights, likewise: name -> a function that writes the folder.
WIDER = {"vocab_size": 320, "hidden_size": 64}
MADE = {
    "deepseek_v32": lambda f: sparse.write_model(f, {**sparse.CONFIG, **sparse.DEEPSEEK, **WIDER, "n_group": 3, "topk_group": 2}),
    "glm_moe_dsa": lambda f: sparse.write_model(f, {**sparse.CONFIG, **sparse.GLM, **WIDER}),
    "glm_moe_dsa_shared": lambda f: sparse.write_model(f, {
        **sparse.CONFIG, **sparse.GLM, **WIDER, "num_hidden_layers": 4,
        "indexer_types": ["full", "shared", "full", "shared"]}),
    "deepseek_v4": lambda f: streams.write_model(
        f, {**streams.DEEPSEEK, **WIDER, "compress_ratios": [0, 4, 16, 4]}, streams.deepseek_shapes),
}


class GgufFamiliesTest(harness.TestCase):
    def logits(self, name, golden, path):
        with open(path + ".json", "w") as out:
            json.dump(golden["input_ids"].tolist(), out)
        self.ok("logits", "--pack", path, "--kv", "f32", "--token-ids-file", path + ".json", "--out", path + ".out")
        return harness.read_safetensors(path + ".out")["logits"]

    def generate(self, ids, count, *model):
        ids = ",".join(map(str, ids))
        return self.ok_json("run", *model, "--kv", "f32", "--token-ids", ids, "-n", count, "--temperature", 0,
                            "--ignore-eos")["token_ids"]

    def answers(self, name, folder, ids, prompt, count):
        """What the folder itself answers, in the form of a golden file."""
        self.ok("pack", folder, "--out", folder + ".pack", "--bits", "source")
        golden = {"input_ids": np.array(ids), "prompt_ids": np.array(prompt)}
        greedy = self.generate(prompt, count, "--pack", folder + ".pack")
        return golden | {"logits": self.logits(name, golden, folder + ".pack"), "greedy_ids": np.array(greedy)}

    def case(self, name):
        """The folder of a case, and its golden answers."""
        made = os.path.join(self.work, name + ".folder")
        if name in MADE:
            MADE[name](made)
            ids = np.random.default_rng(7).integers(0, 300, 60).tolist()
            return made, self.answers(name, made, ids, ids[:20], 16)
        folder = os.path.join(TINY, name.replace("_fused", ""))
        golden = harness.read_safetensors(os.path.join(folder, "golden.safetensors"))
        if name not in CHANGES:
            return folder, golden
        shutil.copytree(folder, made)
        with open(os.path.join(made, "config.json"), "w") as out:
            json.dump(CHANGES[name](read(folder)[0]), out)
        prompt, count = golden["prompt_ids"].tolist(), len(golden["greedy_ids"])
        return made, self.answers(name, made, golden["input_ids"].tolist(), prompt, count)

    def check(self, name):
        path = os.path.join(self.work, name)
        folder, golden = self.case(name)
        keys, tensors = CASES[name](*read(folder))
        gguf_writer.write(path + ".gguf", keys, tensors)
        self.ok("pack", path + ".gguf", "--out", path + ".pack", "--bits", "source")
        difference = float(np.abs(self.logits(name, golden, path + ".pack") - golden["logits"]).max())
        print(f"{name}: largest difference {difference:.1e}")
        self.assertLessEqual(difference, 2e-3)
        prompt, greedy = golden["prompt_ids"].tolist(), golden["greedy_ids"].tolist()
        self.assertEqual(self.generate(prompt, len(greedy), "--pack", path + ".pack"), greedy)
        self.assertEqual(self.generate(prompt, len(greedy), "--model", path + ".gguf"), greedy)
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
