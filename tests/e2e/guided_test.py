"""Structured output of real daemons, verified with Python's json, jsonschema and re."""
import json
import os
import random
import re
import threading
import unittest

import jsonschema

import daemons
from daemons import generation_pb2, grpc, inference_pb2, inference_pb2_grpc, spec

FULL = os.environ.get("SLUICE_STRESS") == "full"
ANSWERS = 200 if FULL else 24
CANCELS = 500 if FULL else 60
STOP = generation_pb2.FINISH_REASON_STOP


def field_schema(index):
    """Returns a typical schema of a field, of bounded length."""
    kinds = [
        {"type": "string", "maxLength": 12},
        {"type": "integer", "minimum": -20, "maximum": 300},
        {"type": "boolean"},
        {"enum": ["red", "green", "blue", None, 7]},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        {"type": "string", "format": "date"},
        {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 1, "maxLength": 4}]},
        {"$ref": "#/$defs/point"},
    ]
    return kinds[index % len(kinds)]


def fifty_fields():
    names = [f"f{i}" for i in range(50)]
    return {
        "type": "object",
        "properties": {name: field_schema(i) for i, name in enumerate(names)},
        "required": names,
        "additionalProperties": False,
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"const": "no"}},
                "required": ["x", "y"],
                "additionalProperties": False,
            }
        },
    }


class GuidedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemons = daemons.Daemons()
        try:
            cls.daemons.start_weightd()
            cls.daemons.start_inferd("--parallel", "8", "--max-queue", "256", "--context", "1024")
        except BaseException:
            cls.daemons.close()
            raise
        cls.channel = grpc.insecure_channel(cls.daemons.unix_target())
        cls.stub = inference_pb2_grpc.InferenceServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.daemons.close()

    def request(self, guide, seed=0, tokens=900, **sampling):
        made = spec("The answer is ", tokens=tokens)
        made.sampling.temperature = sampling.pop("temperature", 1.0)
        made.sampling.seed = seed
        for name, value in sampling.items():
            setattr(made.sampling, name, value)
        for name, value in guide.items():
            if name == "choice":
                made.guided.choice.texts.extend(value)
            elif name == "json_object":
                made.guided.json_object.SetInParent()
            else:
                setattr(made.guided, name, value)
        return inference_pb2.GenerateRequest(spec=made)

    def answers(self, guide, count, **options):
        calls = [self.stub.Generate.future(self.request(guide, seed, **options)) for seed in range(count)]
        return [call.result() for call in calls]

    def test_fifty_field_schema_answers_are_valid(self):
        schema = fifty_fields()
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["regex"]))
        for answer in self.answers({"json_schema": json.dumps(schema)}, ANSWERS):
            self.assertEqual(answer.finished.reason, STOP, answer.text)
            value = json.loads(answer.text)
            validator.validate(value)
            self.assertEqual(list(value), list(schema["properties"]))

    def test_every_kind_of_schema_gives_valid_answers(self):
        schemas = [
            {"type": "string", "minLength": 3, "maxLength": 5},
            {"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 1e3},
            {"type": "integer", "exclusiveMinimum": 41, "maximum": 43},
            {"type": "integer", "minimum": -1000, "maximum": 1000, "multipleOf": 7},
            {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False, "minItems": 1},
            {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2,
             "propertyNames": {"type": "string", "pattern": "^[a-z]{1,8}$"}},
            {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "null"}}, "maxProperties": 4},
            {"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "v": {"type": "boolean"}},
                        "required": ["kind", "v"]},
                       {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}]},
            {"type": ["boolean", "null"]},
            {"properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"const": [1, {"d": "e/f\u00e9\n"}]}},
             "minProperties": 2},
        ]  # fmt: skip
        for schema in schemas:
            for answer in self.answers({"json_schema": json.dumps(schema)}, 8, tokens=300):
                self.assertEqual(answer.finished.reason, STOP, (schema, answer.text))
                jsonschema.validate(json.loads(answer.text), schema)

    def test_an_object_is_an_object(self):
        whole = 0
        for answer in self.answers({"json_object": True}, 16, tokens=200):
            if answer.finished.reason == STOP:
                self.assertIsInstance(json.loads(answer.text), dict)
                whole += 1
            else:
                self.assertTrue(answer.text.startswith("{"))
        self.assertGreater(whole, 0)

    def test_answers_match_the_whole_regex(self):
        for regex in (r"[A-Z][a-z]{2,8}( [a-z]+){1,3}\.", r"\d{3}-\d{4}", r"(yes|no), (because|but) .{5,30}", r"é{2,4}(ü|x)"):
            for answer in self.answers({"regex": regex}, 8, tokens=200):
                if answer.finished.reason == STOP:
                    self.assertTrue(re.fullmatch(regex, answer.text), (regex, answer.text))

    def test_the_sampler_works_under_a_mask(self):
        choice = ["alpha", "beta", "gamma delta", "é"]
        seen = set()
        for sampling in ({"temperature": 0.0}, {"temperature": 2.0}, {"top_k": 1}, {"top_k": 5}, {"top_p": 0.5},
                         {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"frequency_penalty": 1.0, "top_k": 3}):  # fmt: skip
            for answer in self.answers({"choice": choice}, 6, tokens=30, **sampling):
                self.assertIn(answer.text, choice)
                seen.add(answer.text)
        self.assertGreater(len(seen), 1)
        again = [self.answers({"choice": choice}, 6, tokens=30, temperature=1.5) for _ in range(2)]
        self.assertEqual([a.text for a in again[0]], [a.text for a in again[1]])

    def test_logprobs_are_of_the_unmasked_model(self):
        request = self.request({"choice": ["beta"]}, tokens=30, temperature=0.0)
        request.spec.output.logprobs = 2
        answer = self.stub.Generate(request)
        self.assertEqual(answer.text, "beta")
        for token in answer.logprobs:
            self.assertLess(token.chosen.logprob, 0)
            self.assertGreaterEqual(token.candidates[0].logprob, token.chosen.logprob)

    def test_a_grammar_of_sums(self):
        grammar = 'root ::= term ("+" term){1,3}\nterm ::= [1-9] [0-9]{0,2} | "(" root ")"\n'
        whole = 0
        for answer in self.answers({"grammar": grammar}, 16, tokens=200):
            if answer.finished.reason == STOP:
                self.assertTrue(re.fullmatch(r"[0-9+()]+", answer.text))
                self.assertGreater(eval(answer.text), 1)  # noqa: S307: digits, plus and brackets
                whole += 1
        self.assertGreater(whole, 0)

    def test_what_cannot_be_kept_is_refused_by_name(self):
        for guide, named in (
            ({"json_schema": '{"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}'}, "uniqueItems"),
            ({"json_schema": '{"type": "string"'}, "JSON"),
            ({"json_schema": '{"oneOf": [{"type": "integer"}, {"type": "number"}]}'}, "oneOf"),
            ({"regex": "a\\b"}, "\\b"),
            ({"grammar": "start ::= \"a\""}, "root"),
            ({"choice": []}, "choice"),
        ):
            with self.assertRaises(grpc.RpcError) as raised:
                self.stub.Generate(self.request(guide))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, raised.exception)
            self.assertIn(named, raised.exception.details())
        request = self.request({"regex": "a"})
        request.spec.stopping.min_tokens = 3
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Generate(request)
        self.assertIn("min_tokens", raised.exception.details())

    def test_cancelled_answers_leave_nothing_behind(self):
        shuffled = random.Random(3)
        admin = self.daemons.admin()
        for round in range(CANCELS):
            guide = shuffled.choice([
                {"json_schema": json.dumps(fifty_fields())},
                {"regex": "[a-z ]{%d}" % (round + 20)},  # one that must be compiled
                {"json_object": True},
            ])
            call = self.stub.Generate.future(self.request(guide, seed=round))
            threading.Event().wait(shuffled.random() * 0.03)
            call.cancel()
        def gauges():
            return admin.GetStats(daemons.admin_pb2.GetStatsRequest()).gauges
        daemons.wait_until(lambda: gauges().sequences_running == 0 and gauges().sequences_waiting == 0, "quiet")
        self.assertEqual(self.answers({"choice": ["ok"]}, 1, tokens=10)[0].text, "ok")


if __name__ == "__main__":
    unittest.main()
