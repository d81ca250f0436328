"""What the tree promises about its modules, as checkers: each takes a Tree and returns the list of what is wrong."""
import fnmatch
import os
import re

# A longer document is not read.
MAX_DOCUMENT_LINES = 250

MODULES_FILE = "cmake/rooms.txt"
SOURCE_ENDINGS = (".cc", ".h", ".cu", ".cuh")
HEADER_ENDINGS = (".h", ".cuh")
# Programs around the product: they may look into every module, and no module may look into them.
AROUND = ("tests", "bench")
# Each has its own modules in the README's tree.
DAEMONS = ("weightd", "inferd")
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


class Tree:
    """The files of a source tree, without hidden folders and what .gitignore names; paths are relative to its root."""

    def __init__(self, root):
        self.root = root
        ignored = ["build"]
        if os.path.exists(os.path.join(root, ".gitignore")):
            with open(os.path.join(root, ".gitignore")) as file:
                ignored += [line.strip().strip("/") for line in file if line.strip()]
        self.files = []
        self.read = {}  # lines of the files that a checker has looked into
        for folder, folders, names in os.walk(root):
            kept = [name for name in folders if not self._left_out(folder, name, ignored)]
            folders[:] = sorted(kept)
            for name in sorted(names):
                if not self._left_out(folder, name, ignored):
                    self.files.append(os.path.relpath(os.path.join(folder, name), root))
        self.known = set(self.files)
        self.folders = {os.path.dirname(path) for path in self.files}
        for folder in list(self.folders):
            while folder:
                folder = os.path.dirname(folder)
                self.folders.add(folder)
        self.folders.discard("")

    @staticmethod
    def _left_out(folder, name, ignored):
        if name.startswith(".") or os.path.islink(os.path.join(folder, name)):
            return True
        return any(fnmatch.fnmatch(name, pattern) for pattern in ignored)

    def lines(self, path):
        if path not in self.read:
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                self.read[path] = file.read().splitlines()
        return self.read[path]

    def exists(self, path):
        return path in self.known or path.rstrip("/") in self.folders

    def sources(self):
        return [path for path in self.files if path.endswith(SOURCE_ENDINGS)]

    def top_folders(self):
        return {folder for folder in self.folders if "/" not in folder}


def read_modules(tree):
    """The modules of cmake/rooms.txt: {module: [modules it may include]}, and what is wrong with the list itself."""
    modules, wrong = {}, []
    for number, line in enumerate(tree.lines(MODULES_FILE), 1):
        if line.startswith("#") or not line.strip():
            continue
        match = re.fullmatch(r"([a-z_/]+):((?: [a-z_/]+)*)", line)
        if not match:
            wrong.append(f'{MODULES_FILE}:{number}: cannot read "{line}"')
        elif match.group(1) in modules:
            wrong.append(f"{MODULES_FILE}:{number}: {match.group(1)} is listed twice")
        else:
            modules[match.group(1)] = match.group(2).split()
    for module, uses in modules.items():
        for other in uses:
            if other not in modules:
                wrong.append(f"{MODULES_FILE}: {module} may include {other}, which is not listed")
    return modules, wrong


def check_listed(tree, modules):
    """Every folder with C++ sources is listed, and every listed module is such a folder."""
    with_sources = {os.path.dirname(path) for path in tree.sources()}
    with_sources = {folder for folder in with_sources if folder.split("/")[0] not in AROUND}
    wrong = [f"{MODULES_FILE} does not list {folder}, which holds sources" for folder in sorted(with_sources - set(modules))]
    wrong += [f"{MODULES_FILE} lists {module}, which holds no source" for module in sorted(set(modules) - with_sources)]
    return wrong


def includes(tree):
    """Every include of a project's header: (including file, line, header). A header of the project begins with the name
    of a top-level folder that holds sources; generated and other libraries' headers do not."""
    tops = {path.split("/")[0] for path in tree.sources()}
    for path in tree.sources():
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if match and match.group(1).split("/")[0] in tops:
                yield path, number, match.group(1)


def check_includes(tree, modules):
    """Every include goes along an allowed edge, to a header that exists."""
    wrong = []
    for path, number, header in includes(tree):
        module, other = os.path.dirname(path), os.path.dirname(header)
        if header not in tree.known:
            wrong.append(f"{path}:{number}: there is no {header}")
        elif module.split("/")[0] not in AROUND and module != other and other not in modules.get(module, []):
            wrong.append(f"{path}:{number}: {module} -> {other} is no edge of {MODULES_FILE}")
    return wrong


