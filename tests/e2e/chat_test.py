"""`sluice chat`: in scripts, and with a person at a terminal."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import unittest

import harness

TEMPLATE = harness.DATA + "/inst.jinja"


class Terminal:
    """A program with its own pseudo-terminal as controlling terminal; collects its output in order."""

    def __init__(self, args, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(args[0], args, {**environment, "TERM": "dumb", "NO_COLOR": "1"})
        self.text = ""
        self.seen = 0

    def _read(self, patience):
        if not select.select([self.fd], [], [], patience)[0]:
            raise AssertionError("nothing comes; so far:\n" + self.text)
        try:
            chunk = os.read(self.fd, 65536)
        except OSError:  # the other side is closed
            chunk = b""
        self.text += chunk.decode("utf-8", "replace").replace("\r", "")
        return bool(chunk)

    def expect(self, pattern):
        """Waits for `pattern` behind the previous match; returns the match."""
        while not (match := re.search(pattern, self.text[self.seen :])):
            if not self._read(harness.PATIENCE):
                raise AssertionError(f"ended before {pattern!r}:\n" + self.text)
        self.seen += match.end()
        return match

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait(self):
        """Returns the exit code, once the program has closed its terminal and ended."""
        while self._read(harness.PATIENCE):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ChatTest(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.chat_pack = os.path.join(cls.work, "chat.pack")
        subprocess.run(
            [harness.BIN + "/sluice", "pack", harness.SAMPLE, "--out", cls.chat_pack, "--chat-template", TEMPLATE, "--json"],
            check=True, capture_output=True,
        )  # fmt: skip

    def chat(self, *args, lines=None):
        """Runs `sluice chat` over the pack with a template: (exit code, standard output, standard error)."""
        result = subprocess.run(
            [harness.BIN + "/sluice", "chat", "--pack", self.chat_pack, "--temperature", "0", *map(str, args)],
            env=self.environment, input="".join(line + "\n" for line in lines or []).encode(),
            capture_output=True, timeout=harness.PATIENCE,
        )  # fmt: skip
        return result.returncode, result.stdout.decode(), result.stderr.decode()

    def chat_json(self, *args, lines=None):
        code, out, err = self.chat("--json", *args, lines=lines)
        self.assertEqual(code, 0, err + self.logs())
        return json.loads(out)

    def test_question_equals_rendered_prompt(self):
        chat = self.chat_json("--prompt", "Once upon a time", "-n", 24)
        run = self.ok_json(
            "run", "--pack", self.chat_pack, "--prompt", "<s>[INST] Once upon a time [/INST]", "--no-special",
            "-n", 24, "--temperature", 0,
        )  # fmt: skip
        self.assertEqual(chat["token_ids"], run["token_ids"])
        self.assertEqual(chat["usage"]["prompt_tokens"], run["usage"]["prompt_tokens"])
        self.assertEqual(set(run) | {"messages"}, set(chat))
        self.assertEqual(chat["messages"][0], {"role": "user", "content": "Once upon a time"})
        self.assertEqual(chat["messages"][1], {"role": "assistant", "content": chat["text"]})

    def test_each_line_is_a_question_with_history(self):
        lines = ["One", "", "Two \\", "lines", "/undo", "/system Be brief.", "//slash"]
        answer = self.chat_json("-n", 8, lines=lines)
        roles = [message["role"] for message in answer["messages"]]
        self.assertEqual(roles, ["system", "user", "assistant", "user", "assistant"])
        contents = [message["content"] for message in answer["messages"]]
        self.assertEqual((contents[0], contents[1], contents[3]), ("Be brief.", "One", "/slash"))
        code, out, err = self.chat("-n", 4, "-q", lines=["One", "Two"])
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(len(out.splitlines()), 2)

    def test_template_arguments_reach_the_template(self):
        plain = self.chat_json("--prompt", "Hi", "-n", 1)["usage"]["prompt_tokens"]
        loud = self.chat_json("--prompt", "Hi", "-n", 1, "--template-arg", "shout=true")["usage"]["prompt_tokens"]
        self.assertGreater(loud, plain)
        code, _, err = self.chat("--prompt", "Hi", "--template-arg", "shout")
        self.assertEqual(code, 1)
        self.assertIn("NAME=VALUE", err)

    def test_missing_template_error_names_the_option(self):
        code, out, err = self.sluice("chat", "--pack", self.pack, "--prompt", "Hi", "--json")
        self.assertEqual(code, 1)
        self.assertIn("--chat-template", err)
        self.assertEqual(json.loads(out)["error"]["code"], "FAILED_PRECONDITION")
        answer = self.ok_json("chat", "--pack", self.pack, "--prompt", "Hi", "-n", 2, "--chat-template", TEMPLATE)
        self.assertEqual(len(answer["token_ids"]), 2)

    def test_packing_refuses_unsupported_template(self):
        broken = os.path.join(self.work, "broken.jinja")
        with open(broken, "w") as file:
            file.write("a\n{% include 'x' %}")
        code, _, err = self.sluice("pack", harness.SAMPLE, "--out", self.work + "/no.pack", "--chat-template", broken)
        self.assertEqual(code, 1)
        self.assertIn("line 2: the tag 'include'", err)
        self.assertFalse(os.path.exists(self.work + "/no.pack"))

    def test_full_context_ends_script_with_numbers(self):
        code, _, err = self.chat("--context", 64, lines=["word " * 200])
        self.assertEqual(code, 1)
        self.assertIn("context of 64 tokens", err)

    def terminal(self, *args):
        return Terminal(
            [harness.BIN + "/sluice", "chat", "--pack", self.chat_pack, "--temperature", "0", *map(str, args)],
            self.environment,
        )

    def test_a_conversation_at_a_terminal(self):
        terminal = self.terminal("-n", 6, "--context", 128)
        terminal.expect("> ")
        terminal.send("Once upon a time\n")
        terminal.expect(r"(?s)prompt \d+ tokens.*\n> ")
        terminal.send("/help\n")
        terminal.expect("/clear(?s:.)*\n> ")
        terminal.send("/nonsense\n")
        terminal.expect("is no command(?s:.)*\n> ")
        terminal.send("word " * 200 + "\n")  # more than there is room for: said, and the conversation goes on
        terminal.expect("context of 128 tokens is full(?s:.)*/clear(?s:.)*\n> ")
        terminal.send("/clear\n")
        terminal.expect("forgotten(?s:.)*\n> ")
        terminal.send("And then\n")
        terminal.expect(r"(?s)prompt \d+ tokens.*\n> ")
        terminal.send("\x04")
        self.assertEqual(terminal.wait(), 0, terminal.text)

    def test_ctrl_c_stops_answer_and_twice_exits(self):
        terminal = self.terminal("--ignore-eos", "--threads", 1)
        terminal.expect("> ")
        for _ in range(20):  # an answer of hundreds of tokens may still be over before the signal comes
            terminal.send("Once upon a time\n")
            terminal.expect("Once upon a time\n.")
            terminal.send("\x03")
            if "stopped" in terminal.expect(r"\[stopped|ended by \w+(?s:.)*\n> ").group():
                break
            terminal.send("/clear\n")
            terminal.expect("forgotten")
        else:
            self.fail("no answer was stopped:\n" + terminal.text)
        terminal.expect("\n> ")
        terminal.send("/clear\n")
        terminal.expect("forgotten(?s:.)*\n> ")
        terminal.send("\x03")
        terminal.expect("Ctrl-C once more(?s:.)*\n> ")
        terminal.send("\x03")
        self.assertEqual(terminal.wait(), 0, terminal.text)

    def test_sigterm_ends_the_program(self):
        terminal = self.terminal()
        terminal.expect("> ")
        os.kill(terminal.pid, signal.SIGTERM)
        self.assertEqual(terminal.wait(), 0, terminal.text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
