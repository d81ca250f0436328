"""Commands that need no daemon: exit codes, help, JSON, pack and tokenizer calls."""
import json
import os

import harness

COMMANDS = [
    "run", "chat", "pull", "plan", "pack", "packs", "inspect", "verify", "synth", "tokenize", "detokenize", "logits", "perplexity", "bench", "doctor",
    "preset", "tune",
]  # fmt: skip


class CliTest(harness.TestCase):
    def test_help_fits_a_screen_with_all_commands(self):
        text = self.ok("--help")
        self.assertLessEqual(len(text.splitlines()), 24)
        for command in COMMANDS:
            self.assertIn(f"  {command} ", text)
            self.assertLessEqual(len(self.ok(command, "--help").splitlines()), 40, command)

    def test_usage_error_exits_with_2_on_stderr(self):
        calls = [[], ["nonsense"], ["plan"], ["chat"], ["pack"], ["pack", "x"], ["run", "--pack", "p", "--nonsense"]]
        calls += [["tokenize", "--text", "x"], ["tokenize", "--pack", "p", "--tokenizer", "d", "--text", "x"]]
        calls += [["detokenize", "--pack", "p", "--token-ids", "1,x"], ["preset", "list", "exact"], ["preset", "show"]]
        calls += [["run", "--prompt", "x"], ["run", "--pack", "p", "--model", "m", "--prompt", "x"]]
        calls += [["packs", "show"], ["packs", "remove"], ["packs", "list", "x"], ["packs", "remove", "x", "--all"]]
        calls += [["pull"], ["pull", "a/b", "c"], ["tune"], ["tune", "--context", "0"]]
        calls += [["bench", "--pack", "p", "-p", "0", "-n", "0"], ["bench", "--pack", "p", "-o", "sql"]]
        calls += [["bench", "--pack", "p", "--sweep", "threads=1,2"], ["bench", "--pack", "p", "--seed", "x"]]
        calls += [["perplexity", "--pack", "p", "--text", "t", "--window", "4", "--stride", "5"]]
        for call in calls:
            code, out, err = self.sluice(*call)
            self.assertEqual(code, 2, call)
            if call:
                self.assertEqual(out, "", call)
                self.assertNotEqual(err, "", call)
        for call in ([], ["--pack", "p", "--nonsense"], ["--pack", "p", "-n", "1"]):
            code, out, err = self.sluice(*call, program="sluice-lab")
            self.assertEqual((code, out), (2, ""), call)
            self.assertIn("sluice-lab", err)

    def test_failure_exits_with_1_and_one_json_object(self):
        absent = os.path.join(self.work, "absent")
        for call in (
            ["inspect", absent], ["verify", absent], ["tokenize", "--pack", absent, "--text", "x"],
            ["run", "--pack", absent, "--prompt", "x"], ["pack", absent, "--out", absent + "2"],
            ["preset", "show", "nonesuch"], ["bench", "--pack", absent],
        ):  # fmt: skip
            code, out, err = self.sluice(*call, "--json")
            self.assertEqual(code, 1, call)
            self.assertEqual(set(json.loads(out)["error"]), {"code", "message"})
            self.assertNotEqual(err, "", call)

    def test_useless_measurements_are_refused_early(self):
        lab = ("sluice-lab", "--pack", self.pack, "-p", 4, "-n", 2, "-r", 1)
        for (program, *call), expected in (
            (("sluice", "bench", *lab[1:], "--preset", ","), "names none"),
            ((*lab, "--preset", ","), "names none"),
            ((*lab, "--preset", "ondemand", "-b", "0"), "-b"),
            ((*lab, "--preset", "ondemand", "--out", "/dev/null/folder"), "/dev/null/folder"),
            (("sluice", "top", "--interval", "0s"), "--interval"),
        ):
            code, out, err = self.sluice(*call, program=program)
            self.assertEqual((code, out), (1, ""), call)
            self.assertIn("INVALID_ARGUMENT", err)
            self.assertIn(expected, err)
            self.assertNotIn("a token", err)

    def test_pack_inspect_verify_have_their_keys(self):
        out = os.path.join(self.work, "again.pack")
        packed = self.ok_json("pack", harness.SAMPLE, "--out", out, "--bits", "q8", "--group", 32)
        self.assertEqual(set(packed), {"model_id", "bytes", "experts", "seconds"})
        self.assertEqual(packed["experts"], 48)
        self.assertEqual(self.ok_json("verify", out)["model_id"], packed["model_id"])
        self.assertIn(packed["model_id"], json.dumps(self.ok_json("inspect", out)))
        code, _, err = self.sluice("pack", harness.SAMPLE, "--out", out)
        self.assertEqual(code, 1)
        self.assertIn("--force", err)
        os.mkdir(os.path.join(out, "profile"))
        for source, told in ((harness.SAMPLE, "is kept"), (harness.TINY, "is removed")):
            code, _, err = self.sluice("pack", source, "--out", out, "--force", "--json")
            self.assertEqual((code, err.count("\n")), (0, 1))
            self.assertIn(told, err)

    def test_synth_writes_a_pack_that_verifies(self):
        out = os.path.join(self.work, "synth.pack")
        made = self.ok_json("synth", "--shape", "qwen3-30b-a3b", "--layers", 1, "--vocab", 512, "--bits", "q8", "--out", out)
        self.assertGreater(made["bytes"], 100 << 20)
        self.ok("verify", out)

    def test_tokenize_round_trip_is_byte_exact(self):
        text = "  The <s> city\r\nof \u4e16 lights\n"
        path = os.path.join(self.work, "text")
        with open(path, "w", newline="") as file:
            file.write(text)
        plain = self.ok_json("tokenize", "--pack", self.pack, "--text-file", path, "--no-special", "--plain")["ids"]
        self.assertEqual(self.ok_json("tokenize", "--tokenizer", harness.SAMPLE, "--text", text, "--no-special", "--plain")["ids"], plain)
        back = self.ok_json("detokenize", "--pack", self.pack, "--token-ids", ",".join(map(str, plain)))["text"]
        self.assertEqual(back, text)
        special = self.ok_json("tokenize", "--pack", self.pack, "--text", "x")["ids"]
        self.assertEqual(special[0], 1)
        ids = ",".join(map(str, special))
        self.assertEqual(self.ok_json("detokenize", "--pack", self.pack, "--token-ids", ids)["text"], "<s> x")
        skipped = self.ok_json("detokenize", "--pack", self.pack, "--token-ids", ids, "--skip-special")["text"]
        self.assertNotIn("<s>", skipped)

    def test_doctor_finds_a_damaged_pack(self):
        report = self.ok_json("doctor", "--pack", self.pack)
        self.assertTrue(report["ok"])
        for check in report["checks"]:
            self.assertIn(check["verdict"], ("PASS", "WARN"))
            self.assertEqual(check["fix"] == "", check["verdict"] == "PASS")
        code, out, _ = self.sluice("doctor", "--pack", os.path.join(self.work, "absent"))
        self.assertEqual(code, 1)
        self.assertIn("FAIL  pack", out)

    def test_preset_exact_prints_its_policies(self):
        shown = self.ok_json("preset", "show", "exact")
        self.assertEqual(shown["policies"]["routing"], "topk")
        self.assertIn("prefill chunking", shown["independent_of"])
        self.assertEqual(shown["refused"], "")
        presets = self.ok_json("preset", "list")["presets"]
        self.assertEqual(presets[:7], ["exact", "floe", "floe90", "corm", "intra", "adapmoe", "importance"])
        for preset in presets:
            self.assertEqual(self.ok_json("preset", "show", preset)["name"], preset)
        importance = self.ok_json("preset", "show", "importance", "--device", "sim", "--policy", "cache_alpha=0.5")
        self.assertEqual(importance["policies"]["cache_alpha"], "0.5")
        self.assertIn("batch composition", importance["dependent_on"])


if __name__ == "__main__":
    harness.main()
