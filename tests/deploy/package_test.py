"""What the Debian package is made of beside the programs: manuals and completions from their help, and its scripts. The
package as a whole is tried by hand: deploy/package/try_package.sh."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build/release/bin"))


def help_of(*words):
    return subprocess.run([os.path.join(BIN, words[0]), *words[1:]], check=True, capture_output=True, text=True).stdout


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.out)
        maker = os.path.join(ROOT, "deploy/lib/make_manuals.py")
        subprocess.run(["/usr/bin/python3", maker, cls.out, BIN], check=True)
        cls.commands = re.findall(r"^  ([a-z]+)\s+\S", help_of("sluice", "--help"), re.M)

    def page(self, name):
        with open(os.path.join(self.out, "man", name)) as file:
            return file.read().replace("\\-", "-")

    def test_every_command_and_option_has_its_place_in_a_manual(self):
        self.assertIn("serve", self.commands)
        overview = self.page("sluice.1")
        pages = {"weightd.8": help_of("weightd", "--help"), "inferd.8": help_of("inferd", "--help")}
        for command in self.commands:
            self.assertIn("sluice-" + command, overview)
            pages["sluice-%s.1" % command] = help_of("sluice", command, "--help")
        for name, text in pages.items():
            listed = re.findall(r"^  (?:-\w,)?(--[a-z][\w-]*)", text, re.M)
            self.assertTrue(listed, name)
            for option in listed:
                self.assertRegex(self.page(name), r"\n\.B .*%s\b" % re.escape(option), name)

    def complete(self, *words):
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", script, "-", os.path.join(self.out, "sluice.bash"), *words],
                              check=True, capture_output=True, text=True)  # fmt: skip
        return done.stdout.split()

    def test_bash_completes_commands_and_options(self):
        self.assertEqual(["serve"], self.complete("sluice", "ser"))
        self.assertEqual(set(self.commands), set(self.complete("sluice", "")) - {"--help", "--version"})
        self.assertEqual(["--http-keys"], self.complete("sluice", "serve", "--http-k"))

    def test_the_packages_scripts_are_shell(self):
        for name in ("postinst", "prerm", "postrm"):
            subprocess.run(["sh", "-n", os.path.join(ROOT, "deploy/package", name)], check=True)
        with open(os.path.join(ROOT, "deploy/package/conffiles")) as file:
            kept = sorted(os.path.basename(line.strip()) for line in file)
        self.assertEqual(sorted(os.listdir(os.path.join(ROOT, "deploy/config"))), kept)


if __name__ == "__main__":
    unittest.main()
