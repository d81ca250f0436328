"""What documents promise: links that lead somewhere, names of files that exist, a length that is read."""
import fnmatch
import os
import re

from modules import MAX_DOCUMENT_LINES

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
# Names of the tree's own kinds of files. Others, such as manifest.json, are also names of what programs write.
OWN_ENDINGS = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".cmake", ".proto")
# Other files that may name documents.
SOURCES = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake", ".proto", ".toml", ".service", ".txt")
COMMENTED_BY_SLASHES = (".h", ".cc", ".cu", ".cuh", ".proto")
NAMED = re.compile(r"(?<![\w/.*<{$-])([\w-]{2,}(?:/[\w.-]+)*\.(?:h|cc|cu|cuh|py))(?![\w*}])")
MENTION = re.compile(r"(?<![\w/])(?:\.\./)*((?:lab/)?docs/[\w/.-]*\w)")
COMMAND = re.compile(r"(?:^|; |time )sluice ([a-z|]+)\b")
POLICY = re.compile(r'--policy"?,? "?([a-z_]+=[\w.=,]*\w)')
DOCUMENT_FOLDERS = ("docs/", "lab/docs/")
REFERENCE = "docs/reference/"
# NAME in NAME_command.cc and FAMILY in hf_FAMILY.cc and tiny/FAMILY stand for any word.
PLACEHOLDER = re.compile(r"(?<=_)[A-Z]{2,}|[A-Z]{2,}(?=_)|(?<=/)[A-Z]{2,}(?=/|$)")


def documents(tree):
    return [path for path in tree.files if path.endswith(".md")]


