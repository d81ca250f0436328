#!/usr/bin/python3
"""Tries the tests: changes one operator, constant or call of a source at a time, and lists the changes that no test notices.

usage: mutants.py --work DIR [--count N] [--seed N] [--jobs N] [--test-seconds S] [--report FILE.json] [--list]
                  SOURCE_OR_FOLDER...

DIR becomes a worktree of the commit that is checked out, with a build of its own; the tree that you work in is not touched.
`--count` mutants are drawn by `--seed` from all that the named sources allow, each source with the same chance. For each, the
tests of the source's module (the tests that the CMakeLists.txt of tests/MODULE declares) are built and run, short ones first,
until one fails. Tests that take longer than `--test-seconds` on the unchanged tree do not run; they are named.

A mutant is caught by a test that fails, by a test that does not end in ten times its usual time, or it does not compile and
counts for nothing. The report keeps each result as it is found: the same command again goes on behind the last one. The last
line says how many were caught. A survivor is a missing test, or a change that means the same (a human decides).
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time

OPERATORS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
             (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" += ", " -= "),
             (" -= ", " += "), ("true", "false"), ("false", "true")]  # fmt: skip
CALL = re.compile(r"^\s*[\w:.\->]+(\[[^\]]*\])?(\.|->)?\w*\([^{}]*\);$")
NUMBER = re.compile(r"(?<![\w.'\"])(\d+)(?![\w.'])")
CONDITION = re.compile(r"^(\s*(?:\} else )?if \()(.*)(\) \{)$")
# Lines whose change no test should notice: what a log or an error says, declarations, checks of the compiler.
IGNORED = re.compile(r"^\s*(#|//|using |namespace |static_assert|constexpr char|return absl::\w+Error)|log_?->|Annotate\(|StrCat\(|"
                     r"\.reserve\(|->reserve\(|Log\(")  # fmt: skip
SLACK = 10  # times the usual seconds of a test, after which it hangs
LEAST_LIMIT_S = 20


def code_of(line):
    """Returns the line with strings and comments blanked, so that positions stay."""
    blank = lambda match: " " * len(match.group())  # noqa: E731
    line = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', blank, line)
    return re.sub(r"//.*", blank, line)


def mutants_of(text):
    """Returns (line number from 1, new line, kind) of each possible change."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if IGNORED.search(line):
            continue
        code = code_of(line)
        for old, new in OPERATORS:
            pattern = rf"\b{old}\b" if old.isalpha() else re.escape(old)
            for match in re.finditer(pattern, code):
                found.append((number, line[: match.start()] + new + line[match.end() :], f"{old.strip()} to {new.strip()}"))
        for match in NUMBER.finditer(code):
            changed = str(int(match.group()) + 1)
            found.append((number, line[: match.start()] + changed + line[match.end() :], f"{match.group()} to {changed}"))
        if condition := CONDITION.match(line):
            found.append((number, f"{condition[1]}!({condition[2]}){condition[3]}", "condition turned round"))
        if CALL.match(code) and not code.lstrip().startswith("return"):
            found.append((number, re.match(r"\s*", line).group() + ";", "call left out"))
    return found


