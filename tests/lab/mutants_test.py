"""lab/mutants.py: which changes it draws, code that chooses between them, and its results over a tree that a stand-in compiles."""
import json
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


def choices_of(text):
    """Returns {kind: code that chooses} of a source with one change of each kind."""
    return {mutant.kind: mutants.choice(text, 9, mutant).replace("::sluice_mutants::", "") for mutant in mutants.mutants_of(text)}


class ChangesTest(unittest.TestCase):
    def changes(self):
        return {(mutant.line, mutants.changed_line(SOURCE, mutant)[1]) for mutant in mutants.mutants_of(SOURCE)}

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

    def test_the_rest_of_a_statement_is_no_call(self):
        self.assertEqual([], mutants.mutants_of("{\n  int x = a ?\n      Call(b);\n}\n"))


class ChoiceTest(unittest.TestCase):
    def test_an_operator_stands_in_its_expression(self):
        self.assertEqual({"< to <=": "(Applies(9) ? (i <= n) : (i < n))"}, choices_of("  for (int i = x; i < n; i = y) {\n"))
        self.assertEqual({"< to <=": "(Applies(9) ? (a <= b) : (a < b))"}, choices_of("  case kA: return a < b;\n"))
        self.assertEqual({"< to <=": "(Applies(9) ? (a <= b) : (a < b))"}, choices_of("{\n  if (x) return a < b;\n}\n"))
        self.assertEqual({"+= to -=": "(Applies(9) ? (a -= b) : (a += b))"}, choices_of("{\n  a += b;\n}\n"))
        self.assertEqual({"true to false": "(Applies(9) ? (false) : (true))"}, choices_of("{\n  bool a = true;\n}\n"))

    def test_a_call_is_left_out(self):
        self.assertEqual({"call left out": "if (!Applies(9)) Count(a);"}, choices_of("{\n  Count(a);\n}\n"))

    def test_a_condition_keeps_what_it_declares(self):
        self.assertEqual({"condition turned round": "auto x = f(); Applies(9) != static_cast<bool>( x)"},
                         choices_of("  if (auto x = f(); x) {\n"))  # fmt: skip
        self.assertEqual({}, choices_of("  if (auto* x = f()) {\n"))

    def test_lines_keep_their_numbers(self):
        text = "{\n  bool x = a < b &&  // why\n           c;\n}\n"
        found = mutants.mutants_of(text)
        self.assertEqual(2, len(found))
        for mutant in found:
            code = mutants.switched(text, {1: mutant})
            self.assertEqual(text.count("\n"), code.count("\n"))
            self.assertEqual(1, code.count("// why"), "the comment would hide the rest of the line")

    def test_a_constant_becomes_a_variable(self):
        text = "constexpr int kMost = 4;\n"
        (mutant,) = mutants.mutants_of(text)
        self.assertEqual("const int kMost = (::sluice_mutants::Applies(1) ? (5) : (4));\n", mutants.switched(text, {1: mutant}))


class FakeTree:
    """Does not compile the change of `+`; test `strict` sees changes of line 8, `loose` none, `far` reaches no mutant."""

    def __init__(self, root, trial):
        self.root = root
        self.trial = trial
        self.runs = []

    def text(self):
        with open(os.path.join(self.root, "sum.cc")) as file:
            return file.read()

    def tests_of(self, source):
        return ["loose", "strict", "slow", "far"]

    def compile(self, tests):
        if "a - 7" in self.text():
            return False, f"{self.root}/sum.cc:8:12: error: no operator\n"
        return True, ""

    def run(self, test, limit, environment):
        if test == "slow":
            return "hung", limit
        if "SLUICE_MUTANTS_REACHED" in environment and test != "far":
            with open(environment["SLUICE_MUTANTS_REACHED"], "w") as file:
                file.write("".join(f"{number}\n" for number, (_, mutant) in enumerate(self.trial.drawn, 1) if mutant.line != 6))
        if "SLUICE_MUTANT" not in environment:
            return "passed", 0.1
        self.runs.append(test)
        line = self.trial.drawn[int(environment["SLUICE_MUTANT"]) - 1][1].line
        return ("failed" if test == "strict" and line == 8 else "passed"), 0.1


class TrialTest(unittest.TestCase):
    def try_all(self, folder, chosen):
        with open(os.path.join(folder, "sum.cc"), "w") as file:
            file.write(SOURCE)
        trial = mutants.Trial.__new__(mutants.Trial)
        trial.options = types.SimpleNamespace(test_seconds=5, report=os.path.join(folder, "report.json"), tests=None, seed=1)
        trial.drawn = [("sum.cc", mutant) for mutant in mutants.mutants_of(SOURCE) if mutant.kind in chosen]
        trial.tree = FakeTree(folder, trial)
        trial.usual, trial.reached, trial.texts, trial.results = {}, {}, {}, {}
        trial.try_all(trial.drawn)
        with open(trial.options.report) as file:
            return trial, {result["kind"]: result["result"] for result in json.load(file)["mutants"]}

    def test_each_mutant_has_its_result(self):
        with tempfile.TemporaryDirectory() as folder:
            trial, results = self.try_all(folder, ["< to <=", "call left out", "7 to 8"])
            self.assertEqual({"< to <=": "survived", "call left out": "survived, reached by no test", "7 to 8": "caught"}, results)
            self.assertIsNone(trial.usual["slow"], "a test that is too slow without a mutant does not count")
            self.assertNotIn("far", trial.tree.runs, "it reaches no mutant")

    def test_survivors_of_a_report_are_tried_again(self):
        with tempfile.TemporaryDirectory() as folder:
            trial, _ = self.try_all(folder, ["< to <=", "call left out", "7 to 8"])
            trial.options.again = trial.options.report
            self.assertEqual(["< to <=", "call left out"], [mutant.kind for _, mutant in trial.survivors()])
            trial.texts["sum.cc"] = SOURCE.replace("    Count(a);\n", "")
            self.assertEqual(["< to <="], [mutant.kind for _, mutant in trial.survivors()])

    def test_what_does_not_compile_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            trial, results = self.try_all(folder, ["< to <=", "+ to -"])
            self.assertEqual({"< to <=": "survived", "+ to -": "does not compile"}, results)
            self.assertNotIn("a - 7", trial.tree.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
