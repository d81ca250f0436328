"""Checkers of words: each takes a Tree and returns the list of violations."""
import os
import re

WORDS_FILE = "tests/tree/words.txt"
ENDINGS = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".cmake", ".proto", ".toml", ".service")
# The files that list replaced terms on purpose: the list itself, its tests, and the history.
LISTING = (WORDS_FILE, "tests/tree/checkers_test.py", "CHANGELOG.md", "common/base/renamed_names.h")
MAX_TEST_NAME = 45
# The files that show the wall clock to people. Any other deadline or duration is SteadyNow()'s.
WALL_CLOCK = ("cli/router/model_router.cc", "cli/supervisor.cc", "common/base/clock.cc", "common/base/clock.h",
              "inferd/daemon/daemon.cc", "inferd/grpc/service_request.cc", "inferd/http/chat_request.cc",
              "inferd/http/openai_endpoint.cc")  # fmt: skip
COMMENT_STARTS = re.compile(r"(Of|What|Whatever|Whether|Who|Whom|Whose|Whoever|Which)\b")
TEST_NAME = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)")
PYTHON_TEST = re.compile(r"\bdef (test_\w+)\(")


def text_files(tree):
    for path in tree.files:
        if "data" in path.split("/") or path in LISTING:
            continue
        if path.endswith(ENDINGS) or os.path.basename(path) == "CMakeLists.txt":
            yield path


def read_words(tree):
    """The replaced terms: [(pattern, term to use)]. A line of the list is a regular expression, " -> ", a term."""
    rules = []
    for line in tree.lines(WORDS_FILE):
        if line.strip() and not line.startswith("#"):
            pattern, term = line.split(" -> ")
            rules.append((re.compile(pattern.strip()), term.strip()))
    return rules


def check_words(tree):
    """No file uses a term that the list replaces."""
    rules = read_words(tree)
    anything = re.compile("|".join(f"(?:{rule.pattern})" for rule, _ in rules))
    wrong = []
    for path in text_files(tree):
        for number, line in enumerate(tree.lines(path), 1):
            if anything.search(line):
                for rule, term in rules:
                    match = rule.search(line)
                    if match:
                        wrong.append(f'{path}:{number}: "{match.group()}": say {term} instead')
    return wrong


def comments(lines, mark):
    """(line number, text) of each block of whole-line comments."""
    block, start = [], 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(mark) and not text.startswith("#!"):
            if not block:
                start = number
            block.append(text.lstrip(mark).strip())
        elif block:
            yield start, " ".join(block)
            block = []
    if block:
        yield start, " ".join(block)


def check_comment_starts(tree):
    """Every sentence of a comment starts with a noun or a verb, not with a relative pronoun."""
    wrong = []
    for path in tree.files:
        mark = "//" if path.endswith((".h", ".cc", ".cu", ".cuh", ".proto")) else "#" if path.endswith((".py", ".sh")) else ""
        if not mark or "data" in path.split("/"):
            continue
        for number, text in comments(tree.lines(path), mark):
            for sentence in re.split(r"(?<=[.;:])\s+(?=[A-Z])", text):
                if COMMENT_STARTS.match(sentence):
                    wrong.append(f'{path}:{number}: a comment starts with "{sentence[:40]}"')
    return wrong


def check_test_names(tree):
    """Every test's name has at most MAX_TEST_NAME characters."""
    wrong = []
    for path in tree.files:
        if not path.endswith((".cc", ".h", ".py")):
            continue
        text = "\n".join(tree.lines(path))
        names = [match.group(2) for match in TEST_NAME.finditer(text)] if not path.endswith(".py") else []
        names += PYTHON_TEST.findall(text) if path.endswith(".py") else []
        wrong += [f"{path}: {name} has {len(name)} characters" for name in names if len(name) > MAX_TEST_NAME]
    return wrong


def check_clocks(tree):
    """No deadline or duration is counted by the wall clock, which may be set at any time."""
    return [
        f"{path}:{number}: absl::Now() may jump: use SteadyNow() of common/base/clock.h"
        for path in tree.files if path.endswith((".cc", ".h")) and path not in WALL_CLOCK
        for number, line in enumerate(tree.lines(path), 1) if "absl::Now" in line
    ]  # fmt: skip
