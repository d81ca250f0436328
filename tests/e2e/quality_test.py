"""`sluice-lab quality`: results in a work folder are reused only for the inputs that they were made from."""
import json
import os
import shutil

import harness

TEXT = harness.DATA + "/wikitext2_head.txt"
PLAN = """
[[pack]]
name = "high"
args = ["--bits", "q8"]
calibrate = true
[[pack]]
name = "low"
args = ["--bits", "q2"]
[[pack]]
name = "middle"
args = ["--bits", "q4"]
"""


def row(pack, options=()):
    return f'[[row]]\nname = "{pack} {" ".join(options)}"\npack = "{pack}"\noptions = {json.dumps(list(options))}\n'


class QualityTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.work, self.id())
        os.makedirs(self.folder)
        self.text = self.path("text")
        shutil.copy(TEXT, self.text)

    def path(self, name):
        return os.path.join(self.folder, name)

    def measure(self, rows, *args, work="work"):
        """Returns the rows' results; each call has its own daemons."""
        with open(self.path("rows.toml"), "w") as file:
            file.write(PLAN + "".join(rows))
        return self.lab_json(
            "quality", "--model", harness.SAMPLE, "--text", self.text, "--calibration", self.path("calibration"),
            "--rows", self.path("rows.toml"), "--max-tokens", 60, "--calibration-tokens", 60, "--work", self.path(work),
            "--out", self.path("out"), *args,
        )["rows"]  # fmt: skip

    def test_run_is_compared_with_its_first_row(self):
        shutil.copy(TEXT, self.path("calibration"))
        high, low = row("high"), row("low")
        compared = self.measure([high, low])[1]
        turned = self.measure([low, high])
        self.assertEqual([None, None], [turned[0]["kld_mean"], turned[0]["same_top"]])
        self.assertEqual(turned, self.measure([low, high], work="fresh"))
        self.assertNotEqual(turned[1]["kld_mean"], compared["kld_mean"])
        # The first call keeps its own base, also for a row that it did not have.
        again = self.measure([high, low, row("middle")])
        self.assertEqual(again[1], compared)
        self.assertLess(again[2]["kld_mean"], compared["kld_mean"] / 4)

    def test_changed_text_is_measured_again(self):
        shutil.copy(TEXT, self.path("calibration"))
        first = self.measure([row("high")])
        with open(self.text, "w") as file:
            file.write("One two three four five six seven eight nine ten. " * 20)
        second = self.measure([row("high")])
        self.assertNotEqual(first[0]["ppl"], second[0]["ppl"])
        self.assertEqual(second, self.measure([row("high")], work="fresh"))

    def test_new_calibration_changes_thresholds(self):
        sparse = row("high", ["--sparsity", "up", "--sparsity-target", "0.8"])
        shutil.copy(TEXT, self.path("calibration"))
        first = self.measure([sparse])
        with open(self.path("calibration"), "w") as file:
            file.write("One two three four five six seven eight nine ten. " * 20)
        second = self.measure([sparse])
        self.assertNotEqual(first[0]["sparsity"], second[0]["sparsity"])
        self.assertEqual(second, self.measure([sparse], work="fresh"))

    def test_changed_recipe_file_is_packed_again(self):
        shutil.copy(TEXT, self.path("calibration"))
        recipe = self.path("own.toml")

        def measure():
            return self.lab_json(
                "quality", "--model", harness.SAMPLE, "--text", self.text, "--calibration", self.path("calibration"),
                "--max-tokens", 60, "--calibration-tokens", 60, "--recipes", "corm," + recipe, "--work",
                self.path("work"), "--out", self.path("out"),
            )["rows"]  # fmt: skip

        bits = []
        for encoding in ("q8", "q2"):
            with open(recipe, "w") as file:
                file.write(f'bits = "{encoding}"\n')
            rows = measure()
            self.assertEqual([row["run"] for row in rows], ["bf16, exact", "corm, exact", recipe + ", exact"])
            bits.append([row["bits_per_weight"] for row in rows])
        self.assertEqual(bits, [[16, 4.25, 8.5], [16, 4.25, 2.5]])

    def test_unmeasurable_rows_are_refused_early(self):
        def refused(expected, *args, out="out"):
            code, out, _ = self.sluice(
                "quality", "--model", harness.SAMPLE, "--text", self.text, "--work", self.path("work"),
                "--max-tokens", 60, "--json", "--out", self.path(out), *args, program="sluice-lab",
            )  # fmt: skip
            error = json.loads(out)["error"]
            self.assertEqual((code, error["code"]), (1, "INVALID_ARGUMENT"), error)
            self.assertIn(expected, error["message"])
            self.assertEqual([], [name for name in os.listdir(self.folder) if name == "work"])

        refused('unknown preset "fast"', "--presets", "exact,fast")
        refused("--presets ',' names none", "--presets", ",")
        refused('unknown recipe "fast"', "--recipes", "q4,fast")

    def test_failure_has_the_failed_commands_code(self):
        code, out, _ = self.sluice(
            "quality", "--model", self.path("nowhere"), "--text", self.text, "--work", self.path("work"), "--json",
            "--out", self.path("out"), program="sluice-lab",
        )  # fmt: skip
        error = json.loads(out)["error"]
        self.assertEqual((code, error["code"]), (1, "NOT_FOUND"))
        self.assertIn("config.json is missing", error["message"])
        with open(self.path("file"), "w"):
            pass
        code, out, _ = self.sluice(
            "quality", "--model", harness.SAMPLE, "--text", self.text, "--work", self.path("work"), "--json",
            "--out", self.path("file") + "/out", program="sluice-lab",
        )  # fmt: skip
        self.assertEqual((code, json.loads(out)["error"]["code"]), (1, "INVALID_ARGUMENT"), out)


if __name__ == "__main__":
    harness.main()
