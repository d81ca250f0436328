"""sluice plan: its memory equals the daemons' use; models need not be local."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import streams_test

GIB = 1 << 30


class PlanTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.environment["SLUICE_CACHE_DIR"] = os.path.join(self.runtime, "cache")

    def plan(self, *args):
        return self.ok_json("plan", "--no-measure", *args)

    def row(self, plan, bits=None, preset="exact"):
        (row,) = (r for r in plan["rows"] if r["preset"] == preset and bits in (None, r["bits"]))
        return row

    def test_memory_is_what_the_daemons_report(self):
        for args in (
            (), ("--context", 512, "--parallel", 8), ("--kv", "q8", "--prefill-chunk", 64), ("--kv-budget", "3MiB"),
            ("--dram-budget", "9MiB", "--parallel", 1),
        ):  # fmt: skip
            row = self.row(self.plan("--pack", self.pack, *args))
            code, _, err = self.sluice("run", "--pack", self.pack, "--prompt", "The", "-n", 2, *args)
            self.assertEqual(code, 0, err)
            budget = row["dram_budget"]
            reported = re.search(r"dram-budget ([0-9.]+ [KMG]iB)", err).group(1)
            self.assertEqual(reported, f"{budget / (1 << 20):.1f} MiB", args)
            with open(os.path.join(self.runtime, "inferd.log")) as file:
                kv, activations = re.findall(r"KV cache (\d+) bytes, activations (\d+) bytes", file.read())[-1]
            self.assertEqual((row["kv_bytes"], row["activation_bytes"]), (int(kv), int(activations)), args)

    def allocated(self, pack, *args):
        code, _, err = self.sluice("run", "--pack", pack, "--token-ids", "3,4,5", "-n", 2, *args)
        self.assertEqual(code, 0, err)
        with open(os.path.join(self.runtime, "inferd.log")) as file:
            return [int(n) for n in re.findall(r"KV cache (\d+) bytes, activations (\d+) bytes", file.read())[-1]]

    def test_states_and_indexes_are_as_allocated(self):
        folders = {name: os.path.join(harness.ROOT, "tests/data/tiny", name) for name in (
            "kimi_linear", "minimax_m3", "mimo_v2_flash", "step3p5", "jamba", "qwen4_exp", "longcat_flash")}  # fmt: skip
        for name, config, shapes in (
            ("glm5_next", streams_test.GLM, streams_test.glm_shapes),
            ("deepseek_v4", streams_test.DEEPSEEK, streams_test.deepseek_shapes),
        ):  # fmt: skip
            folders[name] = os.path.join(self.runtime, name)
            streams_test.write_model(folders[name], config, shapes)
        for name, folder in folders.items():
            pack = os.path.join(self.runtime, name + ".pack")
            self.ok("pack", folder, "--out", pack, "--bits", "q8", "--quiet")
            for args in (("--context", 64), ("--context", 320, "--parallel", 3, "--kv", "q8")):
                row = self.row(self.plan("--pack", pack, *args))
                self.assertEqual([row["kv_bytes"], row["activation_bytes"]], self.allocated(pack, *args), (name, args))

    def test_flagships_are_planned_without_files(self):
        # Bytes a position and sequence: 2 of f16 for each value of the layers' keys and values.
        for shape, values in (
            ("deepseek-v3.2", 61 * (512 + 64 + 128)), ("glm-5", 78 * (512 + 64 + 128)), ("kimi-linear-48b-a3b", 7 * (512 + 64)),
            ("minimax-m3", 60 * 2 * 4 * 128 + 57 * 128),
        ):  # fmt: skip
            plan = self.plan("--shape", shape, "--bits", "q4", "--memory", "2048GiB")
            kv = {c["context"]: c["kv_bytes"] for c in plan["contexts"] if c["parallel"] == 1}
            self.assertEqual((kv[65536] - kv[8192]) / (65536 - 8192), 2 * values, shape)
        self.assertIn("sluice synth --shape glm-5 ", self.ok("plan", "--no-measure", "--shape", "glm-5", "--bits", "q4"))
        self.assertIn("unknown shape", self.sluice("plan", "--shape", "gpt-9")[2])

    def test_pack_size_is_known_in_advance(self):
        plan = self.plan("--model", os.path.join(harness.SAMPLE, "config.json"), "--bits", "q4")
        out = os.path.join(self.runtime, "q4.pack")
        self.ok("pack", harness.SAMPLE, "--out", out, "--bits", "q4", "--quiet")
        sizes = {name: os.path.getsize(os.path.join(out, name)) for name in ("dense.bin", "experts.bin")}
        row = self.row(plan)
        self.assertEqual((row["dense_bytes"], row["expert_bytes"]), (sizes["dense.bin"], sizes["experts.bin"]))

    def test_larger_machines_get_wider_rows(self):
        model = os.path.join(harness.ROOT, "tests/data/configs/qwen3-30b-a3b")
        choices = {}
        for gib in (1, 16, 64, 512):
            plan = self.plan("--model", model, "--memory", f"{gib}GiB")
            choices[gib] = plan["choice"]
            for row in plan["rows"]:
                if row["runs"]:
                    self.assertLessEqual(row["total_bytes"], gib * GIB)
        self.assertEqual([choices[gib]["bits"] for gib in (16, 64, 512)], ["q4", "q8", "q8"])
        self.assertIn("from the disk", choices[16]["why"])
        self.assertIn("does not run", choices[1]["why"])
        self.assertAlmostEqual(self.row(self.plan("--model", model), "q8")["pack_bytes"] / GIB, 30.2, delta=1)

    def test_guide_machine_table_equals_plan(self):
        with open(os.path.join(harness.ROOT, "docs/guide.md")) as file:
            lines = file.read().split("| memory | Qwen3-30B-A3B ", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
        models = ("qwen3-30b-a3b", "mixtral-8x22b", "gpt-oss-120b", "deepseek-v3")
        self.assertEqual(len(lines), 3)
        packs = {}  # each pack size is computed once
        for line in lines:
            memory, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            for model, cell in zip(models, cells, strict=True):
                parallel = re.search(r"--parallel (\d+)", cell)
                plan = self.plan("--model", os.path.join(harness.ROOT, "tests/data/configs", model), "--memory",
                                 memory.replace(" ", ""), "--threads", 2, "--parallel", parallel.group(1) if parallel else 4)
                row = self.row(plan, plan["choice"]["bits"])
                if cell.startswith("none"):
                    self.assertFalse(row["runs"], (memory, model))
                    self.assertEqual(cell, "none: %.1f GiB are dense" % (row["dense_bytes"] / GIB))
                    continue
                self.assertTrue(row["runs"], (memory, model, row["refusal"]))
                said = "%s, %.1f of %.1f GiB" % (row["bits"], row["dram_budget"] / GIB, row["pack_bytes"] / GIB)
                if row["dram_budget"] >= row["pack_bytes"]:
                    size = "%.1f GiB" % (row["pack_bytes"] / GIB)
                    self.assertIn(cell, (f"{row['bits']}, whole", f"{row['bits']}, whole ({size})"), (memory, model))
                    if "(" in cell:
                        packs[model] = size
                else:
                    self.assertTrue(cell.startswith(said), (memory, model, cell, said))
        self.assertEqual(set(packs), {"qwen3-30b-a3b", "mixtral-8x22b", "gpt-oss-120b"})

    def test_plan_shows_native_rows_of_a_gguf_file(self):
        model = os.path.join(harness.ROOT, "tests/data/gguf/granitemoe-q5_k_m/model.gguf")
        plan = self.plan("--model", model)
        self.assertEqual({row["bits"] for row in plan["rows"]}, {"file", "file-q4", "q8", "q4", "q3"})
        self.assertEqual(plan["choice"]["bits"], "file")
        for bits, words in (("file", ()), ("file-q4", ("--down-bits", "q4"))):
            out = os.path.join(self.runtime, bits)
            self.ok("pack", model, "--out", out, "--quiet", *words)
            sizes = [os.path.getsize(os.path.join(out, name)) for name in ("dense.bin", "experts.bin")]
            row = self.row(plan, bits)
            self.assertEqual([row["dense_bytes"], row["expert_bytes"]], sizes)
            # The pack's parts have several encodings; its speed is still measured.
            self.assertGreater(self.row(self.ok_json("plan", "--pack", out))["tokens_per_second"], 0)
        code, _, err = self.sluice("run", "--model", model, "--token-ids", "1,2", "-n", 1)
        self.assertEqual(code, 0, err)
        self.assertIn("is served in place", err)
        code, _, err = self.sluice("run", "--model", model, "--bits", "file", "--token-ids", "1,2", "-n", 1)
        self.assertEqual(code, 0, err)
        self.assertIn("is packed once, as file (", err)
        said = self.sluice("run", "--model", harness.SAMPLE, "--bits", "file-q4", "--token-ids", "1")[2]
        self.assertIn("is no GGUF file", said)

    def test_plan_of_gguf_head_omits_native_rows(self):
        with open(os.path.join(harness.ROOT, "tests/data/gguf/granitemoe-q5_k_m/model.gguf"), "rb") as file:
            whole = file.read()
        head = os.path.join(self.runtime, "head.gguf")
        with open(head, "wb") as file:
            file.write(whole[:-20000])
        self.assertIn("head.gguf", self.plan("--model", head)["not_counted"])
        self.assertIn("the file's own rows are not counted", self.ok("plan", "--no-measure", "--model", head))

    def test_packing_takes_what_plan_takes(self):
        choice = self.plan("--model", harness.SAMPLE)["choice"]
        code, _, err = self.sluice("run", "--model", harness.SAMPLE, "--prompt", "The", "-n", 1)
        self.assertEqual(code, 0, err)
        self.assertIn(f"is packed once, as {choice['bits']} (", err)
        self.assertIn(choice["why"], err)

    def test_speed_is_measured_and_said(self):
        plan = self.ok_json("plan", "--pack", self.pack, "--dram-budget", "9MiB", "--disk-gbps", 2)
        row = self.row(plan)
        self.assertGreater(row["tokens_per_second"], 0)
        self.assertGreater(row["disk_bytes_per_token"], 0)
        self.assertLess(row["hit_rate"], 1)
        text = self.ok("plan", "--pack", self.pack)
        self.assertIn("tokens/s", text)
        self.assertIn("takes ", text)
        self.assertIn(f"sluice run --pack {self.pack} ", text)

    def test_no_model_at_all_is_said(self):
        for path, expected in (
            (os.path.join(self.runtime, "absent"), "NOT_FOUND"), (self.runtime, "config.json"),
            (os.path.join(harness.DATA, "sample_greedy.json"), "INVALID_ARGUMENT"),
        ):  # fmt: skip
            code, out, err = self.sluice("plan", "--model", path, "--json")
            self.assertEqual(code, 1, path)
            self.assertIn("error", json.loads(out))
            self.assertIn(expected, err)
            self.assertIn(path, err)


if __name__ == "__main__":
    harness.main()
