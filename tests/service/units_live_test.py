#!/usr/bin/python3
"""The units of deploy/systemd under a systemd that runs them, in a machine of its own (tests/service/machine.py).

By hand, as root, after a build:
    /usr/bin/python3 tests/service/units_live_test.py [TEST...]
SLUICE_BIN names the programs (default build/release/bin), SLUICE_MACHINE the folder of the machine (default
/var/tmp/sluice-machine; made by debootstrap the first time, 350 MB, and kept). Docker-like sandboxes without
mounts, and continuous integration without root, cannot run it; it says so and passes nothing.

What is installed there is what docs/operations.md says under "By hand", command by command.
"""
import json
import os
import re
import time
import unittest

import machine

BIN = os.environ.get("SLUICE_BIN", os.path.join(machine.ROOT, "build/release/bin"))
FOLDER = os.environ.get("SLUICE_MACHINE", "/var/tmp/sluice-machine")
PACK = "/var/lib/sluice/packs/model"
CLIENTS = "unix:/run/inferd/inferd.sock"
MEMBER = "member"  # a member of the group sluice
STRANGER = "stranger"
WARNING = 4  # syslog priority
ERROR = 3
NOTICE_OR_LESS = (5, 6, 7)


def install_commands():
    """The block of docs/operations.md, for the sample model."""
    with open(os.path.join(machine.ROOT, "docs/operations.md")) as file:
        text = file.read()
    block = re.search(r"^### By hand\n```\n(.*?)^```", text, re.M | re.S).group(1)
    return block.replace("MODEL_DIR", "deploy/sample")


class UnitsLiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = machine.missing_needs()
        if missing:
            raise unittest.SkipTest("not run: " + missing)
        programs = [os.path.join(BIN, name) for name in machine.PROGRAMS]
        if not os.path.exists(os.path.join(FOLDER, "usr/lib/systemd/systemd")):
            machine.make_root(FOLDER, programs)
        cls.machine = machine.Machine(FOLDER, BIN)
        cls.addClassCleanup(cls.machine.power_off)
        cls.machine.boot()
        cls.forget_last_run()
        cls.installed = cls.machine.run("bash", "-ec", "cd %s\n%s" % (machine.SOURCE, install_commands()))
        for user, groups in ((MEMBER, ["-G", "sluice"]), (STRANGER, [])):
            cls.machine.run("useradd", *groups, user)

    @classmethod
    def forget_last_run(cls):
        cls.machine.run(
            "bash", "-c",
            "systemctl stop inferd weightd inferd.socket inferd-admin.socket weightd.socket;"
            "systemctl disable inferd weightd.socket inferd.socket inferd-admin.socket;"
            "rm -rf /etc/systemd/system/{weightd,inferd}* /etc/sluice /var/lib/sluice;"
            "for u in %s %s weightd inferd; do userdel $u; done; groupdel sluice; systemctl daemon-reload"
            % (MEMBER, STRANGER), check=False,
        )  # fmt: skip

    def setUp(self):
        """Restores both running daemons after any test."""
        for unit in ("weightd", "inferd"):
            self.machine.run("rm", "-rf", "/etc/systemd/system/%s.service.d" % unit)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("install", "-m", "644", "-t", "/etc/sluice", *self.configs())
        self.machine.run("systemctl", "reset-failed")
        self.machine.run(
            "systemctl", "start", "weightd.socket", "inferd.socket", "inferd-admin.socket", "weightd", "inferd"
        )

    @staticmethod
    def configs():
        return [machine.SOURCE + "/deploy/config/%s.toml" % name for name in ("weightd", "inferd")]

    def drop_in(self, unit, *lines):
        self.machine.write("/etc/systemd/system/%s.service.d/test.conf" % unit, "[Service]\n" + "\n".join(lines) + "\n")
        self.machine.run("systemctl", "daemon-reload")

    def configure(self, program, **options):
        path = "/etc/sluice/%s.toml" % program
        text = self.machine.read(path)
        for name, value in options.items():
            text += "%s = %s\n" % (name.replace("_", "-"), value)
        self.machine.write(path, text)

    def ask(self, user=MEMBER, tokens=16, check=True):
        """Sends a user's request; returns its JSON, or the result if it may fail."""
        result = self.machine.run(
            "sluice", "run", "--address", CLIENTS, "--pack", PACK, "--prompt", "Once upon a time",
            "-n", str(tokens), "--ignore-eos", "--temperature", "0", "--json", user=user, check=check,
        )  # fmt: skip
        return json.loads(result.stdout) if check else result

    def await_state(self, unit, name, value):
        self.machine.wait_until(
            lambda: self.machine.show(unit, name) == value,
            "%s of %s to be %s; the journal: %s" % (name, unit, value, self.machine.journal(unit)[-2000:]),
        )

    def priorities(self, unit, mark, text):
        """Returns the journal lines with the text."""
        return [int(entry["PRIORITY"]) for entry in self.machine.entries(unit, mark) if text in entry["MESSAGE"]]

    # ---- start

    def test_documented_install_steps_work(self):
        self.assertIn("tokens/s", self.installed.stdout + self.installed.stderr)
        self.assertEqual(16, len(self.ask()["token_ids"]))

    def test_both_are_up_again_after_a_boot(self):
        self.machine.power_off()
        self.machine.boot()
        self.assertEqual("active", self.machine.show("inferd", "ActiveState"))
        self.assertEqual("active", self.machine.show("weightd", "ActiveState"))
        self.ask()

    def test_status_says_what_each_does(self):
        self.assertRegex(self.machine.show("weightd", "StatusText"), r"serving 1 packs? on /run/weightd/weightd.sock")
        self.assertEqual("serving", self.machine.show("inferd", "StatusText"))

    def test_weightd_is_not_ready_when_no_fetch_works(self):
        mark = self.machine.mark()
        files = ["experts.bin", "dense.bin"]
        try:
            for name in files:
                size = self.machine.run("stat", "-c", "%s", PACK + "/" + name).stdout.strip()
                self.machine.run("mv", PACK + "/" + name, PACK + "/kept-" + name)
                self.machine.run("truncate", "-s", size, PACK + "/" + name)
            self.assertNotEqual(0, self.machine.run("systemctl", "restart", "weightd", check=False).returncode)
            self.await_state("weightd", "Result", "exit-code")
            self.assertIn("a test fetch of extent", self.machine.journal("weightd", mark))
            self.assertNotIn("Started weightd.service", self.machine.journal("weightd", mark))
        finally:
            for name in files:
                self.machine.run("mv", PACK + "/kept-" + name, PACK + "/" + name)
        self.machine.run("systemctl", "reset-failed", "weightd")
        self.machine.run("systemctl", "restart", "weightd")
        self.ask()

    def test_wrong_options_are_not_tried_again(self):
        self.configure("weightd", eviction='"oldest"')
        mark = self.machine.mark()
        # Its clients would activate it again through its socket.
        self.machine.run("systemctl", "stop", "inferd", "inferd.socket", "inferd-admin.socket")
        self.assertNotEqual(0, self.machine.run("systemctl", "restart", "weightd", check=False).returncode)
        self.assertEqual("failed", self.machine.show("weightd", "ActiveState"))
        self.assertEqual("2", self.machine.show("weightd", "ExecMainStatus"))
        self.assertNotIn("Scheduled restart", self.machine.journal("weightd", mark))

    # ---- watchdog, crashes

    def stopped_daemon_comes_back(self, unit):
        self.drop_in(unit, "WatchdogSec=3")
        self.machine.run("systemctl", "restart", unit)
        before = self.machine.pid(unit)
        mark = self.machine.mark()
        self.machine.run("kill", "-STOP", str(before))
        self.machine.wait_until(lambda: self.machine.pid(unit) not in (0, before), "another " + unit)
        self.assertIn("Failed with result 'watchdog'", self.machine.journal(unit, mark))
        self.await_state(unit, "ActiveState", "active")
        self.ask()

    def test_watchdog_replaces_a_stopped_weightd(self):
        self.stopped_daemon_comes_back("weightd")

    def test_watchdog_replaces_a_stopped_inferd(self):
        self.stopped_daemon_comes_back("inferd")

    def test_watchdog_lets_a_working_daemon_be(self):
        for unit in ("weightd", "inferd"):
            self.drop_in(unit, "WatchdogSec=1")
            self.machine.run("systemctl", "restart", unit)
        pids = [self.machine.pid(unit) for unit in ("weightd", "inferd")]
        end = time.monotonic() + 5
        while time.monotonic() < end:
            self.ask(tokens=256)
        self.assertEqual(pids, [self.machine.pid(unit) for unit in ("weightd", "inferd")])

    def test_killed_weightd_restarts_and_inferd_stays(self):
        weightd, inferd = self.machine.pid("weightd"), self.machine.pid("inferd")
        self.machine.run("kill", "-KILL", str(weightd))
        self.machine.wait_until(lambda: self.machine.pid("weightd") not in (0, weightd), "another weightd")
        self.await_state("weightd", "ActiveState", "active")
        self.ask()
        self.assertEqual(inferd, self.machine.pid("inferd"))

    def test_weightd_restarts_under_a_running_inferd(self):
        inferd = self.machine.pid("inferd")
        self.ask()
        self.machine.run("systemctl", "restart", "weightd")
        self.ask()
        self.assertEqual(inferd, self.machine.pid("inferd"))
        self.await_state("inferd", "StatusText", "serving")

    def test_inferd_checks_weightds_socket_peer(self):
        mark = self.machine.mark()
        self.machine.run("systemctl", "restart", "inferd")
        self.assertIn("(process %d," % self.machine.pid("weightd"), self.machine.journal("inferd", mark))

    # ---- sockets

    def test_first_connection_starts_both(self):
        self.machine.run("systemctl", "stop", "inferd", "weightd")
        self.assertEqual("inactive", self.machine.show("inferd", "ActiveState"))
        self.ask()
        self.assertEqual("active", self.machine.show("weightd", "ActiveState"))

    def test_clients_wait_while_inferd_restarts(self):
        restart = self.machine.start("systemctl", "restart", "inferd")
        self.ask()
        self.assertEqual(0, restart.wait(machine.PATIENCE))

    def test_sockets_are_the_groups_and_the_operators(self):
        def mode(path):
            return self.machine.run("stat", "-c", "%a %U %G", path).stdout.strip()

        self.assertEqual("660 weightd sluice", mode("/run/weightd/weightd.sock"))
        self.assertEqual("660 weightd sluice", mode("/run/weightd/weightd.sock.side"))
        self.assertEqual("660 inferd sluice", mode("/run/inferd/inferd.sock"))
        self.assertEqual("600 inferd inferd", mode("/run/inferd/inferd-admin.sock"))
        self.ask(user=MEMBER)
        self.assertNotEqual(0, self.ask(user=STRANGER, check=False).returncode)

    def test_other_user_is_refused_despite_file_mode(self):
        mark = self.machine.mark()
        self.machine.run("chmod", "666", "/run/inferd/inferd.sock")
        try:
            self.assertNotEqual(0, self.ask(user=STRANGER, check=False).returncode)
        finally:
            self.machine.run("chmod", "660", "/run/inferd/inferd.sock")
        uid = self.machine.run("id", "-u", STRANGER).stdout.strip()
        self.assertIn("a connection of uid %s " % uid, self.machine.journal("inferd", mark))

    # ---- reload, end

    def test_reload_applies_options_without_restart(self):
        for unit in ("weightd", "inferd"):
            pid, mark = self.machine.pid(unit), self.machine.mark()
            self.configure(unit, log_level='"debug"')
            self.machine.run("systemctl", "reload", unit)
            self.assertIn("log-level=debug", self.machine.journal(unit, mark))
            self.assertEqual((pid, "active"), (self.machine.pid(unit), self.machine.show(unit, "ActiveState")))

    def test_stop_lets_a_running_answer_end(self):
        """The answer's journal line follows the stop: the answer was finished."""
        for _ in range(20):
            mark = self.machine.mark()
            client = self.machine.start(
                "sluice", "run", "--address", CLIENTS, "--pack", PACK, "--prompt", "Once", "-n", "900",
                "--ignore-eos", "--json", user=MEMBER,
            )  # fmt: skip
            self.machine.wait_until(
                lambda: json.loads(self.machine.run(
                    "sluice", "top", "--weightd", "/run/weightd/weightd.sock",
                    "--admin", "/run/inferd/inferd-admin.sock", "--json", "-n", "1").stdout)["inferd"].get("running", 0) > 0
                or client.poll() is not None, "the answer to begin")
            self.machine.run("systemctl", "stop", "inferd")
            out, err = client.communicate(timeout=machine.PATIENCE)
            self.assertEqual("success", self.machine.show("inferd", "Result"))
            journal = self.machine.journal("inferd", mark)
            self.machine.run("systemctl", "reset-failed", "inferd")  # else the fifth start exceeds the start limit
            self.machine.run("systemctl", "start", "inferd")
            ending, answered = journal.find("ending: ended by a signal"), journal.find("completion=900")
            if 0 <= ending < answered:
                self.assertEqual(0, client.returncode, err)
                self.assertEqual(900, json.loads(out)["usage"]["completion_tokens"])
                return
        self.fail("no answer was running when inferd was stopped")

    def test_stop_ends_well(self):
        self.ask()
        self.machine.run("systemctl", "stop", "inferd", "weightd")
        for unit in ("weightd", "inferd"):
            self.assertEqual("success", self.machine.show(unit, "Result"))
            self.assertEqual("0", self.machine.show(unit, "ExecMainStatus"))

    # ---- sandbox, journal

    def test_sandbox_is_enforced_and_sufficient(self):
        for unit in ("weightd", "inferd"):
            status = self.machine.read("/proc/%d/status" % self.machine.pid(unit))
            for line in ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
                self.assertIn(line, status, unit)
        self.ask()
        # io_uring works in the sandbox, and no call was refused by the filter.
        self.assertIn("(uring, O_DIRECT)", self.machine.journal("weightd"))
        for unit in ("weightd", "inferd"):
            self.assertNotIn("Operation not permitted", self.machine.journal(unit))
            found = self.machine.run("systemd-analyze", "security", "--no-pager", unit + ".service").stdout
            exposure = float(re.search(r"exposure level for \S+: ([0-9.]+)", found).group(1))
            print("%s: exposure %.1f" % (unit, exposure))
            self.assertLessEqual(exposure, 3.0)

    def test_metrics_answer_on_sandbox_loopback(self):
        for unit, port in (("weightd", 9400), ("inferd", 9401)):
            self.configure(unit, metrics='"127.0.0.1:%d"' % port)
            self.machine.run("systemctl", "restart", unit)
            ask = "exec 3<>/dev/tcp/127.0.0.1/%d; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3" % port
            self.assertIn(unit + "_build_info{", self.machine.run("bash", "-c", ask).stdout)

    def test_journal_knows_how_grave_a_line_is(self):
        mark = self.machine.mark()
        self.configure("weightd", threads="2")
        self.machine.run("systemctl", "reload", "weightd")
        self.assertEqual([WARNING], self.priorities("weightd", mark, "threads needs a restart"))
        self.configure("weightd", no_such_option="1")
        self.machine.run("systemctl", "reload", "weightd")
        self.assertEqual([ERROR], self.priorities("weightd", mark, "those in effect stay"))
        self.machine.run("systemctl", "restart", "inferd")
        for priority in self.priorities("inferd", mark, "serving"):
            self.assertIn(priority, NOTICE_OR_LESS)
        # The journal adds the time itself.
        self.assertNotRegex(self.machine.journal("inferd", mark), r"(?m)^20\d\d-\d\d-\d\dT")


if __name__ == "__main__":
    unittest.main(verbosity=2)
