"""The clients of deploy/examples against real daemons: each prints the server's answer."""
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from http_test import SAY, HttpEndpoint, http_arguments  # noqa: E402

EXAMPLES = "deploy/examples/"
GO_GRPC = "/usr/share/gocode/src/google.golang.org/grpc"


class ExamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemons = daemons.Daemons()
        try:
            cls.daemons.start_weightd()
            cls.daemons.start_inferd(*http_arguments())
        except BaseException:
            cls.daemons.close()
            raise
        cls.port = int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", cls.daemons.inferd.text()).group(1))
        completion = {"prompt": SAY[0]["content"], "max_tokens": 32, "temperature": 0}
        cls.answer = HttpEndpoint(cls.port).post("/v1/completions", completion)["choices"][0]["text"]

    @classmethod
    def tearDownClass(cls):
        cls.daemons.close()

    def run_example(self, *command):
        env = {**os.environ, "PYTHONPATH": daemons.STUBS}
        result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=daemons.PATIENCE)
        self.assertEqual(0, result.returncode, result.stderr)
        return result.stdout

    def test_http_in_python(self):
        chat = {"messages": SAY, "max_tokens": 32, "temperature": 0}
        said = HttpEndpoint(self.port).post("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
        out = self.run_example(sys.executable, EXAMPLES + "chat_http.py", "http://127.0.0.1:%d/v1" % self.port)
        self.assertTrue(out.startswith(said + "\n"), out)
        self.assertRegex(out.splitlines()[-1], r"^\{'name': .*'age': \d+\}$")

    def test_grpc_in_python(self):
        out = self.run_example(sys.executable, EXAMPLES + "generate_grpc.py", self.daemons.unix_target())
        self.assertEqual(self.answer + "\n32 tokens\n", out)

    def test_grpc_in_cpp(self):
        program = os.path.join(daemons.BIN, "example_generate_grpc")
        self.assertEqual(self.answer + "\n32 tokens\n", self.run_example(program, self.daemons.unix_target()))

    @unittest.skipUnless(os.path.isdir(GO_GRPC) and shutil.which("go"), "no Go, which only this client needs")
    def test_grpc_in_go(self):
        program = self.daemons.path("generate_grpc")
        subprocess.run([EXAMPLES + "build_go.sh", program], check=True)
        self.assertEqual(self.answer + "\n32 tokens\n", self.run_example(program, self.daemons.unix_target()))


if __name__ == "__main__":
    unittest.main()
