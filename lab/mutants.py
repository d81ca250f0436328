#!/usr/bin/python3
"""Tries the tests: changes one operator, constant or call of a source at a time, and lists the changes that no test notices.

usage: mutants.py --work DIR [--count N] [--seed N] [--jobs N] [--tests FOLDER_OR_TEST,...] [--test-seconds S] [--report FILE.json]
                  [--list] SOURCE_OR_FOLDER...
       mutants.py ... --again FILE.json

DIR becomes a worktree of the commit that is checked out, with a build of its own; the tree that you work in is not touched.
`--count` mutants are drawn by `--seed` from all that the named sources allow, each source with the same chance. All are built
at once: each stands in its source beside the original code, and the environment of a test says by number which one applies.
One run of each test without a mutant measures its time and which mutants it reaches; then each mutant is tried with the tests
that reach it, short ones first, until one fails. The tests are those that the CMakeLists.txt of the nearest tests/MODULE and
below declare, or those of `--tests`. Tests that take longer than `--test-seconds` unchanged do not run; they are named.

A mutant is caught by a test that fails, or twice does not end in five times its usual time. Mutants that do not compile, alone or
because they stand where code cannot choose between two (template arguments, labels of cases), count for nothing. The report
keeps each result as it is found: the same command again goes on behind the last one. The last line says how many were caught.
A survivor is a missing test, or a change that means the same (a human decides). `--again` tries the survivors of a report, as
far as their lines are still there, in place of drawn mutants: are they caught by now?
"""
import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

OPERATORS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
             (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" += ", " -= "),
             (" -= ", " += "), ("true", "false"), ("false", "true")]  # fmt: skip
CALL = re.compile(r"^\s*[\w:.\->]+(\[[^\]]*\])?(\.|->)?\w*\([^{}]*\);$")
INCREMENT = re.compile(r"^\s*(\+\+|--)[\w:.\->()\[\]]+;$")
NUMBER = re.compile(r"(?<![\w.'\"])(\d+)(?![\w.'])")
CONDITION = re.compile(r"^(\s*(?:\} else )?if \()(.*)(\) \{)$")
# Lines whose change no test should notice: what a log or an error says, declarations, checks of the compiler.
IGNORED = re.compile(r"^\s*(#|//|using |namespace |template|static_assert|constexpr char|return absl::\w+Error)|log_?->|Annotate\(|"
                     r"StrCat\(|\.reserve\(|->reserve\(|Log\(|log_error\(")  # fmt: skip
LABEL = re.compile(r"(case [^;{}]*?[^:]:(?!:)|default:|public:|private:|protected:)\s*")
ASSIGNMENT = re.compile(r"(?<![=!<>])(=| [-+*/%|&^]=)(?!=)\s*")
SLACK = 5  # times the usual seconds of a test, after which it hangs
LEAST_LIMIT_S = 20

# Warnings that a choice between two expressions can cause.
QUIET = ("array-bounds bool-compare bool-operation dangling-else div-by-zero duplicated-branches float-conversion "
         "implicit-fallthrough int-in-bool-context logical-op maybe-uninitialized misleading-indentation narrowing "
         "overflow parentheses return-type sign-compare stringop-overflow tautological-compare type-limits "
         "unused-but-set-variable unused-value").split()  # fmt: skip

# The switch of a source with mutants; sources may be compiled together, so it may stand twice in one file to compile.
SWITCH = r"""#ifndef SLUICE_MUTANTS
#define SLUICE_MUTANTS
#include <fcntl.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
%(pragmas)s
namespace sluice_mutants {
inline bool Applies(int number) {
  static const int chosen = std::getenv("SLUICE_MUTANT") == nullptr ? 0 : std::atoi(std::getenv("SLUICE_MUTANT"));
  static const char* const path = std::getenv("SLUICE_MUTANTS_REACHED");
  static const int reached = path == nullptr ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  static std::atomic<bool> seen[%(count)d];
  if (reached >= 0 && !seen[number].load(std::memory_order_relaxed) && !seen[number].exchange(true)) {
    char line[16];
    const int size = std::snprintf(line, sizeof(line), "%%d\n", number);
    (void)!write(reached, line, size);
  }
  return number == chosen;
}
}  // namespace sluice_mutants
#endif
#line 1
"""

