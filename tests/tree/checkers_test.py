"""Each checker of modules.py and documents.py finds what it is there to find, on small made-up trees."""
import os
import shutil
import sys
import tempfile
import unittest

import documents
import modules as checks
import words

MODULES = "# a comment\n\ncommon:\nweightd: common\nweightd/io: common\n"
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
    "cmake/rooms.txt": MODULES,
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
        root = tempfile.mkdtemp(prefix="sluice-tree-")
        self.addCleanup(shutil.rmtree, root)
        for path, text in {**GOOD, **dict(changes)}.items():
            if text is not None:
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w") as file:
                    file.write(text)
        return checks.Tree(root)

    def wrong(self, check, changes=()):
        tree = self.tree(changes)
        return check(tree, checks.read_modules(tree)[0])

    def test_nothing_is_wrong_with_a_good_tree(self):
        tree = self.tree()
        modules, wrong = checks.read_modules(tree)
        for check in (
            checks.check_listed, checks.check_includes, checks.check_edges_used, checks.check_readmes,
            checks.check_readme_tree,
        ):  # fmt: skip
            wrong += check(tree, modules)
        wrong += checks.check_no_cycle(modules) + checks.check_classes(tree) + checks.check_guards(tree)
        wrong += documents.check_links(tree) + documents.check_names(tree) + documents.check_lengths(tree)
        self.assertEqual([], wrong)

    def test_lines_that_are_no_modules_are_found(self):
        text = MODULES + "Weightd common\nweightd: common\nlab: cli\n"
        self.assertEqual(
            [
                'cmake/rooms.txt:6: cannot read "Weightd common"',
                "cmake/rooms.txt:7: weightd is listed twice",
                "cmake/rooms.txt: lab may include cli, which is not listed",
            ],
            checks.read_modules(self.tree({"cmake/rooms.txt": text}))[1],
        )

    def test_a_folder_that_is_not_listed_is_found(self):
        self.assertEqual(
            ["cmake/rooms.txt does not list weightd/dram, which holds sources"],
            self.wrong(checks.check_listed, {"weightd/dram/arena.h": "", "tests/a_test.cc": "", "bench/b.cc": ""}),
        )

    def test_a_module_that_is_not_there_is_found(self):
        self.assertEqual(
            ["cmake/rooms.txt lists weightd/io, which holds no source"],
            self.wrong(checks.check_listed, {"weightd/io/reader.cc": None}),
        )

    def test_an_include_along_no_edge_is_found(self):
        self.assertEqual(
            ["common/size.h:2: common -> weightd is no edge of cmake/rooms.txt"],
            self.wrong(
                checks.check_includes, {"common/size.h": '\n#include "weightd/store.h"\n', "weightd/store.h": ""}
            ),
        )

    def test_an_include_of_tests_is_found(self):
        self.assertEqual(
            ["weightd/main.cc:1: weightd -> tests is no edge of cmake/rooms.txt"],
            self.wrong(checks.check_includes, {"weightd/main.cc": '#include "tests/fake.h"\n', "tests/fake.h": ""}),
        )

    def test_tests_may_include_every_module(self):
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

    def test_a_module_without_headers_may_be_linked(self):
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
        modules = {"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []}
        self.assertEqual(["cmake/rooms.txt: a cycle: b -> c -> b"], checks.check_no_cycle(modules))
        self.assertEqual(["cmake/rooms.txt: a cycle: a -> a"], checks.check_no_cycle({"a": ["a"]}))

    def test_a_class_in_two_headers_is_found(self):
        changes = {
            "common/size.h": "#pragma once\nnamespace a {\nstruct Slot {\n};\nclass Other;\n}  // namespace a\n",
            "weightd/slot.h": "#pragma once\nnamespace a {\nclass Slot final : public Base {\n};\n}  // namespace a\n",
            "weightd/b.h": "#pragma once\nnamespace a::b {\nclass Slot {\n};\n}  // namespace a::b\n",
            "weightd/c.h": "#pragma once\nnamespace a {\nnamespace {\nclass Slot {\n};\n}  // namespace\n}  // namespace a\n",
        }
        self.assertEqual(
            ["a::Slot is defined in common/size.h and weightd/slot.h"], checks.check_classes(self.tree(changes))
        )

    def test_a_replaced_term_is_found(self):
        changes = {
            words.WORDS_FILE: "# terms\n\\bdoors?\\b -> server\n",
            "common/size.h": "// The door.\n// indoors\n",
        }
        self.assertEqual(
            ['common/size.h:1: "door": say server instead'], words.check_words(self.tree(changes))
        )

    def test_a_comment_that_starts_with_what_is_found(self):
        text = "// The size.\nint a;\n\n\n// What is left.\nint b;  // Of it\n// Bytes. Whether it fits.\n"
        self.assertEqual(
            [
                'common/size.h:5: a comment starts with "What is left."',
                'common/size.h:7: a comment starts with "Whether it fits."',
            ],
            words.check_comment_starts(self.tree({"common/size.h": text})),
        )

    def test_a_long_test_name_is_found(self):
        name = "A" * (words.MAX_TEST_NAME + 1)
        changes = {"tests/a_test.cc": f"TEST(S, {name}) {{}}\nTEST(S, {name[1:]}) {{}}\n"}
        self.assertEqual([f"tests/a_test.cc: {name} has 46 characters"], words.check_test_names(self.tree(changes)))

    def test_durations_by_the_wall_clock_are_found(self):
        changes = {"common/size.h": "const absl::Time end = absl::Now();"}
        self.assertEqual(
            ["common/size.h:1: absl::Now() may jump: use SteadyNow() of common/base/clock.h"],
            words.check_clocks(self.tree(changes)),
        )

    def test_a_header_without_a_guard_is_found(self):
        tree = self.tree({"common/size.h": "#include <string>\n", "common/size-inl.h": "int size;\n"})
        self.assertEqual(["common/size.h has 0 lines of #pragma once, not one"], checks.check_guards(tree))

    def test_a_module_without_a_readme_is_found(self):
        self.assertEqual(
            ["docs has no README.md", "weightd/io has no README.md"],
            self.wrong(checks.check_readmes, {"weightd/io/README.md": None, "docs/guide.md": ""}),
        )

    def test_a_folder_missing_in_the_readme_is_found(self):
        changes = {"cmake/rooms.txt": MODULES + "weightd/fetch/slow: common\n", "docs/guide.md": ""}
        self.assertEqual(
            [
                'README.md, "Where things are": docs is missing',
                'README.md, "Where things are": weightd/fetch is missing',
                'README.md, "Where things are": weightd/fetch/slow is missing',
            ],
            self.wrong(checks.check_readme_tree, changes),
        )

    def test_an_invented_folder_is_found(self):
        text = README.replace("  io/     reads", "  io/ ring/  reads")
        text = text.replace("common/   words", "common/\nbench/   rates")
        self.assertEqual(
            ["README.md:6: there is no bench", "README.md:8: there is no weightd/io/ring"],
            self.wrong(checks.check_readme_tree, {"README.md": text}),
        )

    def test_a_readme_without_a_tree_is_found(self):
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

    def test_names_of_missing_files_are_found(self):
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

    def test_names_in_a_folders_own_readme_are_found(self):
        text = "`io/reader.cc` `io/gone.cc` `../common/size.h` `../common/gone.h` `io/NAME` `hub/model.py`\n"
        self.assertEqual(
            ["weightd/README.md:1: there is no io/gone.cc", "weightd/README.md:1: there is no ../common/gone.h"],
            documents.check_names(self.tree({"weightd/README.md": text})),
        )

    def test_a_missing_file_in_a_comment_is_found(self):
        text = '// As size.h and gone.h; io/reader.cc, common/gone.cc, <gone.h>, vendor/x.h, *_gone.cc\nf("// gone.cc");\n'
        self.assertEqual(
            ["weightd/store.h:1: there is no gone.h", "weightd/store.h:1: there is no common/gone.cc"],
            documents.check_comments(self.tree({"weightd/store.h": text})),
        )

    def test_a_missing_document_in_a_comment_is_found(self):
        text = "// see docs/gone.md, docs/guide.md (docs/figures/), lab/docs/row.md.\n"
        changes = {"weightd/store.h": text, "docs/guide.md": "", "docs/figures/a.svg": "", "lab/docs/row.md": ""}
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

    def test_a_missing_test_in_the_checklist_is_found(self):
        text = (
            "`StoreTest.*` `StoreTest.Finds...` `StoreTest.Gone` `store_bench` `none_test` `Gone.*` `sluice run` `io`\n"
        )
        changes = {
            "lab/docs/checklist.md": text, "bench/store_bench.cc": "",
            "tests/store_test.cc": "TEST(StoreTest, FindsAll) {}\n",
        }  # fmt: skip
        self.assertEqual(
            [
                "lab/docs/checklist.md:1: no test is called Gone (StoreTest.Gone)",
                "lab/docs/checklist.md:1: no test is called none_test (none_test)",
                "lab/docs/checklist.md:1: no test is called Gone (Gone.*)",
            ],
            documents.check_tests(self.tree(changes)),
        )

    def test_a_document_that_is_too_long_is_found(self):
        lines = documents.MAX_DOCUMENT_LINES
        changes = {
            "docs/guide.md": "x\n" * (lines + 1), "docs/other.md": "x\n" * lines, "common/README.md": "x\n" * 999,
            "docs/reference/grpc.md": "x\n" * 999,
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
