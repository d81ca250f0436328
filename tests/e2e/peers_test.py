"""Peer access to the daemons' sockets: another real user, by the allow lists in effect."""
import os
import signal
import subprocess
import sys
import unittest

import daemons
from fake_manager import FakeManager

NOBODY = 65534
GROUP = 4242
# Prints the reaction of the daemon to HTTP/2's preface or to an invalid HELLO: an answer or a close.
ASK = """
import socket, sys
s = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))
s.settimeout(30)
s.connect(sys.argv[1])
try:
    s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    print('served' if s.recv(9) else 'refused')
except (BrokenPipeError, ConnectionResetError):
    print('refused')
"""


@unittest.skipUnless(os.geteuid() == 0, "not run: only root can be somebody else")
class PeersTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.manager = FakeManager(self.daemons.path("notify"))
        self.addCleanup(self.manager.close)
        os.chmod(self.daemons.dir, 0o755)
        self.environment = {**os.environ, "NOTIFY_SOCKET": self.daemons.path("notify")}
        self.lists = {}

    def config(self, program):
        return self.daemons.path(program + ".toml")

    def write(self, program, allowed):
        """The config file with `allowed`, lines of TOML, in it."""
        lines = {
            "weightd": ['pack = ["%s"]' % self.daemons.pack, 'socket = "%s"' % self.daemons.path("w.sock")],
            "inferd": [
                'pack = "%s"' % self.daemons.pack,
                'weightd = "%s"' % self.daemons.path("w.sock"),
                'listen = ["unix:%s"]' % self.daemons.path("i.sock"),
                'admin = ["unix:%s"]' % self.daemons.path("a.sock"),
            ],
        }[program]
        with open(self.config(program), "w") as file:
            file.write("\n".join(lines + ['socket-mode = "0666"'] + allowed) + "\n")

    def start(self, program, *allowed):
        self.write(program, list(allowed))
        daemon = daemons.Daemon(
            program, ["--config", self.config(program)], self.daemons.path(program + ".log"), env=self.environment
        )
        setattr(self.daemons, program, daemon)
        self.manager.until("READY=1")

    def reload(self, program, *allowed):
        self.write(program, list(allowed))
        getattr(self.daemons, program).process.send_signal(signal.SIGHUP)
        self.manager.until("RELOADING=1")
        self.manager.until("READY=1")

    def ask(self, name, kind="SOCK_STREAM", uid=NOBODY, groups=()):
        """Returns the result of that user's connection to the socket."""
        result = subprocess.run(
            [sys.executable, "-c", ASK, self.daemons.path(name), kind],
            user=uid, group=uid, extra_groups=groups, cwd="/", capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual("", result.stderr)
        return result.stdout.strip()

    def weightd_says(self, **who):
        return {self.ask("w.sock", **who), self.ask("w.sock.side", "SOCK_SEQPACKET", **who)}

    def refusals(self, program):
        return getattr(self.daemons, program).text().count("a connection of uid %d " % NOBODY)

    def test_weightd_reload_removes_a_user(self):
        self.start("weightd")
        self.assertEqual({"refused"}, self.weightd_says())
        self.assertEqual(2, self.refusals("weightd"))
        self.reload("weightd", "allow-uid = [%d]" % NOBODY)
        self.assertEqual({"served"}, self.weightd_says())
        self.reload("weightd", "allow-group = [%d]" % GROUP)
        self.assertEqual({"refused"}, self.weightd_says())
        self.assertEqual({"served"}, self.weightd_says(groups=[GROUP]))
        self.reload("weightd")
        self.assertEqual({"refused"}, self.weightd_says(groups=[GROUP]))
        self.assertEqual({"served"}, self.weightd_says(uid=0))
        self.assertEqual(0, self.daemons.weightd.stop())

    def test_inferd_reload_removes_a_user(self):
        self.start("weightd")
        self.start("inferd")
        os.chmod(self.daemons.path("a.sock"), 0o666)  # only the list decides
        self.assertEqual("refused", self.ask("i.sock"))
        self.assertEqual("refused", self.ask("a.sock"))
        self.assertEqual(2, self.refusals("inferd"))
        self.reload("inferd", "allow-uid = [%d]" % NOBODY)
        self.assertEqual("served", self.ask("i.sock"))
        self.assertEqual("served", self.ask("a.sock"))
        self.reload("inferd", "allow-group = [%d]" % GROUP)
        self.assertEqual("refused", self.ask("i.sock"))
        self.assertEqual("served", self.ask("i.sock", groups=[GROUP]))
        self.assertEqual("refused", self.ask("a.sock", groups=[GROUP]), "groups are of clients, not of operators")
        self.reload("inferd")
        self.assertEqual("refused", self.ask("i.sock", groups=[GROUP]))
        self.assertEqual("served", self.ask("i.sock", uid=0))
        self.assertEqual(0, self.daemons.inferd.stop())


if __name__ == "__main__":
    unittest.main(verbosity=2)
