"""sluice plan: memory is what the daemons take, and models need not be there to be planned for."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness

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

    def test_what_a_pack_takes_is_known_before_it_is_made(self):
        plan = self.plan("--model", os.path.join(harness.SAMPLE, "config.json"), "--bits", "q4")
        out = os.path.join(self.runtime, "q4.pack")
        self.ok("pack", harness.SAMPLE, "--out", out, "--bits", "q4", "--quiet")
        sizes = {name: os.path.getsize(os.path.join(out, name)) for name in ("dense.bin", "experts.bin")}
        row = self.row(plan)
        self.assertEqual((row["dense_bytes"], row["expert_bytes"]), (sizes["dense.bin"], sizes["experts.bin"]))

    def test_larger_machines_get_wider_rows_and_none_gets_what_it_cannot_hold(self):
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
