"""The page at /: served without a key, self-contained, and restricted by policy to its own server. Its behaviour in a
browser is tested by tests/page/browser.py."""
import base64
import hashlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import daemons  # noqa: E402


class PageTest(unittest.TestCase):
    def start(self, *arguments):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.daemons.start_weightd()
        self.daemons.start_inferd("--http", "127.0.0.1:0", *arguments)
        self.port = int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", self.daemons.inferd.text()).group(1))

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=daemons.PATIENCE)
        self.addCleanup(connection.close)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()

    def test_is_complete_and_may_ask_only_its_server(self):
        self.start()
        status, headers, page = self.get("/")
        self.assertEqual((200, "text/html; charset=utf-8"), (status, headers["Content-Type"]))
        self.assertEqual("nosniff", headers["X-Content-Type-Options"])
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        self.assertEqual("'none'", policy["default-src"])
        self.assertEqual("'self'", policy["connect-src"])
        self.assertEqual("'none'", policy["form-action"])
        for tag in ("script", "style"):
            inside = re.findall("<%s>(.*?)</%s>" % (tag, tag), page, re.S)
            self.assertEqual(1, len(inside), tag)
            digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
            self.assertEqual("'sha256-%s'" % digest, policy["%s-src" % tag])
        # Everything is in the page, and nothing needs permissions that the policy denies.
        self.assertEqual([], re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+|@import|url\(", page))
        self.assertEqual([], re.findall(r"<[^>]* (?:on[a-z]+|style)=", page))
        self.assertEqual([], re.findall(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", page))
        self.assertEqual({"data:,", "#question"}, set(re.findall(r'(?:href|src)="([^"]*)"', page)))
        # Every element used by a script exists exactly once.
        for name in set(re.findall(r'byId\("([^"]+)"\)', page)):
            self.assertEqual(1, page.count(' id="%s"' % name), name)
        status, headers, page = self.get("/", "HEAD")
        self.assertEqual((200, ""), (status, page))
        self.assertGreater(int(headers["Content-Length"]), 10000)
        self.assertEqual(405, self.get("/", "POST")[0])
        self.assertEqual(403, self.get("/", Host="evil.example")[0])

    def test_page_needs_no_key_and_is_not_counted(self):
        self.start("--http-keys", self.write_keys())
        self.assertEqual(200, self.get("/")[0])
        self.assertEqual(401, self.get("/metrics")[0])
        key = {"Authorization": "Bearer ann"}
        metrics = [self.get("/metrics", **key)[::2] for _ in range(3)]
        self.assertEqual([200] * 3, [status for status, _ in metrics])
        self.assertEqual([200, 429], [self.get("/v1/models", **key)[0] for _ in range(2)])
        memory = dict(re.findall(r'^inferd_memory_bytes\{part="(\w+)"\} (\d+)$', metrics[-1][1], re.M))
        self.assertEqual({"device_slots", "kv", "private", "weights"}, set(memory))
        self.assertEqual("0", memory["device_slots"])
        # The first token was generated, so weights were read from weightd's memory.
        self.assertGreater(int(memory["weights"]), 1 << 20)
        self.assertGreater(int(memory["kv"]), 0)

    def write_keys(self):
        folder = daemons.tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("ann %s per-minute=1\n" % hashlib.sha256(b"ann").hexdigest())
        return keys


class ServeTest(unittest.TestCase):
    """`sluice serve` prints the page's URL, the memory used, and a line for a shell."""

    def setUp(self):
        self.folder = daemons.tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def serve(self, *more):
        """Returns the command, once it serves, and its port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folders = {"SLUICE_RUNTIME_DIR": os.path.join(self.folder, "run"), "SLUICE_CACHE_DIR": os.path.join(self.folder, "cache")}
        arguments = ["serve", "--model", daemons.SAMPLE, "--http", "127.0.0.1:%d" % port, *more]
        serve = daemons.Daemon("sluice", arguments, os.path.join(self.folder, "log%d" % port), env={**os.environ, **folders})
        self.addCleanup(serve.stop)
        serve.wait_for(r"  try     .*\n")
        return serve, port

    def ask(self, port, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=daemons.PATIENCE)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    def test_past_texts_outlive_it_in_a_file(self):
        file = os.path.join(self.folder, "prefixes")
        body = json.dumps({"messages": [{"role": "user", "content": "The river and the town. " * 30}], "max_tokens": 8, "temperature": 0})
        answers = []
        for _ in range(2):
            # The daemons have their own working directory; the file is in the caller's.
            serve, port = self.serve("--prefix-file", os.path.relpath(file))
            answers.append(self.ask(port, body))
            self.assertEqual(0, serve.stop(signal.SIGINT))
            self.assertEqual(0o600, os.stat(file).st_mode & 0o777)
        first, again = (answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
        self.assertLess(first, 32)
        self.assertGreater(again, 100)
        self.assertEqual(answers[0]["choices"], answers[1]["choices"])

    def test_what_it_says_is_so(self):
        serve, port = self.serve("--parallel", "3")
        text = serve.text()
        self.assertRegex(text, r"sluice: serving \S+ \(mixtral, 6 layers of 8 experts\); Ctrl-C ends it\n")
        self.assertIn("  page    http://127.0.0.1:%d/\n  API     http://127.0.0.1:%d/v1\n" % (port, port), text)
        size = r"\d[\d.]* [KMG]iB"
        memory = r"  memory  weights in DRAM up to {0} of {0} \(of these {0} always\), KV cache {0} for 3 answers of \d+ tokens\n"
        self.assertRegex(text, memory.format(size))
        # The line as parsed by a shell.
        words = shlex.split(re.search(r"  try     (.*)\n", text).group(1))
        self.assertEqual(["curl", "http://127.0.0.1:%d/v1/chat/completions" % port, "-H", "Content-Type: application/json", "-d"], words[:-1])
        self.assertEqual(48, self.ask(port, words[-1])["usage"]["completion_tokens"])
        self.assertEqual(0, serve.stop(signal.SIGINT))


@unittest.skipUnless(shutil.which("node"), "node is not installed")
class ScriptTest(unittest.TestCase):
    def run_script(self, then):
        parts = ["inferd/http/page/ask.js", "inferd/http/page/chat.js", "inferd/http/page/live.js"]
        text = "".join(open(part, encoding="utf-8").read() for part in parts[: 1 if then else 3])
        check = [] if then else ["--check"]
        done = subprocess.run(["node", *check, "-"], input=text + then, capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def test_parses(self):
        self.run_script("")

    def test_events_and_metrics_are_read(self):
        out = self.run_script(
            "const reader = new EventReader();\n"
            "const got = [...reader.push('da'), ...reader.push('ta: {\"a\": 1}\\n\\n: ping\\n\\nda'), ...reader.push('ta: x\\n\\n')];\n"
            "const metrics = parseMetrics('# HELP a b\\na_total 3\\nb{tier=\"ssd\"} 1.5e3\\n');\n"
            "console.log(JSON.stringify([got, metrics, formatBytes(512), formatBytes(1536), formatBytes(200 * 2 ** 20)]));\n"
        )
        expected = '[["{\\"a\\": 1}","x"],{"a_total":3,"b{tier=\\"ssd\\"}":1500},"512 B","1.5 KiB","200 MiB"]\n'
        self.assertEqual(expected, out)


if __name__ == "__main__":
    unittest.main()
