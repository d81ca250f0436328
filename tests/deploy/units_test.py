"""The systemd units and config files, as parsed by systemd and by the daemons."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ["SLUICE_BIN"]
UNITS = os.path.join(ROOT, "deploy/systemd")
MOST_EXPOSURE = 3.0
# Options that these options require.
COMPANIONS = {
    "sparsity": "sparsity-target = 0.8\n",
    "sparsity-target": 'sparsity = "up"\n',
    "sparsity-threshold": 'sparsity = "up"\n',
    "sparsity-scope": 'sparsity = "up"\nsparsity-target = 0.8\n',
    "slab-handle": 'device = "cuda"\n',
    "http-tls-certificate": 'http-tls-key = "/k.pem"\n',
    "http-tls-key": 'http-tls-certificate = "/c.pem"\n',
    "tls-certificate": 'tls-key = "/k.pem"\ntls-client-ca = "/a.pem"\n',
    "tls-client-ca": 'tls-certificate = "/c.pem"\ntls-key = "/k.pem"\n',
    "tls-key": 'tls-certificate = "/c.pem"\ntls-client-ca = "/a.pem"\n',
}
# Options that only a device with its own memory supports.
OF_SIM = ("device-budget", "link-gbps", "link-latency-us", "tile-neurons", "transport", "clock", "virtual-costs",
          "cpu-threads")


class UnitsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-units-")
        self.addCleanup(shutil.rmtree, self.folder)

    def installed_units(self):
        """Copies of the units with the programs of this build: systemd checks that they exist."""
        if shutil.which("systemd-analyze") is None:
            self.skipTest("not run: systemd-analyze is not installed (deploy/install_deps.sh installs it)")
        copies = []
        for unit in sorted(glob.glob(UNITS + "/*.service") + glob.glob(UNITS + "/*.socket")):
            with open(unit) as file:
                text = re.sub(r"/usr/bin/(weightd|inferd)\b", lambda match: os.path.join(BIN, match.group(1)), file.read())
            copies.append(os.path.join(self.folder, os.path.basename(unit)))
            with open(copies[-1], "w") as file:
                file.write(text)
        self.assertEqual(5, len(copies))
        return copies

    def test_systemd_analyze_accepts_the_units(self):
        units = self.installed_units()
        result = subprocess.run(
            ["systemd-analyze", "verify", "--man=no"] + units, capture_output=True, text=True, timeout=120
        )
        self.assertEqual((0, ""), (result.returncode, result.stdout + result.stderr))

    def test_security_exposure_is_at_most_three(self):
        for unit in self.installed_units():
            if not unit.endswith(".service"):
                continue
            result = subprocess.run(
                ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result.stdout)
            self.assertIsNotNone(found, result.stdout + result.stderr)
            print("%s: exposure %s" % (os.path.basename(unit), found.group(1)))
            self.assertLessEqual(float(found.group(1)), MOST_EXPOSURE)

    def test_config_files_name_todays_options(self):
        result = subprocess.run(
            [sys.executable, os.path.join(ROOT, "deploy/lib/make_configs.py"), "--check", BIN],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        self.assertEqual(0, result.returncode, result.stderr)

    def test_daemons_take_the_config_files(self):
        for program in ("weightd", "inferd"):
            with open(os.path.join(ROOT, "deploy/config", program + ".toml")) as file:
                text = file.read().replace('"sluice"', '"root"')  # a group that every host has
            path = os.path.join(self.folder, program + ".toml")
            with open(path, "w") as file:
                file.write(text)
            result = subprocess.run(
                [os.path.join(BIN, program), "--config", path, "--check-config"],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            self.assertEqual(0, result.returncode, result.stderr)
            self.assertIn("valid", result.stdout)

    def test_units_and_configs_name_the_same_sockets(self):
        listens = set()
        for unit in glob.glob(UNITS + "/*.socket"):
            with open(unit) as file:
                listens |= set(re.findall(r"^Listen(?:Stream|SequentialPacket)=(.*)$", file.read(), re.M))
        named = set()
        for program in ("weightd", "inferd"):
            with open(os.path.join(ROOT, "deploy/config", program + ".toml")) as file:
                for match in re.findall(r'^(?:socket|listen|admin) = \[?"(?:unix:)?([^"]*)"', file.read(), re.M):
                    named |= {match, match + ".side"} if program == "weightd" else {match}
        self.assertEqual(named, listens)

    def test_config_file_examples_are_accepted(self):
        for program in ("weightd", "inferd"):
            with open(os.path.join(ROOT, "deploy/config", program + ".toml")) as file:
                lines = file.read().splitlines()
            for line in lines:
                match = re.fullmatch(r"# ([a-z-]+) = (.*)", line)
                if match is None or match.group(2).strip('"[]') == "...":
                    continue
                value = match.group(2).replace('"alice"', '"root"')
                path = os.path.join(self.folder, "one.toml")
                with open(path, "w") as file:
                    file.write('pack = "/p"\n%s = %s\n' % (match.group(1), value))
                    file.write(COMPANIONS.get(match.group(1), ""))
                    if match.group(1) in OF_SIM:
                        file.write('device = "sim"\n')
                result = subprocess.run(
                    [os.path.join(BIN, program), "--config", path, "--check-config"],
                    capture_output=True, text=True, timeout=120,
                )  # fmt: skip
                self.assertEqual(0, result.returncode, line + "\n" + result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