def prose(tree, path):
    """(line number, text) of what is not in a fenced block."""
    fenced = False
    for number, line in enumerate(tree.lines(path), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(tree, path):
    """What a link may name behind #: the headings as they are made addresses of."""
    headings = [line.lstrip("#").strip() for _, line in prose(tree, path) if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(tree):
    """Every relative link points at a file or folder that exists, and at a heading that it has."""
    wrong = []
    for path in documents(tree):
        for number, line in prose(tree, path):
            for target in LINK.findall(CODE.sub("", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, heading = target.partition("#")
                place = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                if not tree.exists(place) or (heading and heading not in anchors(tree, place)):
                    wrong.append(f"{path}:{number}: the link {target} leads nowhere")
    return wrong


def braces(name):
    """a.{h,cc} -> a.h, a.cc"""
    match = re.search(r"\{([^{}]*)\}", name)
    if not match:
        return [name]
    return [
        whole
        for choice in match.group(1).split(",")
        for whole in braces(name[: match.start()] + choice + name[match.end() :])
    ]


def check_names(tree):
    """Every name in backticks that looks like a file or folder of the tree is one: a path that begins with a folder of
    the root or of the document's own folder (what ends a file's name may be left out), or a name with the ending of a
    source, wherever it lies. * is any text."""
    tops = tree.top_folders()
    base_names = {os.path.basename(path) for path in tree.files}

    stems = {os.path.splitext(path)[0] for path in tree.files}

    def found(name, where):
        name = name.rstrip("/")
        if name in where:
            return True
        pattern = PLACEHOLDER.sub("*", name)
        return "*" in pattern and any(fnmatch.fnmatchcase(place, pattern) for place in where)

    wrong = []
    everything = tree.known | tree.folders | stems
    for path in documents(tree):
        here = os.path.dirname(path)
        for number, line in prose(tree, path):
            for span in CODE.findall(line):
                if not re.fullmatch(r"[\w.*{},/+-]+", span):
                    continue
                for name in braces(span):
                    if "/" in name.rstrip("/"):
                        first = name.split("/")[0]
                        looks = first in tops or first == ".." or os.path.join(here, first) in tree.folders
                        there = found(name, everything) or found(os.path.normpath(os.path.join(here, name)), everything)
                    else:
                        looks = name.endswith(OWN_ENDINGS) and not name.startswith((".", "_", "-"))
                        there = found(name, base_names)
                    if looks and not there:
                        wrong.append(f"{path}:{number}: there is no {name}")
    return wrong


def comments(tree, path):
    """(line number, text) of the comments of a source or script."""
    mark = "//" if path.endswith(COMMENTED_BY_SLASHES) else "#"
    for number, line in enumerate(tree.lines(path), 1):
        before, found, text = line.partition(mark)
        if found and before.count('"') % 2 == 0 and not (mark == "#" and line.startswith("#!")):
            yield number, text


def check_comments(tree):
    """Every file of the tree that a comment names exists: a path from the root or from the source's own folder, or a name
    with the ending of a source, wherever it lies."""
    base_names = {os.path.basename(path) for path in tree.files}
    tops = tree.top_folders()
    wrong = []
    for path in tree.files:
        if not path.endswith(SOURCES) and os.path.basename(path) != "CMakeLists.txt":
            continue
        if path.startswith("tests/tree/"):
            continue
        here = os.path.dirname(path)
        for number, text in comments(tree, path):
            for name in NAMED.findall(text):
                if "/" not in name:
                    there = name in base_names
                else:
                    there = name in tree.known or os.path.normpath(os.path.join(here, name)) in tree.known
                    if not there and name.split("/")[0] not in tops:
                        continue  # another project's
                if not there:
                    wrong.append(f"{path}:{number}: there is no {name}")
    return wrong


def check_mentions(tree):
    """Every document that a comment names exists: a path below docs/ or lab/docs/ in any source, script, or configuration."""
    wrong = []
    for path in tree.files:
        if not path.endswith(SOURCES) and os.path.basename(path) != "CMakeLists.txt":
            continue
        if path.startswith("tests/tree/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            for name in MENTION.findall(line):
                if not tree.exists(name):
                    wrong.append(f"{path}:{number}: there is no {name}")
    return wrong


def check_commands(tree):
    """Every command of `sluice` that a document shows is one: cli/commands has its file."""
    ending = "_command.cc"
    known = {os.path.basename(path)[: -len(ending)] for path in tree.files if path.endswith(ending)}
    wrong = []
    for path in documents(tree):
        fenced = False
        for number, line in enumerate(tree.lines(path), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            for code in [line.strip()] if fenced else CODE.findall(line):
                for names in COMMAND.findall(code):
                    strange = [name for name in names.split("|") if name not in known]
                    wrong += [f"{path}:{number}: sluice has no command {name}" for name in strange]
    return wrong


def check_policies(tree):
    """Every --policy KEY=VALUE,... of a document, and of the rows of the laboratory, has a key of the table of keys."""
    table = [path for path in tree.files if os.path.basename(path) == "policy_keys.cc"]
    known = {word for path in table for line in tree.lines(path) for word in re.findall(r'"([a-z_]+)"', line)}
    wrong = []
    for path in tree.files:
        if path.endswith(".md") or (path.startswith(DOCUMENT_FOLDERS) and path.endswith(".toml")):
            for number, line in enumerate(tree.lines(path), 1):
                for values in POLICY.findall(line):
                    strange = [value for value in values.split(",") if value.split("=")[0] not in known]
                    wrong += [f"{path}:{number}: no policy is called {value.split('=')[0]}" for value in strange]
    return wrong


def check_tests(tree):
    """Every test or program of bench/ that the checklist names exists: Suite.Name, a program's name, either cut by * or
    ... at its end."""
    listed = "lab/docs/checklist.md"
    if listed not in tree.known:
        return []
    words = {os.path.splitext(os.path.basename(path))[0] for path in tree.files}
    for path in tree.files:
        if path.startswith("tests/") and (path.endswith(SOURCES) or os.path.basename(path) == "CMakeLists.txt"):
            words.update(word for line in tree.lines(path) for word in re.findall(r"\w+", line))
    wrong = []
    for number, line in prose(tree, listed):
        for span in CODE.findall(line):
            if not re.fullmatch(r"[\w.*]+", span) or not re.search(r"[A-Z_]", span):
                continue
            for name in re.findall(r"\w+\.{3}|\w+\*?", span):
                stem = name.rstrip("*.")
                if stem not in words and not (stem != name and any(word.startswith(stem) for word in words)):
                    wrong.append(f"{listed}:{number}: no test is called {name} ({span})")
    return wrong


def check_lengths(tree):
    """Documents that are read from top to bottom are short; reference pages are searched, not read."""
    return [
        f"{path} has {len(tree.lines(path))} lines, at most {MAX_DOCUMENT_LINES} are read"
        for path in documents(tree)
        if path.startswith(DOCUMENT_FOLDERS) and not path.startswith(REFERENCE) and len(tree.lines(path)) > MAX_DOCUMENT_LINES
    ]
