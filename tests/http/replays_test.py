"""Requests of known clients, taken from their sources, to a model whose template has tools: chat interfaces, coding
assistants, editors, frameworks. Each must be answered, whatever extra fields it has."""
import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from http_test import SAY, HttpEndpoint, http_arguments  # noqa: E402

TEMPLATE = "tests/common/text/data/chat/templates/qwen2_moe_tools.jinja"
SHELL = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
SDK = {
    "User-Agent": "OpenAI/Python 1.99.0", "X-Stainless-Lang": "python", "X-Stainless-Package-Version": "1.99.0",
    "X-Stainless-OS": "Linux", "X-Stainless-Arch": "x64", "X-Stainless-Runtime": "CPython", "X-Stainless-Async": "false",
    "x-stainless-retry-count": "0", "x-stainless-read-timeout": "600", "Accept": "application/json",
}  # fmt: skip


class ReplaysTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemons = daemons.Daemons()
        try:
            subprocess.run(
                [os.path.join(daemons.BIN, "sluice"), "pack", daemons.SAMPLE, "--out", cls.daemons.pack, "--bits", "bf16",
                 "--force", "--chat-template", TEMPLATE], check=True, capture_output=True,
            )  # fmt: skip
            cls.daemons.start_weightd()
            cls.daemons.start_inferd(*http_arguments("--context", "1024"))
        except BaseException:
            cls.daemons.close()
            raise
        cls.port = int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", cls.daemons.inferd.text()).group(1))

    @classmethod
    def tearDownClass(cls):
        cls.daemons.close()

    def setUp(self):
        self.endpoint = HttpEndpoint(self.port)

    def ask(self, path, body, **headers):
        status, _, answer = self.endpoint.ask("POST", path, body, **headers)
        self.assertEqual(200, status, answer)
        return answer

    def events(self, path, body, **headers):
        text = self.ask(path, {**body, "stream": True}, **headers)
        blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
        return [json.loads(line[6:]) for block in blocks for line in block.split("\n")
                if line.startswith("data: ") and line != "data: [DONE]"]  # fmt: skip

    def test_open_webui(self):
        # Without a key it sends an empty one, together with its users' names.
        headers = {"Authorization": "Bearer ", "X-OpenWebUI-User-Name": "A%20B", "X-OpenWebUI-User-Role": "admin"}
        models = self.endpoint.ask("GET", "/v1/models", **headers)[2]
        model = models["data"][0]["id"]
        events = self.events("/v1/chat/completions", {
            "model": model, "stream_options": {"include_usage": True}, "temperature": 0.7, "top_p": 0.9, "max_tokens": 12,
            "frequency_penalty": 0, "seed": 5, "stop": ["</s>"], "logit_bias": {"300": -100}, "top_k": 40, "min_p": 0.05,
            "repeat_penalty": 1.1, "chat_id": "c", "id": "m", "session_id": "s",
            "messages": [{"role": "system", "content": "Be brief."},
                         {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
                         {"role": "assistant", "content": "Hi."}, *SAY],
        }, **headers)  # fmt: skip
        self.assertEqual([], events[-1]["choices"])
        self.assertLessEqual(events[-1]["usage"]["completion_tokens"], 12)
        title = self.ask("/v1/chat/completions", {"model": model, "messages": SAY, "stream": False,
                                                  "max_completion_tokens": 10})  # fmt: skip
        self.assertIsInstance(title["choices"][0]["message"]["content"], str)

    def test_aider(self):
        cached = {"type": "text", "text": "Act as an expert developer.", "cache_control": {"type": "ephemeral"}}
        events = self.events("/v1/chat/completions", {
            "model": self.endpoint.ask("GET", "/v1/models")[2]["data"][0]["id"], "temperature": 0, "max_tokens": 8,
            "messages": [{"role": "system", "content": [cached]}, {"role": "user", "content": "Files:\n```\nx = 1\n```"},
                         {"role": "assistant", "content": "Ok."}, *SAY],
        }, **SDK)  # fmt: skip
        self.assertEqual("assistant", events[0]["choices"][0]["delta"]["role"])

    def test_a_tool_loop_of_an_sdk(self):
        which = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
                 "additionalProperties": False}  # fmt: skip
        tool = {"type": "function", "function": {"name": "weather", "description": "Tells", "parameters": which, "strict": True}}
        chat = {"messages": [*SAY], "tools": [tool], "max_tokens": 100, "seed": 1, "temperature": 1}
        self.ask("/v1/chat/completions", {**chat, "tool_choice": "auto", "parallel_tool_calls": True}, **SDK)
        forced = self.ask("/v1/chat/completions", {**chat, "tool_choice": "required"}, **SDK)
        message = forced["choices"][0]["message"]
        self.assertEqual("tool_calls", forced["choices"][0]["finish_reason"], forced)
        # Message as the SDK returns it, with all fields.
        history = [*SAY, {**message, "annotations": [], "audio": None, "function_call": None},
                   {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}]  # fmt: skip
        self.ask("/v1/chat/completions", {**chat, "messages": history, "max_tokens": 8}, **SDK)

    def test_an_editor_completes(self):
        events = self.events("/v1/completions", {
            "prompt": "The film is", "max_tokens": 8, "temperature": 0.01, "stop": ["\n\n", "<|endoftext|>"], "raw": True,
            "keep_alive": 1800, "options": {},
        })  # fmt: skip
        self.assertEqual("text_completion", events[0]["object"])

    def test_a_coding_assistant_with_messages(self):
        ephemeral = {"cache_control": {"type": "ephemeral"}}
        tool = {"name": "Bash", "description": "Runs a command", "input_schema": {"$schema": "x", **SHELL}}
        body = {
            "max_tokens": 16, "temperature": 1, "metadata": {"user_id": "u"},
            "system": [{"type": "text", "text": "You help.", **ephemeral}, {"type": "text", "text": "Be brief.", **ephemeral}],
            "tools": [tool], "thinking": {"type": "disabled"}, "context_management": {"edits": []},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"},
                                             {"type": "text", "text": "list files", **ephemeral}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                                  {"type": "text", "text": "Sure."},
                                                  {"type": "tool_use", "id": "toolu_1", "name": "Bash",
                                                   "input": {"command": ["ls"]}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b",
                                              "is_error": False, **ephemeral}]},
            ],
        }  # fmt: skip
        headers = {"x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
        self.assertEqual("message", self.ask("/v1/messages?beta=true", body, **headers)["type"])
        kinds = [event["type"] for event in self.events("/v1/messages?beta=true", body, **headers)]
        self.assertEqual(("message_start", "message_delta", "message_stop"), (kinds[0], *kinds[-2:]))
        count = {name: body[name] for name in ("system", "tools", "messages")}
        self.assertGreater(self.ask("/v1/messages/count_tokens?beta=true", count, **headers)["input_tokens"], 50)

    def test_a_coding_assistant_with_responses(self):
        text = lambda role, kind, words: {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}  # noqa: E731
        events = self.events("/v1/responses", {
            "instructions": "You are a coding agent.", "store": False, "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k", "tool_choice": "auto", "parallel_tool_calls": False, "max_output_tokens": 12,
            "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"}, "service_tier": None,
            "tools": [{"type": "function", "name": "shell", "description": "Runs", "strict": False, "parameters": SHELL}],
            "input": [text("developer", "input_text", "Be brief."), text("user", "input_text", "list files"),
                      {"type": "reasoning", "summary": [], "encrypted_content": "x"},
                      {"type": "function_call", "name": "shell", "arguments": "{\"command\": [\"ls\"]}", "call_id": "c1"},
                      {"type": "function_call_output", "call_id": "c1", "output": "a b"},
                      text("assistant", "output_text", "Done."), text("user", "input_text", "thanks")],
        })  # fmt: skip
        self.assertEqual("response.created", events[0]["type"])
        self.assertIn(events[-1]["type"], ("response.completed", "response.incomplete"))
        self.assertEqual(list(range(len(events))), [event["sequence_number"] for event in events])


if __name__ == "__main__":
    unittest.main()
