"""bench/report.py: what becomes of the figures of benchmarks."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench"))
import report  # noqa: E402

BENCH = {
    "test": "tg128", "preset": "exact", "batch": 1, "model": "sample", "threads": "2", "avg_ts": 41.93, "stddev_ts": 0.5,
    "read_bandwidth_share": 0.871, "hit_rate": 1.0,
}  # fmt: skip


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def file(self, name, value):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return path

    @staticmethod
    def program(value, threads=2, rows=("a",)):
        return {"program": "p_bench", "threads": threads, "rows": [{"what": r, "value": value, "unit": "us"} for r in rows]}

    def write(self, old, *values):
        paths = [self.file(f"{i}.json", value) for i, value in enumerate(values)]
        return report.document(old, lambda threads: f"CPU, {threads} threads", paths)

    def test_both_kinds_stand_in_their_machine_table(self):
        text = self.write("", [BENCH], self.program(12345.6), self.program(0.01234, threads=4))
        self.assertTrue(text.startswith(report.HEADER))
        self.assertEqual(report.read_tables(text), {
            "CPU, 2 threads": {
                ("p_bench", "a"): "12346 us",
                ("sluice bench", "sample, exact, tg128, batch 1"):
                    "41.9 ± 0.5 tokens/s, weights at 87 % of the read bandwidth, 100 % hits",
            },
            "CPU, 4 threads": {("p_bench", "a"): "0.0123 us"},
        })  # fmt: skip

    def test_other_figures_stand_in_the_named_table(self):
        text = self.write("", {**self.program(81.4), "table": "Bounds"}, self.program(1))
        self.assertEqual(report.read_tables(text), {
            "Bounds": {("p_bench", "a"): "81.4 us"},
            "CPU, 2 threads": {("p_bench", "a"): "1 us"},
        })  # fmt: skip

    def test_a_page_without_figures_says_so(self):
        self.assertIn("No machine has been measured yet", self.write(""))
        self.assertNotIn("yet", self.write(self.write(""), self.program(1)))

    def test_repeated_figures_are_replaced(self):
        old = self.write("", self.program(1, rows=("a", "b|c")), self.program(1, threads=4))
        new = self.write(old, self.program(2))
        self.assertEqual(report.read_tables(new), {
            "CPU, 2 threads": {("p_bench", "a"): "2 us", ("p_bench", "b/c"): "1 us"},
            "CPU, 4 threads": {("p_bench", "a"): "1 us"},
        })  # fmt: skip

    def test_other_files_and_long_tables_are_refused(self):
        for wrong in ([], {}, {"program": "x"}, "text", [{"test": "tg1"}]):
            with self.assertRaisesRegex(report.Wrong, "0.json: not the JSON of a benchmark"):
                self.write("", wrong)
        with self.assertRaisesRegex(report.Wrong, "150 are the most"):
            self.write("", self.program(1, rows=[str(i) for i in range(150)]))


if __name__ == "__main__":
    unittest.main()
