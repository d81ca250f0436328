"""The tree keeps to cmake/rooms.txt, and its documents speak of what is there."""
import os
import sys
import unittest

import documents
import rooms as checks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class RoomsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = checks.Tree(ROOT)
        cls.rooms, cls.unreadable = checks.read_rooms(cls.tree)

    def nothing_wrong(self, wrong):
        self.assertEqual([], wrong, "\n" + "\n".join(wrong))

    def test_the_list_of_rooms_can_be_read(self):
        self.nothing_wrong(self.unreadable)

    def test_every_folder_with_sources_is_listed(self):
        self.nothing_wrong(checks.check_listed(self.tree, self.rooms))

    def test_every_include_goes_along_an_allowed_edge(self):
        self.nothing_wrong(checks.check_includes(self.tree, self.rooms))

    def test_every_allowed_edge_is_used(self):
        self.nothing_wrong(checks.check_edges_used(self.tree, self.rooms))

    def test_rooms_have_no_cycle(self):
        self.nothing_wrong(checks.check_no_cycle(self.rooms))

    def test_no_folder_holds_too_many_files(self):
        self.nothing_wrong(checks.check_folder_sizes(self.tree))

    def test_every_header_is_guarded(self):
        self.nothing_wrong(checks.check_guards(self.tree))

    def test_every_room_says_what_it_is_for(self):
        self.nothing_wrong(checks.check_readmes(self.tree, self.rooms))

    def test_the_readme_shows_the_tree_as_it_is(self):
        self.nothing_wrong(checks.check_readme_tree(self.tree, self.rooms))


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

    def test_every_document_that_a_comment_names_exists(self):
        self.nothing_wrong(documents.check_mentions(self.tree))

    def test_every_command_that_is_shown_exists(self):
        self.nothing_wrong(documents.check_commands(self.tree))

    def test_every_policy_that_is_shown_exists(self):
        self.nothing_wrong(documents.check_policies(self.tree))

    def test_every_test_of_the_checklist_exists(self):
        self.nothing_wrong(documents.check_tests(self.tree))

    def test_documents_are_of_a_length_that_is_read(self):
        self.nothing_wrong(documents.check_lengths(self.tree))


if __name__ == "__main__":
    sys.exit(unittest.main())
