"""lab/mutants.py: which changes it draws from a source, and its results over a tree in which a stand-in compiles and tests."""
import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../lab"))

import mutants  # noqa: E402

SOURCE = """#include <a>
// A comment with 1 < 2.
int Sum(int a, int b) {
  log_->info("not 3 == 3 here", 4 + 5);
  if (a < b) {
    Count(a);
  }
  return a + 7;
}
"""


class FakeTree:
    """Compiles all but one change; test `strict` fails on any change of the return value, `loose` never."""

    def __init__(self, folder):
        self.root = folder

    def text(self):
        with open(os.path.join(self.root, "sum.cc")) as file:
            return file.read()

    def tests_of(self, source):
        return ["loose", "strict", "slow"]

    def compile(self, tests):
        return "a - 7" not in self.text()

    def run(self, test, limit):
        if test == "slow":
            return False, limit
        return test == "loose" or "return a + 7;" in self.text(), 0.1


class MutantsTest(unittest.TestCase):
    def changes(self):
        return {(number, line.strip()) for number, line, _ in mutants.mutants_of(SOURCE)}

    def test_each_kind_of_change_is_found(self):
        self.assertEqual(
            {
                (5, "if (a <= b) {"),
                (5, "if (!(a < b)) {"),
                (6, ";"),
                (8, "return a - 7;"),
                (8, "return a + 8;"),
            },
            self.changes(),
        )

    def test_text_comments_and_logs_stay(self):
        self.assertFalse({1, 2, 4} & {number for number, _ in self.changes()})

    def test_results_and_source_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "sum.cc"), "w") as file:
                file.write(SOURCE)
            trial = mutants.Trial.__new__(mutants.Trial)
            trial.options = types.SimpleNamespace(test_seconds=5)
            trial.tree = FakeTree(folder)
            trial.usual = {}
            results = {}
            for number, line, kind in mutants.mutants_of(SOURCE):
                result = trial.try_one("sum.cc", number, line, kind)
                results[result["after"]] = (result["result"], result.get("by"))
            self.assertEqual(("caught", "strict"), results["return a + 8;"])
            self.assertEqual(("does not compile", None), results["return a - 7;"])
            self.assertEqual(("survived", None), results["if (a <= b) {"])
            self.assertIsNone(trial.usual["slow"], "a test that is too slow on the unchanged tree does not count")
            self.assertEqual(SOURCE, trial.tree.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
