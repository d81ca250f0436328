"""--model: a folder becomes a pack once, in a cache that commands share; sluice packs."""
import json
import os
import shutil
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness


def write_model(folder, layers, hidden, experts, width, heads, head_dim=64, vocab=64):
    """A Mixtral whose weights are zeros that take no room on disk."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": hidden,
            "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": head_dim,
            "num_key_value_heads": heads, "num_local_experts": experts, "num_experts_per_tok": 2, "vocab_size": vocab,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "torch_dtype": "bfloat16",
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": None,
        }, file)  # fmt: skip
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "lm_head.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        base = f"model.layers.{layer}."
        for name in ("q", "k", "v"):
            shapes[f"{base}self_attn.{name}_proj.weight"] = [heads * head_dim, hidden]
        shapes[f"{base}self_attn.o_proj.weight"] = [hidden, heads * head_dim]
        shapes[f"{base}block_sparse_moe.gate.weight"] = [experts, hidden]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{base}{name}.weight"] = [hidden]
        for expert in range(experts):
            for name, shape in (("w1", [width, hidden]), ("w2", [hidden, width]), ("w3", [width, hidden])):
                shapes[f"{base}block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


class PacksTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = os.path.join(self.runtime, "cache")
        self.environment["SLUICE_CACHE_DIR"] = self.cache
        self.prompt = ("--prompt", "The film is", "-n", 4, "--temperature", 0)

    def packs(self):
        return self.ok_json("packs", "list")

    def run_model(self, model, *args):
        code, out, err = self.sluice("run", "--model", model, *self.prompt, *args)
        self.assertEqual(code, 0, err)
        return out, err

    def test_a_folder_is_packed_once_and_then_taken(self):
        self.assertEqual(self.packs(), [])
        first, said = self.run_model(harness.SAMPLE)
        self.assertIn("is packed once, as q8", said)
        (pack,) = self.packs()
        self.assertTrue(pack["complete"])
        self.assertTrue(pack["name"].startswith("sample-q8-"))
        again, said = self.run_model(harness.SAMPLE)
        self.assertNotIn("packed", said)
        self.assertEqual(first, again)
        self.assertEqual(self.run_model(pack["path"])[0], first)
        self.assertEqual(len(self.packs()), 1)

    def test_other_bits_or_files_make_new_packs(self):
        self.assertIn("as q4", self.run_model(harness.SAMPLE, "--bits", "q4")[1])
        # An existing pack is used though memory would hold more.
        self.assertNotIn("packed", self.run_model(harness.SAMPLE)[1])
        model = os.path.join(self.work, "model")
        shutil.copytree(harness.SAMPLE, model)
        self.assertIn("packed", self.run_model(model)[1])
        os.utime(os.path.join(model, "model.safetensors"), (1, 1))
        self.assertIn("packed", self.run_model(model)[1])
        self.assertEqual(len(self.packs()), 3)

    def test_pack_with_bits_and_non_model_are_refused(self):
        absent = os.path.join(self.work, "absent")
        for args, expected in (
            (("--model", self.pack, "--bits", "q4"), "is a pack"),
            (("--pack", self.pack, "--bits", "q4"), "--bits is for a --model"),
            (("--model", absent), absent),
            (("--model", harness.DATA), harness.DATA),
        ):
            code, out, err = self.sluice("run", *args, *self.prompt)
            self.assertEqual((code, out), (1, ""), args)
            self.assertIn(expected, err)

    def test_packs_are_removed_by_name(self):
        self.run_model(harness.SAMPLE)
        name = self.packs()[0]["name"]
        code, _, err = self.sluice("packs", "remove", "nonesuch")
        self.assertEqual(code, 1)
        self.assertIn("has no pack nonesuch", err)
        self.ok("packs", "remove", name)
        self.assertEqual(self.packs(), [])
        self.assertEqual(os.listdir(os.path.join(self.cache, "packs")), [])

    def test_two_commands_at_once_make_one_pack(self):
        results = []
        threads = [threading.Thread(target=lambda: results.append(self.run_model(harness.SAMPLE))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 2)
        self.assertEqual(results[0][0], results[1][0])
        self.assertEqual(sum("is packed once" in said for _, said in results), 1)
        self.assertEqual(len(self.packs()), 1)

    def test_partial_pack_is_shown_and_removable(self):
        self.run_model(harness.SAMPLE)
        (pack,) = self.packs()
        os.rename(pack["path"], pack["path"] + ".partial")
        self.assertFalse(self.packs()[0]["complete"])
        self.ok("packs", "remove", "--all")
        self.assertEqual(os.listdir(os.path.join(self.cache, "packs")), [])

    def start_packing(self):
        """Returns a command that has started to pack a model, and its arguments."""
        model = write_model(os.path.join(self.runtime, "model"), layers=8, hidden=512, experts=32, width=2048, heads=2)
        command = ("run", "--model", model, "--bits", "q4", "--token-ids", "1,2,3", "-n", 2, "--temperature", 0)
        running = self.start(*command)

        def has_begun():
            packs = self.packs()
            return packs and packs[0]["bytes"] > 0 or running.popen.poll() is not None

        self.wait_for(has_begun, "packing to begin")
        return running, command

    def check_nothing_else_is_left(self):
        (pack,) = self.packs()
        self.assertTrue(pack["complete"])
        self.ok("verify", pack["path"])
        self.assertEqual(sorted(os.listdir(os.path.join(self.cache, "packs"))), [pack["name"] + end for end in (".lock", ".pack")])

    def test_waiter_resumes_a_killed_packing(self):
        running, command = self.start_packing()
        waiting = self.start(*command)

        def waits():
            folder = f"/proc/{waiting.popen.pid}/fd"
            links = [os.path.join(folder, name) for name in os.listdir(folder)]
            return any(os.readlink(link).endswith(".lock") for link in links if os.path.islink(link))

        self.wait_for(waits, "the second command to find the lock")
        code, _, err = running.kill()
        self.assertNotEqual(code, 0, "packed before it could be killed: " + err)
        code, out, err = waiting.finish()
        self.assertEqual(code, 0, err + self.logs())
        self.assertIn("where an earlier packing goes on", err)
        self.check_nothing_else_is_left()

    def test_a_packing_that_was_killed_goes_on(self):
        running, command = self.start_packing()
        code, _, err = running.kill()
        self.assertNotEqual(code, 0, "packed before it could be killed: " + err)
        self.assertFalse(self.packs()[0]["complete"])
        code, _, err = self.sluice(*command)
        self.assertEqual(code, 0, err + self.logs())
        self.assertIn("where an earlier packing goes on", err)
        self.check_nothing_else_is_left()

    def test_too_small_disk_is_refused_with_numbers(self):
        # About 1.4 TiB as q4.
        model = write_model(os.path.join(self.runtime, "model"), layers=100, hidden=8192, experts=64, width=16384, heads=2)
        code, out, err = self.sluice("run", "--model", model, "--token-ids", "1")
        self.assertEqual((code, out), (1, ""))
        for text in ("RESOURCE_EXHAUSTED", "SLUICE_CACHE_DIR", "sluice packs list", "free"):
            self.assertIn(text, err)
        self.assertEqual(self.packs(), [])

    def test_too_small_memory_is_refused_early(self):
        # About 0.5 TiB of attention, which must fit in memory.
        model = write_model(
            os.path.join(self.runtime, "model"), layers=400, hidden=16384, experts=2, width=64, heads=128, head_dim=128
        )
        code, out, err = self.sluice("run", "--model", model, "--token-ids", "1")
        self.assertEqual((code, out), (1, ""))
        for text in ("RESOURCE_EXHAUSTED", "weights need at least", "they have", "--bits packs it in spite of that"):
            self.assertIn(text, err)
        self.assertEqual(self.packs(), [])


if __name__ == "__main__":
    harness.main()
