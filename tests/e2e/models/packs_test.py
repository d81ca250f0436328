"""--model: a folder becomes a pack once, in a cache that commands share; sluice packs."""
import os
import shutil
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness


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

    def test_other_bits_and_changed_files_get_packs_of_their_own(self):
        self.assertIn("as q4", self.run_model(harness.SAMPLE, "--bits", "q4")[1])
        # What is there is taken though memory would hold more.
        self.assertNotIn("packed", self.run_model(harness.SAMPLE)[1])
        model = os.path.join(self.work, "model")
        shutil.copytree(harness.SAMPLE, model)
        self.assertIn("packed", self.run_model(model)[1])
        os.utime(os.path.join(model, "model.safetensors"), (1, 1))
        self.assertIn("packed", self.run_model(model)[1])
        self.assertEqual(len(self.packs()), 3)

    def test_bits_beside_a_pack_and_what_is_no_model_are_refused(self):
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

    def test_what_an_interrupted_packing_left_is_shown_and_removable(self):
        self.run_model(harness.SAMPLE)
        (pack,) = self.packs()
        os.rename(pack["path"], pack["path"] + ".partial")
        self.assertFalse(self.packs()[0]["complete"])
        self.ok("packs", "remove", "--all")
        self.assertEqual(os.listdir(os.path.join(self.cache, "packs")), [])


if __name__ == "__main__":
    harness.main()
