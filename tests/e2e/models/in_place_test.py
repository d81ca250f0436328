"""GGUF files in place: --model FILE.gguf answers from the file itself as a pack of it does, and refuses what changed."""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness

GGUF = os.path.join(os.path.dirname(os.path.dirname(harness.DATA)), "data", "gguf")


def file_of(name):
    return os.path.join(GGUF, name, "model.gguf")


class InPlaceTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.environment["SLUICE_CACHE_DIR"] = os.path.join(self.runtime, "cache")
        self.ask = ("--token-ids", "5,9,3,17,40,2,11", "-n", 24, "--temperature", 0, "--ignore-eos", "--json")

    def run_model(self, model, *args):
        code, out, err = self.sluice("run", "--model", model, *self.ask, *args)
        self.assertEqual(code, 0, err)
        return json.loads(out)["token_ids"]

    def indexes(self):
        return [pack for pack in self.ok_json("packs", "list") if "-in-place-" in pack["name"]]

    def copy(self, name):
        return shutil.copy(file_of(name), os.path.join(self.work, "model.gguf"))

    def test_tokens_are_those_of_a_pack(self):
        for name in ("granitemoe-q5_k_m", "gptoss-mxfp4"):
            with self.subTest(name):
                packed = self.run_model(file_of(name), "--bits", "file")
                self.assertEqual(self.indexes(), [])
                # A pack that is there is preferred.
                shutil.rmtree(self.environment["SLUICE_CACHE_DIR"])
                self.assertEqual(self.run_model(file_of(name)), packed)
                self.assertEqual(self.run_model(file_of(name), "--dram-budget", "8MiB"), packed)
                self.assertEqual(len(self.indexes()), 1)
                self.assertEqual(len(self.ok_json("packs", "list")), 1)
                shutil.rmtree(self.environment["SLUICE_CACHE_DIR"])

    def test_unquantized_files_are_served(self):
        for name in ("lfm2moe-bf16", "mistral4-bf16"):
            with self.subTest(name):
                self.assertEqual(len(self.run_model(file_of(name))), 24)
        self.assertEqual(len(self.indexes()), 2)

    def test_folder_is_served_in_place_when_asked(self):
        code, out, err = self.sluice("run", "--model", harness.SAMPLE, "--bits", "file", *self.ask)
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.indexes()), 1)
        packed = os.path.join(self.runtime, "packed")
        self.ok("pack", harness.SAMPLE, "--out", packed, "--bits", "source", "--quiet")
        self.assertEqual(json.loads(out)["token_ids"], self.ok_json("run", "--pack", packed, *self.ask[:-1])["token_ids"])

    def test_index_is_small_whole_and_removable(self):
        self.run_model(file_of("granitemoe-q5_k_m"))
        (index,) = self.indexes()
        self.assertTrue(index["complete"])
        checked = self.ok_json("verify", index["path"])
        self.assertGreater(checked["checksums"], 0)
        self.assertFalse(os.path.exists(os.path.join(index["path"], "experts.bin")))
        self.ok("packs", "remove", index["name"])
        self.assertEqual(self.indexes(), [])

    def test_single_neurons_want_a_pack(self):
        model = self.copy("granitemoe-q5_k_m")
        code, _, err = self.sluice("run", "--model", model, *self.ask, "--preset", "floe")
        self.assertNotEqual(code, 0)
        self.assertIn(f"sluice pack {os.path.realpath(model)} --out PACK --layout 'up|gate|down'", err)

    def test_changed_file_gets_a_new_index(self):
        model = self.copy("granitemoe-q5_k_m")
        first = self.run_model(model)
        (index,) = self.indexes()
        os.utime(model, (1_000_000_000, 1_000_000_000))
        code, _, err = self.sluice("run", "--pack", index["path"], *self.ask)
        self.assertNotEqual(code, 0)
        self.assertIn("has changed since its index", err)
        self.assertEqual(self.run_model(model), first)
        self.assertEqual(len(self.indexes()), 2)

    def test_damage_below_the_index_is_noticed(self):
        model = self.copy("granitemoe-q5_k_m")
        self.run_model(model)
        (index,) = self.indexes()
        self.ok("verify", index["path"])
        times = os.stat(model).st_atime_ns, os.stat(model).st_mtime_ns
        with open(model, "r+b") as file:
            # All blocks of the last quarter: experts among them.
            size = os.path.getsize(model)
            for at in range(size // 4 * 3, size, 4096):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
        os.utime(model, ns=times)
        code, out, err = self.sluice("run", "--pack", index["path"], *self.ask)
        self.assertNotEqual(code, 0, out)
        self.assertIn("is not what it was when it was first read", err + self.logs())


if __name__ == "__main__":
    harness.main()
