"""The prefix cache survives a restart and a kill in --prefix-file: only new tokens are computed, with the same result; a
damaged prefix is computed again; a file of another model is replaced."""
import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from http_test import SAY, HttpEndpoint, http_arguments  # noqa: E402

LONG = [{"role": "user", "content": SAY[0]["content"] + " went to the river and the town " * 30}]


class RestartTest(unittest.TestCase):
    def setUp(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.daemons.start_weightd()
        self.file = self.daemons.path("prefixes")

    def start(self, *more):
        arguments = http_arguments("--context", "1024", "--prefix-file", self.file, *more)
        self.inferd = self.daemons.start_inferd(*arguments)
        log = self.daemons.inferd.text()
        self.endpoint = HttpEndpoint(int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", log).group(1)))

    def stop(self):
        self.assertEqual(0, self.daemons.inferd.stop())
        return self.daemons.inferd.text()

    def ask(self, **members):
        """Returns the answer's text, and the number of cached prompt tokens."""
        answer = self.endpoint.post("/v1/chat/completions", {"messages": LONG, "max_tokens": 24, "temperature": 0, **members})
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_conversation_goes_on_after_a_restart(self):
        self.start()
        self.assertIn("loaded 0 pages and 0 states", self.daemons.inferd.text())
        text, cached = self.ask()
        self.assertLess(cached, 32)
        self.assertRegex(self.stop(), r"\d+ pages and 0 states of cached prefixes are in ")
        self.assertEqual(0o600, os.stat(self.file).st_mode & 0o777)

        self.start()
        self.assertRegex(self.daemons.inferd.text(), r"loaded \d+ pages and 0 states .* 0 records were damaged")
        again, cached = self.ask()
        self.assertEqual(text, again)
        self.assertGreater(cached, 200)
        self.assertEqual((text, 0), self.ask(cache_prompt=False))
        self.assertEqual((text, 0), self.ask(cache_salt="alone"))
        self.stop()

        # Corrupts a byte of the first page.
        with open(self.file, "r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))
        self.start()
        self.assertIn("1 records were damaged", self.daemons.inferd.text())
        self.assertEqual(text, self.ask()[0])
        self.stop()

        self.start("--kv", "f32")  # other values
        self.assertIn("no prefixes are loaded, the file is replaced", self.daemons.inferd.text())
        self.assertLess(self.ask()[1], 32)

    def test_a_killed_server_keeps_its_conversations(self):
        self.start()
        chats = [[{"role": "user", "content": f"{number} " + LONG[0]["content"]}] for number in range(8)]
        texts = [self.ask(messages=chat, cache_salt=chat[0]["content"][0])[0] for chat in chats]
        # Waits until the idle server has saved all: the file grows no more.
        allocated = -1
        while (now := os.stat(self.file).st_blocks) != allocated:
            allocated = now
            time.sleep(0.5)
        self.daemons.inferd.process.kill()
        self.daemons.inferd.process.wait()

        self.start()
        self.assertIn("0 records were damaged", self.daemons.inferd.text())
        for chat, text in zip(chats, texts):
            turn = [*chat, {"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]
            members = {"messages": turn, "max_tokens": 4, "temperature": 0, "cache_salt": chat[0]["content"][0]}
            usage = self.endpoint.post("/v1/chat/completions", members)["usage"]
            self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0.9 * usage["prompt_tokens"])


if __name__ == "__main__":
    unittest.main()