# A change of text[begin:end] to `new` on line `line` (from 1); text[first:last] is the expression or statement that holds it.
Mutant = collections.namedtuple("Mutant", "line begin end new kind first last")


def code_of(text):
    """Returns the text with strings and comments blanked, so that positions stay."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    return re.sub(r"//.*|/\*[^*]*\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", blank, text)


def changes_of(line, code):
    """Returns (begin, end, new text, kind) of each possible change of a line."""
    found = []
    for old, new in OPERATORS:
        pattern = rf"\b{old}\b" if old.isalpha() else re.escape(old)
        for match in re.finditer(pattern, code):
            found.append((*match.span(), new, f"{old.strip()} to {new.strip()}"))
    for match in NUMBER.finditer(code):
        changed = str(int(match.group()) + 1)
        found.append((*match.span(), changed, f"{match.group()} to {changed}"))
    if condition := CONDITION.match(line):
        found.append((*condition.span(2), f"!({condition[2]})", "condition turned round"))
    indent = len(line) - len(line.lstrip())
    if (CALL.match(code) and not code.lstrip().startswith("return")) or INCREMENT.match(code):
        found.append((indent, len(code.rstrip()), ";", "call left out"))
    return found


def expression_around(code, begin, end):
    """Returns the span of the expression that holds a change and can stand between brackets, or None."""
    depth = 0
    first = begin
    while first > 0:
        char = code[first - 1]
        if depth == 0 and char in "([{,;":
            break
        if depth == 0 and char == "}" and not code[first : code.find("\n", first)].strip():
            break  # the end of a block
        depth += (char in ")]}") - (char in "([{")
        first -= 1
    depth = 0
    last = end
    while last < len(code) and not (depth == 0 and code[last] in ")]},;"):
        depth += (code[last] in "([{") - (code[last] in ")]}")
        last += 1
    first = _after_keywords(code, first, begin)
    return None if first is None else (first, last)


def _after_keywords(code, first, begin):
    """Returns where the expression begins behind labels, conditions without braces, `return` and the left side of `=`."""
    while True:
        first += re.match(r"\s*", code[first:begin]).end()
        rest = code[first:begin]
        if match := LABEL.match(rest):
            first += match.end()
        elif rest.startswith("case "):
            return None
        elif match := re.match(r"(return|co_return|else|throw)\b", rest):
            first += match.end()
        elif match := re.match(r"(if|for|while) (?=\()", rest):
            depth, place = 0, first + match.end()
            while place < begin:
                depth += {"(": 1, ")": -1}.get(code[place], 0)
                place += 1
                if depth == 0:
                    break
            first = place
        else:
            break
    depth = 0
    for place in range(first, begin):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(code[place], 0)
        if depth == 0 and (match := ASSIGNMENT.match(code, place)) and match.end() <= begin:
            return match.end()
    return first


def span_of(code, begin, end, kind):
    """Returns the span of what holds a change; None if code cannot choose between it and the change."""
    if kind == "call left out":
        before = code[:begin].rstrip()[-1:]
        return (begin, end) if before in ";{}:)" and "ASSIGN" not in code[begin:end] else None
    if kind == "condition turned round":
        declares = ";" not in code[begin:end] and ASSIGNMENT.search(code, begin, end)  # if (auto* x = ..)
        return None if declares else (begin, end)
    span = expression_around(code, begin, end)
    return span if span and span[0] <= begin else None


def mutants_of(text):
    """Returns each possible change."""
    found = []
    code = code_of(text)
    at = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not IGNORED.search(line):
            for begin, end, new, kind in changes_of(line, code[at : at + len(line)]):
                if span := span_of(code, at + begin, at + end, kind):
                    found.append(Mutant(number, at + begin, at + end, new, kind, *span))
        at += len(line) + 1
    return found


def changed_line(text, mutant):
    """Returns the line of a change as it was and as it becomes."""
    start = text.rfind("\n", 0, mutant.begin) + 1
    stop = text.find("\n", mutant.end)
    return text[start:stop].strip(), (text[start : mutant.begin] + mutant.new + text[mutant.end : stop]).strip()


def overlap(mutant, others):
    return any(mutant.first < other.last and other.first < mutant.last for other in others)


def choice(text, number, mutant):
    """Returns code that does what text[mutant.first:mutant.last] does, or what the mutant does; as many lines."""
    applies = f"::sluice_mutants::Applies({number})"
    old = text[mutant.first : mutant.last]
    if mutant.kind == "call left out":
        return f"if (!{applies}) {old}"
    if mutant.kind == "condition turned round":
        head, separator, tail = old.rpartition(";")  # if (auto x = ..; condition)
        return f"{head}{separator} {applies} != static_cast<bool>({tail})"
    new = text[mutant.first : mutant.begin] + mutant.new + text[mutant.end : mutant.last]
    new = " ".join(re.sub(r"\s//.*", "", line) for line in new.split("\n"))
    return f"({applies} ? ({new}) : ({old}))"


def switched(text, numbered):
    """Returns the source with each of {number: mutant} beside what it changes; lines keep their numbers."""
    for number, mutant in sorted(numbered.items(), key=lambda item: -item[1].first):
        start = text.rfind("\n", 0, mutant.first) + 1
        # A constant that may be another is none that the compiler knows.
        before = re.sub(r"^(\s*(?:inline )?)constexpr ", r"\1const ", text[start : mutant.first])
        text = text[:start] + before + choice(text, number, mutant) + text[mutant.last :]
    return text


class Tree:
    """The worktree in which mutants are built."""

    def __init__(self, work, jobs):
        self.root = os.path.abspath(work)
        self.build = os.path.join(self.root, "build/mutants")
        self.jobs = jobs
        if not os.path.exists(os.path.join(self.root, ".git")):
            subprocess.run(["git", "worktree", "add", "--detach", self.root], check=True)
        # As the preset `release`, so that ccache has the sources without mutants.
        subprocess.run(["cmake", "-S", self.root, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        self.commands = {}  # of a test that is built: its arguments, folder and environment
        self.tests = self._tests()

    def _tests(self):
        """Returns the names of unit tests by the folder of tests/ whose CMakeLists.txt declares them."""
        listed = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], check=True, stdout=subprocess.PIPE)
        listed = json.loads(listed.stdout)
        graph = listed["backtraceGraph"]
        folders = {}
        for test in listed["tests"]:
            properties = {entry["name"]: entry["value"] for entry in test["properties"]}
            node = graph["nodes"][test["backtrace"]]
            while "parent" in node:
                if graph["files"][node["file"]].endswith("/CMakeLists.txt"):
                    break
                node = graph["nodes"][node["parent"]]
            folder = os.path.relpath(os.path.dirname(graph["files"][node["file"]]), self.root)
            if "unit" in properties.get("LABELS", []):
                if "command" in test:
                    environment = dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []) if "=" in entry)
                    self.commands[test["name"]] = (test["command"], properties["WORKING_DIRECTORY"], environment)
                folders.setdefault(folder, []).append(test["name"])
        return folders

    def tests_below(self, folder):
        return [test for name, tests in self.tests.items() if f"{name}/".startswith(f"{folder}/") for test in tests]

    def tests_of(self, source):
        """Returns the tests of the nearest folder of tests/ that mirrors the source's, and of the folders in it."""
        folder = os.path.dirname(source)
        while folder and not self.tests_below(f"tests/{folder}"):
            folder = os.path.dirname(folder)
        if not folder:
            sys.exit(f"{source}: no folder of tests/ mirrors its module")
        return self.tests_below(f"tests/{folder}")

    def compile(self, tests):
        """Returns whether they compile, and what the compiler said."""
        done = subprocess.run(["cmake", "--build", self.build, "-j", str(self.jobs), "--target", *tests, "--", "-k", "0"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
        self._tests()
        return done.returncode == 0, done.stdout

    def run(self, test, limit, environment):
        """Returns (result, seconds) of a test: passed, failed or hung."""
        command, folder, own = self.commands[test]
        begin = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "GTEST_FAIL_FAST": "1", **own, **environment})  # fmt: skip
        try:
            result = "passed" if process.wait(limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            result = "hung"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it left running, too
            except ProcessLookupError:
                pass
            process.wait()
        return result, time.monotonic() - begin


class Trial:
    """Draws mutants, tries them and keeps the results."""

    def __init__(self, options):
        self.options = options
        self.tree = Tree(options.work, options.jobs)
        self.usual = {}  # seconds of a test without a mutant; None: too long, or it fails there
        self.reached = {}  # numbers of the mutants that a test reaches
        self.texts = {}
        self.results = {}  # by number of the mutant, from 1
        if options.report and os.path.exists(options.report):
            with open(options.report) as file:
                self.results = {result["number"]: result for result in json.load(file)["mutants"]}

    def sources(self):
        named = []
        for path in self.options.paths:
            listed = subprocess.run(["git", "-C", self.tree.root, "ls-files", path], check=True, stdout=subprocess.PIPE, text=True)
            named += [name for name in listed.stdout.split() if name.endswith(".cc")]
        return sorted(set(named))

    def read(self, name):
        if name not in self.texts:
            with open(os.path.join(self.tree.root, name)) as file:
                self.texts[name] = file.read()
        return self.texts[name]

    def write(self, name, text):
        with open(os.path.join(self.tree.root, name), "w") as file:
            file.write(text)

    def survivors(self):
        """Returns [(source, mutant)] of the report named by --again."""
        with open(self.options.again) as file:
            reported = [result for result in json.load(file)["mutants"] if result["result"].startswith("survived")]
        found = []
        for result in reported:
            same = [mutant for mutant in mutants_of(self.read(result["source"])) if mutant.kind == result["kind"]
                    and changed_line(self.read(result["source"]), mutant) == (result["before"], result["after"])]  # fmt: skip
            if not same:
                print(f"no longer there: {result['source']}:{result['line']} {result['before']}")
            elif not overlap(same[0], [mutant for name, mutant in found if name == result["source"]]):
                found.append((result["source"], same[0]))
        return found

    def draw(self):
        """Returns [(source, mutant)]; no two of them overlap, since they are built together."""
        source = random.Random(self.options.seed)
        choices = {name: mutants_of(self.read(name)) for name in self.sources()}
        drawn = []
        taken = collections.defaultdict(list)
        while len(drawn) < self.options.count and any(choices.values()):
            name = source.choice([name for name, found in choices.items() if found])
            mutant = choices[name].pop(source.randrange(len(choices[name])))
            if not overlap(mutant, taken[name]):
                taken[name].append(mutant)
                drawn.append((name, mutant))
        return drawn

    @staticmethod
    def switch(count):
        pragmas = "\n".join(f'#pragma GCC diagnostic ignored "-W{name}"' for name in QUIET)
        return SWITCH % {"count": count + 1, "pragmas": pragmas}

    def build(self, drawn, tests):
        """Builds tests with all mutants; returns the numbers of those that do not compile."""
        numbered = dict(enumerate(drawn, 1))
        broken = set()
        for _ in range(len(drawn) + 1):
            for name in {name for name, _ in drawn}:
                own = {number: mutant for number, (source, mutant) in numbered.items() if source == name and number not in broken}
                self.write(name, self.switch(len(drawn)) + switched(self.read(name), own) if own else self.read(name))
            compiled, said = self.tree.compile(tests)
            if compiled:
                return broken
            found = self.blamed(numbered, said) - broken
            if not found:
                sys.exit(f"the tree does not compile:\n{said[-4000:]}")
            broken |= found
        return broken

    def blamed(self, numbered, said):
        """Returns the numbers of mutants on the lines where the compiler found errors, else all of the sources named."""
        errors = {(path, int(line)) for path, line in re.findall(r"^([^\s:]+\.cc):(\d+):\d+: error", said, re.MULTILINE)}
        exact, near = set(), set()
        for number, (name, mutant) in numbered.items():
            text = self.read(name)
            begin, end = (text.count("\n", 0, place) + 1 for place in (mutant.first, mutant.last))
            lines = [line for path, line in errors if path.endswith("/" + name) or path == name]
            if any(begin <= line <= end for line in lines):
                exact.add(number)
            elif lines:
                near.add(number)
        return exact or near

    def learn(self, tests):
        """Measures tests without a mutant, and what they reach."""
        for test in tests:
            with tempfile.NamedTemporaryFile("r") as file:
                result, seconds = self.tree.run(test, self.options.test_seconds, {"SLUICE_MUTANTS_REACHED": file.name})
                self.reached[test] = {int(number) for number in file.read().split()}
            self.usual[test] = seconds if result == "passed" else None
            print(f"{test}: {result} in {seconds:.1f} s, reaches {len(self.reached[test])}", flush=True)

    def try_one(self, number, name, mutant):
        before, after = changed_line(self.read(name), mutant)
        result = {"number": number, "source": name, "line": mutant.line, "kind": mutant.kind, "before": before, "after": after}
        tests = [test for test in self.tests_for(name) if self.usual[test] is not None and number in self.reached[test]]
        for test in sorted(tests, key=self.usual.get):
            limit = max(LEAST_LIMIT_S, SLACK * self.usual[test])
            outcome, _ = self.tree.run(test, limit, {"SLUICE_MUTANT": str(number)})
            if outcome == "hung":  # a busy machine, or it hangs
                outcome, _ = self.tree.run(test, limit, {"SLUICE_MUTANT": str(number)})
            if outcome != "passed":
                return {**result, "result": "caught", "by": test}
        return {**result, "result": "survived" if tests else "survived, reached by no test"}

    def tests_for(self, name):
        if self.options.tests:
            return [test for entry in self.options.tests.split(",") for test in self.tree.tests_below(entry) or [entry]]
        return self.tree.tests_of(name)

    def save(self):
        if self.options.report:
            with open(self.options.report + ".part", "w") as file:
                json.dump({"seed": self.options.seed, "mutants": list(self.results.values())}, file, indent=1)
            os.rename(self.options.report + ".part", self.options.report)

    def run(self):
        drawn = self.survivors() if self.options.again else self.draw()
        if len(self.results) < len(drawn):
            try:
                self.try_all(drawn)
            finally:
                for name in self.texts:
                    self.write(name, self.texts[name])
        self.summarize()

    def try_all(self, drawn):
        tests = sorted({test for name, _ in drawn for test in self.tests_for(name)})
        broken = self.build(drawn, tests)
        self.learn(tests)
        for number, (name, mutant) in enumerate(drawn, 1):
            if number in self.results:
                continue
            if number in broken:
                self.results[number] = {"number": number, "source": name, "line": mutant.line, "kind": mutant.kind,
                                        "result": "does not compile"}  # fmt: skip
            else:
                self.results[number] = self.try_one(number, name, mutant)
            self.save()
            result = self.results[number]
            print(f"{number}/{len(drawn)} {name}:{mutant.line} {mutant.kind}: {result['result']} {result.get('by', '')}", flush=True)

    def summarize(self):
        skipped = sorted(test for test, seconds in self.usual.items() if seconds is None)
        if skipped:
            print(f"not run, since they take over {self.options.test_seconds} s or fail unchanged: {' '.join(skipped)}")
        tried = [result for result in self.results.values() if result["result"] != "does not compile"]
        for result in tried:
            if result["result"].startswith("survived"):
                print(f"{result['result']} {result['source']}:{result['line']}: {result['kind']}\n  {result['before']}\n"
                      f"  {result['after']}")  # fmt: skip
        caught = sum(result["result"] == "caught" for result in tried)
        print(f"{caught} of {len(tried)} caught ({caught / max(1, len(tried)):.1%}); "
              f"{len(self.results) - len(tried)} did not compile")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--work", required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tests", help="tests to run, or their folders, with commas")
    parser.add_argument("--test-seconds", type=float, default=30)
    parser.add_argument("--report")
    parser.add_argument("--again", metavar="REPORT", help="tries the survivors of this report")
    parser.add_argument("--list", action="store_true", help="prints the drawn mutants and tries none")
    options = parser.parse_args()
    trial = Trial(options)
    if options.list:
        for name, mutant in trial.draw():
            print(f"{name}:{mutant.line} {mutant.kind}: {changed_line(trial.read(name), mutant)[1]}")
        return
    trial.run()


if __name__ == "__main__":
    main()
