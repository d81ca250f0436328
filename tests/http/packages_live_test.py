"""Popular client packages against a running server: by hand, since they are not in Debian.

usage: packages_live_test.py URL      (http://127.0.0.1:8080, of a server of deploy/sample)

Needs `pip install openai anthropic langchain-openai llm` in the Python that runs it, and curl. Answers are held against
each other: the same greedy conversation has one answer, whoever asks.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import anthropic
import langchain_openai
import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

URL = sys.argv.pop(1) if len(sys.argv) > 1 else "http://127.0.0.1:8080"
SAY = "The film is a story about a young man who"
MESSAGES = [{"role": "user", "content": SAY}]
TOKENS = 16
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": PARAMETERS}}


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.openai = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
        cls.model = cls.openai.models.list().data[0].id
        cls.options = {"model": cls.model, "max_tokens": TOKENS, "temperature": 0}
        cls.said = cls.openai.chat.completions.create(messages=MESSAGES, **cls.options).choices[0].message.content

    def test_openai_streams_and_counts(self):
        self.assertTrue(self.said.strip())
        stream = self.openai.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **self.options)  # fmt: skip
        chunks = list(stream)
        self.assertEqual(self.said, "".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        self.assertEqual(TOKENS, chunks[-1].usage.completion_tokens)
        answer = self.openai.responses.create(model=self.model, input=SAY, max_output_tokens=TOKENS, temperature=0)
        self.assertEqual(self.said, answer.output_text)
        with self.assertRaises(openai.BadRequestError) as raised:
            self.openai.chat.completions.create(messages=MESSAGES, n=0, model=self.model)
        self.assertEqual("n", raised.exception.param)
        with self.assertRaises(openai.NotFoundError):
            self.openai.models.retrieve("another")

    def test_openai_calls_a_tool_and_parses_a_schema(self):
        choice = self.openai.chat.completions.create(
            messages=MESSAGES, tools=[WEATHER], tool_choice="required", **{**self.options, "max_tokens": 100}).choices[0]  # fmt: skip
        self.assertEqual("tool_calls", choice.finish_reason)
        call = choice.message.tool_calls[0]
        self.assertIn(json.loads(call.function.arguments)["city"], ("Paris", "Rome"))
        history = [*MESSAGES, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
        again = self.openai.chat.completions.create(messages=history, tools=[WEATHER], **self.options)
        self.assertTrue(again.choices)
        schema = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PARAMETERS}}
        answer = self.openai.chat.completions.create(
            messages=MESSAGES, response_format=schema, **{**self.options, "max_tokens": 100})  # fmt: skip
        self.assertIn(json.loads(answer.choices[0].message.content)["city"], ("Paris", "Rome"))

    def test_anthropic(self):
        client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
        asked = {"model": self.model, "max_tokens": TOKENS, "messages": MESSAGES, "extra_body": {"temperature": 0}}
        self.assertEqual(self.said, client.messages.create(**asked).content[0].text)
        with client.messages.stream(**asked) as stream:
            self.assertEqual(self.said, "".join(stream.text_stream))
            self.assertEqual("max_tokens", stream.get_final_message().stop_reason)
        counted = client.messages.count_tokens(model=self.model, messages=MESSAGES)
        self.assertGreater(counted.input_tokens, 5)
        tool = {"name": "weather", "description": "Of a city", "input_schema": PARAMETERS}
        forced = client.messages.create(
            model=self.model, max_tokens=100, messages=MESSAGES, tools=[tool], tool_choice={"type": "any"})  # fmt: skip
        self.assertEqual("tool_use", forced.stop_reason)
        self.assertIn(forced.content[-1].input["city"], ("Paris", "Rome"))
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.create(**{**asked, "max_tokens": 0})

    def test_langchain(self):
        chat = langchain_openai.ChatOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, **self.options)
        self.assertEqual(self.said, chat.invoke(SAY).content)
        joined = None
        for part in chat.stream(SAY, stream_usage=True):
            joined = part if joined is None else joined + part
        self.assertEqual(self.said, joined.content)
        self.assertEqual(TOKENS, joined.usage_metadata["output_tokens"])
        forced = langchain_openai.ChatOpenAI(
            base_url=URL + "/v1", api_key="none", model=self.model, max_tokens=100).bind_tools([WEATHER], tool_choice="any")  # fmt: skip
        call = forced.invoke(SAY).tool_calls[0]
        self.assertIn(call["args"]["city"], ("Paris", "Rome"))
        history = [HumanMessage(SAY), AIMessage("", tool_calls=[call]), ToolMessage("Rain.", tool_call_id=call["id"])]
        self.assertTrue(chat.bind_tools([WEATHER]).invoke(history).response_metadata["finish_reason"])

    def test_llm(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "extra-openai-models.yaml"), "w") as file:
                file.write("- model_id: ours\n  model_name: %s\n  api_base: %s/v1\n" % (self.model, URL))
            command = [os.path.join(os.path.dirname(sys.executable), "llm"), "-m", "ours", "-o", "temperature", "0",
                       "-o", "max_tokens", str(TOKENS), SAY]  # fmt: skip
            env = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
            for more in ([], ["--no-stream"]):
                done = subprocess.run([*command, *more], env=env, capture_output=True, text=True, timeout=60)
                self.assertEqual(self.said.strip(), done.stdout.strip(), done.stderr)

    def test_curl(self):
        body = json.dumps({"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0})
        # As typed by users: without a content type, which then is a form's.
        done = subprocess.run(["curl", "-sS", URL + "/v1/chat/completions", "-d", body], capture_output=True, timeout=60)
        self.assertEqual(self.said, json.loads(done.stdout)["choices"][0]["message"]["content"])
        # A body for which curl sends "Expect: 100-continue".
        long = json.dumps({"messages": [{"role": "user", "content": "x" * 2_000_000}]})
        done = subprocess.run(["curl", "-sS", "-w", "%{http_code}", "-o", "/dev/null", URL + "/v1/chat/completions",
                               "--data-binary", "@-"], input=long.encode(), capture_output=True, timeout=60)  # fmt: skip
        self.assertEqual(b"400", done.stdout)


if __name__ == "__main__":
    unittest.main()
