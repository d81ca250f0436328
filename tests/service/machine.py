"""A Debian 12 machine with systemd as its first process, in a container of systemd-nspawn.

Needs root, systemd-nspawn (package systemd-container) and, for the first time, debootstrap and a Debian mirror.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = "/srv/sluice"  # the tree inside
PROGRAMS = ("weightd", "inferd", "sluice")
BOOT_PATIENCE = 120  # seconds
PATIENCE = 120


def missing_needs():
    """Returns the reason why no machine can be created here, or ""."""
    if os.geteuid() != 0:
        return "needs root"
    for tool, package in (("systemd-nspawn", "systemd-container"), ("debootstrap", "debootstrap"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            return "needs %s (package %s)" % (tool, package)
    return ""


def library_packages(programs):
    """Debian's packages with the libraries that the programs were linked with."""
    files = set()
    for program in programs:
        for line in subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines():
            match = re.search(r"=> (/\S+)", line)
            if match:
                path = os.path.realpath(match.group(1))
                files |= {path, path.removeprefix("/usr")}  # dpkg knows one of them, since /usr was merged
    found = subprocess.run(["dpkg", "-S"] + sorted(files), capture_output=True, text=True).stdout
    return sorted({line.split(":")[0] for line in found.splitlines()})


def make_root(folder, programs):
    """Installs a small Debian 12 with systemd and those libraries into `folder`."""
    packages = ["systemd", "systemd-sysv", "dbus", "procps"] + library_packages(programs)
    print("installing Debian 12 into %s" % folder, file=sys.stderr, flush=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=" + ",".join(packages), "bookworm", folder],
        check=True,
        stdout=sys.stderr,
    )


class Machine:
    def __init__(self, folder, bin_dir):
        self.folder = folder
        self.bin_dir = bin_dir
        self.nspawn = None
        self.leader = None

    def boot(self):
        command = [
            "systemd-nspawn", "--quiet", "--boot", "--directory", self.folder, "--machine", "sluice-units",
            "--register=no", "--private-network", "--console=pipe",
            "--bind-ro=%s:%s" % (ROOT, SOURCE),
            "--bind-ro=%s:%s/build/release/bin" % (self.bin_dir, SOURCE),
        ]  # fmt: skip
        if not os.path.isdir("/run/systemd/system"):
            command.append("--keep-unit")  # no manager to create a scope
        with open(self.folder + ".console", "ab") as console:
            self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        self.leader = self.wait_until(self._find_leader, "the first process")
        self.wait_until(lambda: os.path.exists("/proc/%d/root/run/systemd/private" % self.leader), "systemd")
        self.run("systemctl", "is-system-running", "--wait", check=False, timeout=BOOT_PATIENCE)

    def _find_leader(self):
        if self.nspawn.poll() is not None:
            with open(self.folder + ".console") as console:
                raise AssertionError("systemd-nspawn ended: " + console.read()[-2000:])
        with open("/proc/%d/task/%d/children" % (self.nspawn.pid, self.nspawn.pid)) as children:
            pids = [int(pid) for pid in children.read().split()]
        for pid in pids:
            with open("/proc/%d/comm" % pid) as name:
                if name.read().strip() == "systemd":
                    return pid
        return None

    def power_off(self):
        if self.nspawn is None:
            return
        self.run("systemctl", "poweroff", check=False)
        try:
            self.nspawn.wait(BOOT_PATIENCE)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()
            self.nspawn.wait()
        self.nspawn = None

    def wait_until(self, condition, what):
        """Polls, since the condition is on another machine."""
        end = time.monotonic() + PATIENCE
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError("gave up waiting for " + what)
            time.sleep(0.1)

    def command(self, words, user=None):
        enter = ["nsenter", "--target", str(self.leader), "--all", "--wd=/"]
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/tmp"]
        return enter + clean + (["runuser", "-u", user, "--"] if user else []) + list(words)

    def run(self, *words, user=None, check=True, timeout=PATIENCE):
        result = subprocess.run(
            self.command(words, user), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        if check and result.returncode != 0:
            raise AssertionError("%s: exit %d\n%s%s" % (words, result.returncode, result.stdout, result.stderr))
        return result

    def start(self, *words, user=None):
        return subprocess.Popen(
            self.command(words, user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def write(self, path, text):
        """Reads it inside the machine, whose /run is a separate file system."""
        inside = "/proc/%d/root%s" % (self.leader, path)
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        with open(inside, "w") as file:
            file.write(text)

    def read(self, path):
        with open("/proc/%d/root%s" % (self.leader, path)) as file:
            return file.read()

    def show(self, unit, name):
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def pid(self, unit):
        """The unit's main process, as the machine numbers it."""
        return int(self.show(unit, "MainPID"))

    def mark(self):
        """A moment, in microseconds, for entries() and journal()."""
        return int(self.run("date", "+%s%6N").stdout)

    def entries(self, unit, since=0):
        """The unit's lines in the journal of this boot, as journald has them."""
        self.run("journalctl", "--sync")
        lines = self.run("journalctl", "--unit", unit, "--output", "json", "--boot").stdout.splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if int(entry["__REALTIME_TIMESTAMP"]) >= since]

    def journal(self, unit, since=0):
        return "".join(entry["MESSAGE"] + "\n" for entry in self.entries(unit, since))
