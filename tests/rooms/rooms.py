"""What the tree promises about its rooms, as checkers: each takes a Tree and returns the list of what is wrong."""
import fnmatch
import os
import re

# A folder that holds more asks to be divided. README.md, CMakeLists.txt and what lies in data folders do not count.
MOST_FILES = 25
# A document that is longer is not read.
MOST_DOCUMENT_LINES = 250

ROOMS_FILE = "cmake/rooms.txt"
SOURCE_ENDINGS = (".cc", ".h", ".cu", ".cuh")
HEADER_ENDINGS = (".h", ".cuh")
# Programs around the product: they may look into every room, and no room may look into them.
AROUND = ("tests", "bench")
# Each has its own rooms in the README's tree.
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


def read_rooms(tree):
    """The rooms of cmake/rooms.txt: {room: [rooms it may include]}, and what is wrong with the list itself."""
    rooms, wrong = {}, []
    for number, line in enumerate(tree.lines(ROOMS_FILE), 1):
        if line.startswith("#") or not line.strip():
            continue
        match = re.fullmatch(r"([a-z_/]+):((?: [a-z_/]+)*)", line)
        if not match:
            wrong.append(f'{ROOMS_FILE}:{number}: cannot read "{line}"')
        elif match.group(1) in rooms:
            wrong.append(f"{ROOMS_FILE}:{number}: {match.group(1)} is listed twice")
        else:
            rooms[match.group(1)] = match.group(2).split()
    for room, uses in rooms.items():
        for other in uses:
            if other not in rooms:
                wrong.append(f"{ROOMS_FILE}: {room} may include {other}, which is not listed")
    return rooms, wrong


def check_listed(tree, rooms):
    """Every folder with C++ sources is listed, and every listed room is such a folder."""
    with_sources = {os.path.dirname(path) for path in tree.sources()}
    with_sources = {folder for folder in with_sources if folder.split("/")[0] not in AROUND}
    wrong = [f"{ROOMS_FILE} does not list {folder}, which holds sources" for folder in sorted(with_sources - set(rooms))]
    wrong += [f"{ROOMS_FILE} lists {room}, which holds no source" for room in sorted(set(rooms) - with_sources)]
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


def check_includes(tree, rooms):
    """Every include goes along an allowed edge, to a header that exists."""
    wrong = []
    for path, number, header in includes(tree):
        room, other = os.path.dirname(path), os.path.dirname(header)
        if header not in tree.known:
            wrong.append(f"{path}:{number}: there is no {header}")
        elif room.split("/")[0] not in AROUND and room != other and other not in rooms.get(room, []):
            wrong.append(f"{path}:{number}: {room} -> {other} is no edge of {ROOMS_FILE}")
    return wrong


def check_edges_used(tree, rooms):
    """Every allowed edge is used: by an include, or to link a room that offers no header (*-inl.h is offered only where
    another room includes it)."""
    used = {(os.path.dirname(path), os.path.dirname(header)) for path, _, header in includes(tree)}
    offering = {os.path.dirname(path) for path in tree.files if path.endswith(HEADER_ENDINGS) and "-inl." not in path}
    offering |= {other for room, other in used if room != other}
    return [
        f"{ROOMS_FILE}: {room} -> {other} is allowed and nobody uses it"
        for room, uses in rooms.items()
        for other in uses
        if other in offering and (room, other) not in used
    ]


def check_no_cycle(rooms):
    """No room stands above itself; a cycle is told as the way around it."""
    done, way = set(), []

    def visit(room):
        if room in way:
            return [" -> ".join(way[way.index(room) :] + [room])]
        if room in done:
            return []
        way.append(room)
        found = [cycle for other in rooms.get(room, []) for cycle in visit(other)]
        way.pop()
        done.add(room)
        return found

    return [f"{ROOMS_FILE}: a cycle: {cycle}" for room in rooms for cycle in visit(room)]


def check_folder_sizes(tree):
    counts = {}
    for path in tree.files:
        folder, name = os.path.split(path)
        if folder and name not in ("README.md", "CMakeLists.txt") and "data" not in folder.split("/"):
            counts[folder] = counts.get(folder, 0) + 1
    return [
        f"{folder} holds {count} files, at most {MOST_FILES} are allowed"
        for folder, count in sorted(counts.items())
        if count > MOST_FILES
    ]


def check_guards(tree):
    """Every header is read once, by a guard that does not repeat the header's path and so moves with it. *-inl.h are
    read once for each instruction set and guard themselves."""
    return [
        f"{path} has {tree.lines(path).count('#pragma once')} lines of #pragma once, not one"
        for path in tree.files
        if path.endswith(HEADER_ENDINGS) and "-inl." not in path and tree.lines(path).count("#pragma once") != 1
    ]


def check_readmes(tree, rooms):
    """Every room and every top-level folder says what it is for."""
    places = sorted(set(rooms) | tree.top_folders())
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


def check_readme_tree(tree, rooms):
    """The README's tree names exactly the top-level folders and the folders within each daemon."""
    named = readme_tree(tree.lines("README.md"))
    there = tree.top_folders()
    for room in rooms:
        while room.split("/")[0] in DAEMONS and room:
            there.add(room)
            room = os.path.dirname(room)
    expected = {place for place in named if "/" in place and place.split("/")[0] not in DAEMONS and tree.exists(place)}
    wrong = [f'README.md, "Where things are": {place} is missing' for place in sorted(there - set(named))]
    wrong += [f"README.md:{named[place]}: there is no {place}" for place in sorted(set(named) - there - expected)]
    return wrong
