"""Contents of the Debian packages: files, manuals and completions from the programs' help, scripts. Installation and removal
are tested by hand: deploy/package/try_package.sh."""
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

    def test_manuals_cover_every_command_and_option(self):
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


class FilesTest(unittest.TestCase):
    """Packages that cpack builds from this build."""

    @classmethod
    def setUpClass(cls):
        cls.out = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.out)
        cls.build = os.path.dirname(os.path.abspath(BIN))
        manuals = os.path.join(cls.build, "manuals")  # the target's, which a build of everything leaves out
        if not os.path.exists(manuals):
            subprocess.run(["/usr/bin/python3", os.path.join(ROOT, "deploy/lib/make_manuals.py"), manuals, BIN], check=True)
            subprocess.run(["gzip", "-9n", "-r", os.path.join(manuals, "man")], check=True)
        command = ["cpack", "-G", "DEB", "--config", os.path.join(cls.build, "CPackConfig.cmake"), "-B", cls.out]
        done = subprocess.run(command, cwd=cls.build, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        cls.packages = {name.split("_")[0]: os.path.join(cls.out, name) for name in os.listdir(cls.out) if name.endswith(".deb")}

    def files(self, package):
        listed = subprocess.run(["dpkg-deb", "-c", self.packages[package]], check=True, capture_output=True, text=True).stdout
        return {line.split()[5][1:] for line in listed.splitlines() if not line.startswith("d")}

    def field(self, package, name):
        return subprocess.run(["dpkg-deb", "-f", self.packages[package], name], check=True, capture_output=True, text=True).stdout.strip()

    def test_base_package_has_no_cuda_files(self):
        files = self.files("sluice")
        for name in ("sluice", "weightd", "inferd"):
            self.assertIn("/usr/bin/" + name, files)
        units = os.listdir(os.path.join(ROOT, "deploy/systemd"))
        for unit in (name for name in units if name.endswith((".service", ".socket"))):
            self.assertIn("/usr/lib/systemd/system/" + unit, files)
        with open(os.path.join(ROOT, "deploy/package/conffiles")) as kept:
            self.assertLessEqual({line.strip() for line in kept}, files)
        self.assertLessEqual({"/usr/share/doc/sluice/" + name for name in ("copyright", "LICENSE", "CHANGELOG.md")}, files)
        self.assertFalse([name for name in files if "libsluice_cuda" in name])
        self.assertIn("libc6", self.field("sluice", "Depends"))

    def test_links_of_documents_lead_somewhere(self):
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        subprocess.run(["dpkg-deb", "-x", self.packages["sluice"], root], check=True)
        checked = 0
        for folder, _, names in os.walk(os.path.join(root, "usr/share/doc/sluice")):
            for name in (name for name in names if name.endswith(".md")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    text = re.sub(r"```.*?```|`[^`\n]+`", "", file.read(), flags=re.S)
                for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
                    if not re.match(r"[a-z]+:", target):
                        checked += 1
                        self.assertTrue(os.path.exists(os.path.join(folder, target)), "%s: %s" % (name, target))
        self.assertGreater(checked, 20)

    def test_cuda_package_matches_base_version(self):
        if not os.path.exists(os.path.join(BIN, "libsluice_cuda.so")):
            self.assertNotIn("sluice-cuda", self.packages)
            return
        documents = {"/usr/share/doc/sluice-cuda/" + name for name in ("copyright", "THIRD_PARTY_NOTICES.md")}
        self.assertEqual({"/usr/lib/sluice/libsluice_cuda.so"} | documents, self.files("sluice-cuda"))
        self.assertIn("sluice (= %s)" % self.field("sluice", "Version"), self.field("sluice-cuda", "Depends"))


if __name__ == "__main__":
    unittest.main()