def check_edges_used(tree, modules):
    """Every allowed edge is used: by an include, or to link a module that offers no header (*-inl.h is offered only where
    another module includes it)."""
    used = {(os.path.dirname(path), os.path.dirname(header)) for path, _, header in includes(tree)}
    offering = {os.path.dirname(path) for path in tree.files if path.endswith(HEADER_ENDINGS) and "-inl." not in path}
    offering |= {other for module, other in used if module != other}
    return [
        f"{MODULES_FILE}: {module} -> {other} is allowed and nobody uses it"
        for module, uses in modules.items()
        for other in uses
        if other in offering and (module, other) not in used
    ]


def check_no_cycle(modules):
    """No module stands above itself; a cycle is told as the way around it."""
    done, way = set(), []

    def visit(module):
        if module in way:
            return [" -> ".join(way[way.index(module) :] + [module])]
        if module in done:
            return []
        way.append(module)
        found = [cycle for other in modules.get(module, []) for cycle in visit(other)]
        way.pop()
        done.add(module)
        return found

    return [f"{MODULES_FILE}: a cycle: {cycle}" for module in modules for cycle in visit(module)]


NAMESPACE = re.compile(r"(?:inline )?namespace ([\w:]*) ?\{$")
CLASS = re.compile(r"(?:class|struct|enum class|enum|union) (?:alignas\(\w+\) )?(\w+)(?: final)?(?: :.*)?(?: ?\{.*)?$")


def classes(lines):
    """(namespace, class) of each class that a header defines outside unnamed namespaces and other classes."""
    spaces = []
    for line in lines:
        match = NAMESPACE.match(line)
        if match:
            spaces.append(match.group(1))
        elif re.match(r"\}  // (inline )?namespace", line) and spaces:
            spaces.pop()
        elif "" not in spaces:
            match = CLASS.match(line)
            if match and not line.rstrip().endswith(";") or match and "{" in line:
                yield "::".join(spaces), match.group(1)


def check_classes(tree):
    """No class is defined in two headers: programs that link both would break the one-definition rule silently."""
    places = {}
    for path in tree.files:
        if path.endswith(HEADER_ENDINGS) and "-inl." not in path:
            for name in sorted(set(classes(tree.lines(path)))):
                places.setdefault(name, []).append(path)
    return [
        f"{space}::{name} is defined in {' and '.join(paths)}"
        for (space, name), paths in sorted(places.items())
        if len(paths) > 1
    ]


def check_guards(tree):
    """Every header is read once, by a guard that does not repeat the header's path and so moves with it. *-inl.h are
    read once for each instruction set and guard themselves."""
    return [
        f"{path} has {tree.lines(path).count('#pragma once')} lines of #pragma once, not one"
        for path in tree.files
        if path.endswith(HEADER_ENDINGS) and "-inl." not in path and tree.lines(path).count("#pragma once") != 1
    ]


def check_readmes(tree, modules):
    """Every module and every top-level folder says what it is for."""
    places = sorted(set(modules) | tree.top_folders())
    return [f"{place} has no README.md" for place in places if f"{place}/README.md" not in tree.known]


def readme_tree(lines):
    """The first block of the section "Where things are": {folder: line}. A line is a name that ends with /, further such
    names, which lie in the first, and words. Lines that begin with two spaces lie in the folder above them."""
    named, above, inside, section = {}, "", False, False
    for number, line in enumerate(lines, 1):
        if line.startswith("## "):
            section = line == "## Where things are"
        elif section and line.startswith("```"):
            if inside:
                break
            inside = True
        elif inside:
            names = []
            for word in line.split():
                if not re.fullmatch(r"[a-z_]+/", word):
                    break
                names.append(word.rstrip("/"))
            if not names:
                continue
            first = names[0]
            if line.startswith("  "):
                first = f"{above}/{first}"
            else:
                above = first
            for name in [first] + [f"{first}/{name}" for name in names[1:]]:
                named[name] = number
    return named


def check_readme_tree(tree, modules):
    """The README's tree names exactly the top-level folders and the folders within each daemon."""
    named = readme_tree(tree.lines("README.md"))
    there = tree.top_folders()
    for module in modules:
        while module.split("/")[0] in DAEMONS and module:
            there.add(module)
            module = os.path.dirname(module)
    expected = {place for place in named if "/" in place and place.split("/")[0] not in DAEMONS and tree.exists(place)}
    wrong = [f'README.md, "Where things are": {place} is missing' for place in sorted(there - set(named))]
    wrong += [f"README.md:{named[place]}: there is no {place}" for place in sorted(set(named) - there - expected)]
    return wrong
