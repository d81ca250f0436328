"""The tree keeps to cmake/rooms.txt, and its documents speak of what is there."""
import os
import sys
import unittest

import documents
import modules as checks
import words

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class ModulesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = checks.Tree(ROOT)
        cls.modules, cls.unreadable = checks.read_modules(cls.tree)

    def nothing_wrong(self, wrong):
        self.assertEqual([], wrong, "\n" + "\n".join(wrong))

    def test_the_list_of_modules_can_be_read(self):
        self.nothing_wrong(self.unreadable)

    def test_every_folder_with_sources_is_listed(self):
        self.nothing_wrong(checks.check_listed(self.tree, self.modules))

    def test_every_include_goes_along_an_allowed_edge(self):
        self.nothing_wrong(checks.check_includes(self.tree, self.modules))

    def test_every_allowed_edge_is_used(self):
        self.nothing_wrong(checks.check_edges_used(self.tree, self.modules))

    def test_modules_have_no_cycle(self):
        self.nothing_wrong(checks.check_no_cycle(self.modules))

    def test_no_class_is_defined_twice(self):
        self.nothing_wrong(checks.check_classes(self.tree))

    def test_every_header_is_guarded(self):
        self.nothing_wrong(checks.check_guards(self.tree))

    def test_every_module_says_what_it_is_for(self):
        self.nothing_wrong(checks.check_readmes(self.tree, self.modules))

    def test_the_readme_shows_the_tree_as_it_is(self):
        self.nothing_wrong(checks.check_readme_tree(self.tree, self.modules))


class DocumentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = checks.Tree(ROOT)

    def nothing_wrong(self, wrong):
        self.assertEqual([], wrong, "\n" + "\n".join(wrong))

    def test_every_link_leads_somewhere(self):
        self.nothing_wrong(documents.check_links(self.tree))

    def test_every_named_file_exists(self):
        self.nothing_wrong(documents.check_names(self.tree))

    def test_every_file_in_a_comment_exists(self):
        self.nothing_wrong(documents.check_comments(self.tree))

    def test_every_document_in_a_comment_exists(self):
        self.nothing_wrong(documents.check_mentions(self.tree))

    def test_every_command_that_is_shown_exists(self):
        self.nothing_wrong(documents.check_commands(self.tree))

    def test_every_policy_that_is_shown_exists(self):
        self.nothing_wrong(documents.check_policies(self.tree))

    def test_every_test_of_the_checklist_exists(self):
        self.nothing_wrong(documents.check_tests(self.tree))

    def test_documents_are_of_a_length_that_is_read(self):
        self.nothing_wrong(documents.check_lengths(self.tree))


class WordsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = checks.Tree(ROOT)

    def nothing_wrong(self, wrong):
        self.assertEqual([], wrong, "\n" + "\n".join(wrong))

    def test_no_replaced_term_is_used(self):
        self.nothing_wrong(words.check_words(self.tree))

    def test_comments_start_with_a_noun_or_a_verb(self):
        self.nothing_wrong(words.check_comment_starts(self.tree))

    def test_test_names_are_short(self):
        self.nothing_wrong(words.check_test_names(self.tree))

    def test_deadlines_are_on_the_steady_clock(self):
        self.nothing_wrong(words.check_clocks(self.tree))


if __name__ == "__main__":
    sys.exit(unittest.main())
