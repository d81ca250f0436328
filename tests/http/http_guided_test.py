"""Structured output over HTTP, of real daemons and the sample model, verified with Python's json, jsonschema and re."""
import json
import os
import re
import sys
import threading
import unittest

import jsonschema

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
from guided_test import ANSWERS, fifty_fields  # noqa: E402
from http_test import SAY, HttpEndpoint, http_arguments  # noqa: E402

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NEWS = {
    "name": "get_news",
    "parameters": {
        "type": "object",
        "properties": {"day": {"type": "integer", "minimum": 1, "maximum": 31}},
        "required": ["day"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, NEWS)]


class HttpGuidedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemons = daemons.Daemons()
        try:
            cls.daemons.start_weightd()
            cls.daemons.start_inferd(*http_arguments("--parallel", "8", "--max-queue", "256", "--context", "1024"))
        except BaseException:
            cls.daemons.close()
            raise
        log = cls.daemons.inferd.text()
        cls.port = int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", log).group(1))

    @classmethod
    def tearDownClass(cls):
        cls.daemons.close()

    def chat(self, **members):
        body = {"messages": SAY, "max_tokens": 900, "temperature": 1, "seed": 1, **members}
        return HttpEndpoint(self.port).post("/v1/chat/completions", body)["choices"][0]

    def test_fifty_field_schema_answers_are_valid(self):
        schema = fifty_fields()
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["regex"]))
        asked = {"type": "json_schema", "json_schema": {"name": "fields", "strict": True, "schema": schema}}
        seeds = list(range(ANSWERS))
        valid = []

        def client():
            while seeds:
                choice = self.chat(seed=seeds.pop(), response_format=asked)
                value = json.loads(choice["message"]["content"])
                validator.validate(value)
                valid.append((choice["finish_reason"], list(value) == list(schema["properties"])))

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([("stop", True)] * ANSWERS, valid)

    def test_every_constraint_kind_holds(self):
        def is_object(text):
            return isinstance(json.loads(text), dict)

        def of(pattern):
            return lambda text: re.fullmatch(pattern, text)

        schema = WEATHER["parameters"]
        city = of(r'\{"city": "(Paris|Rome)"\}')
        bounded = {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "boolean"},
                   "propertyNames": {"maxLength": 4}}  # fmt: skip
        for members, good in [
            ({"response_format": {"type": "json_object", "schema": bounded}}, is_object),
            ({"guided_json": schema}, city),
            ({"json_schema": schema}, city),
            ({"guided_regex": "[a-c]{3}-[0-9]{2}"}, of("[a-c]{3}-[0-9]{2}")),
            ({"structured_outputs": {"choice": ["yes", "no"]}}, of("yes|no")),
            ({"guided_choice": ["yes", "no"]}, of("yes|no")),
            ({"guided_grammar": 'root ::= "a" [0-9] "z"'}, of("a[0-9]z")),
            ({"grammar": 'root ::= "a" [0-9] "z"'}, of("a[0-9]z")),
        ]:
            whole = self.chat(**members)
            self.assertTrue(good(whole["message"]["content"]), (members, whole))
            self.assertEqual("stop", whole["finish_reason"])
            body = {"messages": SAY, "max_tokens": 900, "temperature": 1, "seed": 1, **members}
            events = HttpEndpoint(self.port).events("/v1/chat/completions", body)
            text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
            self.assertEqual(whole["message"]["content"], text)
            completion = {"prompt": "It is ", "max_tokens": 900, "temperature": 1, "seed": 2, **members}
            self.assertTrue(good(HttpEndpoint(self.port).post("/v1/completions", completion)["choices"][0]["text"]))
        free = self.chat(response_format={"type": "json_object"}, max_tokens=60)["message"]["content"]
        self.assertTrue(free.startswith("{"), free)

    def test_forced_calls_use_offered_tools(self):
        for choice, names in [
            ("required", {"get_weather", "get_news"}),
            ({"type": "function", "function": {"name": "get_news"}}, {"get_news"}),
        ]:
            for seed in range(4):
                got = self.chat(tools=TOOLS, tool_choice=choice, seed=seed, n=2)
                self.assertEqual("tool_calls", got["finish_reason"], got)
                (call,) = got["message"]["tool_calls"]
                self.assertIn(call["function"]["name"], names)
                schema = {one["name"]: one for one in (WEATHER, NEWS)}[call["function"]["name"]]["parameters"]
                jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
        endpoint = HttpEndpoint(self.port)
        message = {"max_tokens": 300, "messages": SAY, "temperature": 1}
        weather = {"name": "get_weather", "input_schema": WEATHER["parameters"]}
        got = endpoint.post("/v1/messages", {**message, "tools": [weather], "tool_choice": {"type": "any"}})
        self.assertEqual("tool_use", got["stop_reason"])
        self.assertIn(got["content"][-1]["input"]["city"], ("Paris", "Rome"))
        form = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER["parameters"]}}
        got = endpoint.post("/v1/responses", {"input": "Where?", "text": form, "max_output_tokens": 100})
        self.assertIn(json.loads(got["output"][0]["content"][0]["text"])["city"], ("Paris", "Rome"))

    def test_what_cannot_be_kept_is_refused_by_name(self):
        for members, param, word in [
            ({"guided_json": {"type": "object", "not": {"required": ["a"]}}}, "guided_json", "not"),
            ({"guided_json": {"type": "hiccup"}}, "guided_json", "type"),
            ({"guided_regex": "(?=a)b"}, "guided_regex", ""),
            ({"guided_grammar": "root ::= other"}, "guided_grammar", ""),
            ({"guided_choice": []}, "guided_choice", ""),
            (
                {"tools": [{"type": "function", "function": {**NEWS, "parameters": {"type": "object", "if": {}}}}],
                 "tool_choice": "required"}, "tools[0].function.parameters", "if",
            ),
        ]:  # fmt: skip
            for stream in (False, True):
                body = {"messages": SAY, "max_tokens": 20, "stream": stream, **members}
                status, _, answer = HttpEndpoint(self.port).ask("POST", "/v1/chat/completions", body)
                self.assertEqual((400, param), (status, answer["error"]["param"]), answer)
                self.assertIn(word, answer["error"]["message"])
        metrics = HttpEndpoint(self.port).ask("GET", "/metrics")[2]
        self.assertRegex(metrics, r'\ninferd_grammars_total\{outcome="refused"\} [1-9]')
        self.assertRegex(metrics, r"\ninferd_grammar_masks_total [0-9]+\n")
        self.assertRegex(metrics, r"\ninferd_grammars_waiting 0\n")


if __name__ == "__main__":
    unittest.main()