class Tree:
    """The worktree in which mutants are built."""

    def __init__(self, work, jobs):
        self.root = os.path.abspath(work)
        self.build = os.path.join(self.root, "build/mutants")
        self.jobs = jobs
        if not os.path.exists(os.path.join(self.root, ".git")):
            subprocess.run(["git", "worktree", "add", "--detach", self.root], check=True)
        # One source at a time is compiled anew, so sources are not compiled together; -O1 for the time of a compile.
        subprocess.run(["cmake", "-S", self.root, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DSLUICE_UNITY=OFF"], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
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
                folders.setdefault(folder, []).append(test["name"])
        return folders

    def tests_of(self, source):
        """Returns the tests of the nearest folder of tests/ that mirrors the source's."""
        folder = os.path.dirname(source)
        while folder and f"tests/{folder}" not in self.tests:
            folder = os.path.dirname(folder)
        if not folder:
            sys.exit(f"{source}: no folder of tests/ mirrors its module")
        return self.tests[f"tests/{folder}"]

    def compile(self, tests):
        return subprocess.run(["cmake", "--build", self.build, "-j", str(self.jobs), "--target", *tests],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).returncode == 0  # fmt: skip

    def run(self, test, limit):
        """Returns (passed, seconds)."""
        begin = time.monotonic()
        done = subprocess.run(["ctest", "--test-dir", self.build, "-R", f"^{test}$", "--timeout", str(int(limit))],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        return done.returncode == 0, time.monotonic() - begin


class Trial:
    """Draws mutants, tries them and keeps the results."""

    def __init__(self, options):
        self.options = options
        self.tree = Tree(options.work, options.jobs)
        self.usual = {}  # seconds of a test on the unchanged tree; None: too long, or it fails there
        self.results = []
        if options.report and os.path.exists(options.report):
            with open(options.report) as file:
                self.results = json.load(file)["mutants"]

    def sources(self):
        named = []
        for path in self.options.paths:
            listed = subprocess.run(["git", "-C", self.tree.root, "ls-files", path], check=True, stdout=subprocess.PIPE, text=True)
            named += [name for name in listed.stdout.split() if name.endswith(".cc")]
        return sorted(set(named))

    def draw(self):
        source = random.Random(self.options.seed)
        choices = {}
        for name in self.sources():
            with open(os.path.join(self.tree.root, name)) as file:
                choices[name] = mutants_of(file.read())
        choices = {name: found for name, found in choices.items() if found}
        drawn = []
        while len(drawn) < self.options.count and any(choices.values()):
            name = source.choice([name for name, found in choices.items() if found])
            drawn.append((name, *choices[name].pop(source.randrange(len(choices[name])))))
        return drawn

    def learn(self, tests):
        """Builds tests on the unchanged tree and measures them."""
        unknown = [test for test in tests if test not in self.usual]
        if unknown and not self.tree.compile(unknown):
            sys.exit(f"the unchanged tree does not compile: {' '.join(unknown)}")
        for test in unknown:
            passed, seconds = self.tree.run(test, self.options.test_seconds)
            self.usual[test] = seconds if passed else None

    def try_one(self, name, number, line, kind):
        tests = self.tree.tests_of(name)
        self.learn(tests)
        tests = sorted((test for test in tests if self.usual[test] is not None), key=self.usual.get)
        path = os.path.join(self.tree.root, name)
        with open(path) as file:
            original = file.read()
        lines = original.split("\n")
        result = {"source": name, "line": number, "kind": kind, "before": lines[number - 1].strip(), "after": line.strip()}
        lines[number - 1] = line
        try:
            with open(path, "w") as file:
                file.write("\n".join(lines))
            if not self.tree.compile(tests):
                return {**result, "result": "does not compile"}
            for test in tests:
                passed, _ = self.tree.run(test, max(LEAST_LIMIT_S, SLACK * self.usual[test]))
                if not passed:
                    return {**result, "result": "caught", "by": test}
            return {**result, "result": "survived"}
        finally:
            with open(path, "w") as file:
                file.write(original)

    def save(self):
        if self.options.report:
            with open(self.options.report + ".part", "w") as file:
                json.dump({"seed": self.options.seed, "mutants": self.results}, file, indent=1)
            os.rename(self.options.report + ".part", self.options.report)

    def run(self):
        drawn = self.draw()
        for index, mutant in enumerate(drawn):
            if index >= len(self.results):
                self.results.append(self.try_one(*mutant))
                self.save()
            result = self.results[index]
            print(f"{index + 1}/{len(drawn)} {result['source']}:{result['line']} {result['kind']}: {result['result']} "
                  f"{result.get('by', '')}", flush=True)  # fmt: skip
        skipped = sorted(test for test, seconds in self.usual.items() if seconds is None)
        if skipped:
            print(f"not run, since they take over {self.options.test_seconds} s or fail unchanged: {' '.join(skipped)}")
        tried = [result for result in self.results if result["result"] != "does not compile"]
        for result in tried:
            if result["result"] == "survived":
                print(f"survivor {result['source']}:{result['line']}: {result['kind']}\n  {result['before']}\n  {result['after']}")
        caught = sum(result["result"] == "caught" for result in tried)
        print(f"{caught} of {len(tried)} caught ({caught / max(1, len(tried)):.1%}); "
              f"{len(self.results) - len(tried)} did not compile")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--work", required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--test-seconds", type=float, default=30)
    parser.add_argument("--report")
    parser.add_argument("--list", action="store_true", help="prints the drawn mutants and tries none")
    options = parser.parse_args()
    trial = Trial(options)
    if options.list:
        for name, number, line, kind in trial.draw():
            print(f"{name}:{number} {kind}: {line.strip()}")
        return
    trial.run()


if __name__ == "__main__":
    main()
