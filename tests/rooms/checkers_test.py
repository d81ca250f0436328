"""Each checker of rooms.py and documents.py finds what it is there to find, on small made-up trees."""
import os
import shutil
import sys
import tempfile
import unittest

import documents
import rooms as checks

ROOMS = "# a comment\n\ncommon:\nweightd: common\nweightd/io: common\n"
README = """# T
## Where things are
```
cmake/    the build
common/   words
weightd/  a daemon
  io/     reads
```
"""
GOOD = {
    "README.md": README,
    "cmake/rooms.txt": ROOMS,
    "cmake/README.md": "# cmake\n",
    "common/README.md": "# common\n",
    "common/size.h": "#pragma once\n#include <string>\n",
    "weightd/README.md": "# weightd: [words](../common/README.md), `size.h`, `common/size.h`\n",
    "weightd/main.cc": '#include "common/size.h"\n#include "sluice/weights.pb.h"\n',
    "weightd/io/README.md": "# io\n",
    "weightd/io/reader.cc": '#include "common/size.h"\n',
}


class CheckersTest(unittest.TestCase):
    def tree(self, changes=()):
        """GOOD with some files changed, or left out where the text is None."""
        root = tempfile.mkdtemp(prefix="sluice-rooms-")
        self.addCleanup(shutil.rmtree, root)
        for path, text in {**GOOD, **dict(changes)}.items():
            if text is not None:
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
        return checks.Tree(root)

    def wrong(self, check, changes=()):
        tree = self.tree(changes)
        return check(tree, checks.read_rooms(tree)[0])

    def test_nothing_is_wrong_with_a_good_tree(self):
        tree = self.tree()
        rooms, wrong = checks.read_rooms(tree)
        for check in (
            checks.check_listed, checks.check_includes, checks.check_edges_used, checks.check_readmes,
            checks.check_readme_tree,
        ):  # fmt: skip
            wrong += check(tree, rooms)
        wrong += checks.check_no_cycle(rooms) + checks.check_folder_sizes(tree) + checks.check_guards(tree)
        wrong += documents.check_links(tree) + documents.check_names(tree) + documents.check_lengths(tree)
        self.assertEqual([], wrong)

    def test_lines_that_are_no_rooms_are_found(self):
        text = ROOMS + "Weightd common\nweightd: common\nlab: cli\n"
        self.assertEqual(
            [
                'cmake/rooms.txt:6: cannot read "Weightd common"',
                "cmake/rooms.txt:7: weightd is listed twice",
                "cmake/rooms.txt: lab may include cli, which is not listed",
            ],
            checks.read_rooms(self.tree({"cmake/rooms.txt": text}))[1],
        )

    def test_a_folder_that_is_not_listed_is_found(self):
        self.assertEqual(
            ["cmake/rooms.txt does not list weightd/dram, which holds sources"],
            self.wrong(checks.check_listed, {"weightd/dram/arena.h": "", "tests/a_test.cc": "", "bench/b.cc": ""}),
        )

    def test_a_room_that_is_not_there_is_found(self):
        self.assertEqual(
            ["cmake/rooms.txt lists weightd/io, which holds no source"],
            self.wrong(checks.check_listed, {"weightd/io/reader.cc": None}),
        )

    def test_an_include_along_no_edge_is_found_with_its_place(self):
        self.assertEqual(
            ["common/size.h:2: common -> weightd is no edge of cmake/rooms.txt"],
            self.wrong(
                checks.check_includes, {"common/size.h": '\n#include "weightd/store.h"\n', "weightd/store.h": ""}
            ),
        )

    def test_an_include_of_what_is_around_the_product_is_found(self):
        self.assertEqual(
            ["weightd/main.cc:1: weightd -> tests is no edge of cmake/rooms.txt"],
            self.wrong(checks.check_includes, {"weightd/main.cc": '#include "tests/fake.h"\n', "tests/fake.h": ""}),
        )

    def test_tests_may_include_every_room_but_nothing_that_is_not_there(self):
        self.assertEqual(
            ["tests/a_test.cc:2: there is no common/none.h"],
            self.wrong(
                checks.check_includes, {"tests/a_test.cc": '#include "common/size.h"\n#include "common/none.h"\n'}
            ),
        )

    def test_an_edge_that_nobody_uses_is_found(self):
        self.assertEqual(
            ["cmake/rooms.txt: weightd/io -> common is allowed and nobody uses it"],
            self.wrong(checks.check_edges_used, {"weightd/io/reader.cc": ""}),
        )

    def test_a_room_that_offers_no_header_may_be_linked_alone(self):
        changes = {
            "cmake/rooms.txt": "common:\nweightd: common weightd/io\nweightd/io: common\n",
            "weightd/io/reader.cc": '#include "common/size.h"\n#include "weightd/io/table-inl.h"\n',
            "weightd/io/table-inl.h": "",
        }
        self.assertEqual([], self.wrong(checks.check_edges_used, changes))
        self.assertEqual(
            ["cmake/rooms.txt: weightd -> weightd/io is allowed and nobody uses it"],
            self.wrong(checks.check_edges_used, {**changes, "weightd/io/reader.h": ""}),
        )

    def test_a_cycle_is_found_and_named(self):
        rooms = {"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []}
        self.assertEqual(["cmake/rooms.txt: a cycle: b -> c -> b"], checks.check_no_cycle(rooms))
        self.assertEqual(["cmake/rooms.txt: a cycle: a -> a"], checks.check_no_cycle({"a": ["a"]}))

    def test_a_folder_with_too_many_files_is_found(self):
        many = {f"tests/many/{i}.txt": "" for i in range(checks.MOST_FILES + 1)}
        most = {f"docs/{i}.txt": "" for i in range(checks.MOST_FILES)}
        most.update({"docs/README.md": "", "docs/CMakeLists.txt": ""})
        data = {f"tests/data/tiny/{i}.txt": "" for i in range(checks.MOST_FILES + 1)}
        self.assertEqual(
            ["tests/many holds 26 files, at most 25 are allowed"],
            checks.check_folder_sizes(self.tree({**many, **most, **data})),
        )

    def test_a_header_without_a_guard_is_found(self):
        tree = self.tree({"common/size.h": "#include <string>\n", "common/size-inl.h": "int size;\n"})
        self.assertEqual(["common/size.h has 0 lines of #pragma once, not one"], checks.check_guards(tree))

    def test_a_room_or_top_folder_without_a_readme_is_found(self):
        self.assertEqual(
            ["docs has no README.md", "weightd/io has no README.md"],
            self.wrong(checks.check_readmes, {"weightd/io/README.md": None, "docs/guide.md": ""}),
        )

    def test_a_folder_missing_in_the_readmes_tree_is_found(self):
        changes = {"cmake/rooms.txt": ROOMS + "weightd/fetch/slow: common\n", "docs/guide.md": ""}
        self.assertEqual(
            [
                'README.md, "Where things are": docs is missing',
                'README.md, "Where things are": weightd/fetch is missing',
                'README.md, "Where things are": weightd/fetch/slow is missing',
            ],
            self.wrong(checks.check_readme_tree, changes),
        )

    def test_a_folder_that_the_readmes_tree_invents_is_found(self):
        text = README.replace("  io/     reads", "  io/ ring/  reads")
        text = text.replace("common/   words", "common/\nbench/   rates")
        self.assertEqual(
            ["README.md:6: there is no bench", "README.md:8: there is no weightd/io/ring"],
            self.wrong(checks.check_readme_tree, {"README.md": text}),
        )

    def test_a_readme_without_a_tree_misses_everything(self):
        self.assertEqual(4, len(self.wrong(checks.check_readme_tree, {"README.md": "# T\n"})))

    def test_a_link_that_leads_nowhere_is_found(self):
        text = "[a](guide.md#b-part-of-it) [b](none.md#part)\n![c](https://x.org/y.svg) [d](#here)\n```\n[e](none.md)\n```\n"
        text += "## B: part of it\n"
        self.assertEqual(
            [
                "docs/guide.md:1: the link none.md#part leads nowhere",
                "docs/guide.md:2: the link #here leads nowhere",
            ],
            documents.check_links(self.tree({"docs/guide.md": text})),
        )

    def test_names_of_files_that_are_not_there_are_found(self):
        text = (
            "`common/size.{h,cc}` `size.cc` `none_NAME.h` `weightd/io/*.cc` `weightd/none/`\n"
            "`s*.h` `io/reader.cc` `manifest.json` `sluice pack` `x/y`\n"
        )
        self.assertEqual(
            [
                "docs/guide.md:1: there is no common/size.cc",
                "docs/guide.md:1: there is no size.cc",
                "docs/guide.md:1: there is no none_NAME.h",
                "docs/guide.md:1: there is no weightd/none/",
            ],
            documents.check_names(self.tree({"docs/guide.md": text})),
        )

    def test_a_document_that_a_comment_names_and_that_is_gone_is_found(self):
        text = "// see docs/gone.md, docs/guide.md (docs/figures/).\n"
        changes = {"weightd/store.h": text, "docs/guide.md": "", "docs/figures/a.svg": ""}
        self.assertEqual(
            ["weightd/store.h:1: there is no docs/gone.md"], documents.check_mentions(self.tree(changes))
        )

    def test_a_command_that_is_not_there_is_found(self):
        text = (
            "`sluice run -n 3` `sluice go` `sluice-lab rows` `build sluice x`\n"
            "```\nsluice run|stop; sluice end\n```\nsluice walk\n"
        )
        self.assertEqual(
            [
                "docs/guide.md:1: sluice has no command go",
                "docs/guide.md:3: sluice has no command stop",
                "docs/guide.md:3: sluice has no command end",
            ],
            documents.check_commands(self.tree({"docs/guide.md": text, "cli/commands/run_command.cc": ""})),
        )

    def test_a_policy_that_is_not_there_is_found(self):
        changes = {
            "docs/guide.md": "`--policy eviction=lru,shield=0.5` and --policy KEY=VALUE\n",
            "docs/rows.toml": 'options = ["--policy", "eviction=lru,tiles=off"]\n',
            "inferd/policy_keys.cc": '{"eviction", "lru"}',
        }
        self.assertEqual(
            ["docs/guide.md:1: no policy is called shield", "docs/rows.toml:1: no policy is called tiles"],
            documents.check_policies(self.tree(changes)),
        )

    def test_a_test_that_the_checklist_names_and_that_is_gone_is_found(self):
        text = (
            "`StoreTest.*` `StoreTest.Finds...` `StoreTest.Gone` `store_bench` `none_test` `Gone.*` `sluice run` `io`\n"
        )
        changes = {
            "docs/checklist.md": text, "bench/store_bench.cc": "",
            "tests/store_test.cc": "TEST(StoreTest, FindsAll) {}\n",
        }  # fmt: skip
        self.assertEqual(
            [
                "docs/checklist.md:1: no test is called Gone (StoreTest.Gone)",
                "docs/checklist.md:1: no test is called none_test (none_test)",
                "docs/checklist.md:1: no test is called Gone (Gone.*)",
            ],
            documents.check_tests(self.tree(changes)),
        )

    def test_a_document_that_is_too_long_is_found(self):
        lines = documents.MOST_DOCUMENT_LINES
        changes = {
            "docs/guide.md": "x\n" * (lines + 1), "docs/other.md": "x\n" * lines, "common/README.md": "x\n" * 999,
        }  # fmt: skip
        self.assertEqual(
            [f"docs/guide.md has {lines + 1} lines, at most {lines} are read"],
            documents.check_lengths(self.tree(changes)),
        )

    def test_what_git_ignores_is_no_part_of_the_tree(self):
        ignored = {"build/x.cc": "", "common/__pycache__/a.h": "", "common/b.pyc": "", ".cache/c.h": ""}
        tree = self.tree({".gitignore": "/build/\n__pycache__/\n*.pyc\n", **ignored})
        self.assertEqual([], [path for path in tree.files if path in ignored])


if __name__ == "__main__":
    sys.exit(unittest.main())
