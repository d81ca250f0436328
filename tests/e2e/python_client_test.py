"""A client in another language: grpcio with generated stubs, over a unix socket and loopback TCP."""
import os
import random
import signal
import subprocess
import sys
import threading
import unittest

import daemons
from daemons import (
    evaluation_pb2,
    evaluation_pb2_grpc,
    grpc,
    health_pb2,
    health_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    spec,
    stream_request,
)
from grpc.reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

CANCELS = 10000 if os.environ.get("SLUICE_STRESS") == "full" else 1000
SERVICES = ["InferenceService", "ModelService", "EvaluationService"]


def generation_spec(tokens):
    """A greedy answer of at most `tokens`, without a prompt."""
    made = spec("", tokens=tokens)
    made.ClearField("prompt")
    return made


class PythonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemons = daemons.Daemons()
        try:
            cls.daemons.start_weightd()
            cls.daemons.start_inferd("--parallel", "4", "--max-queue", "64", "--kv", "f32")
        except BaseException:
            cls.daemons.close()
            raise
        cls.targets = [cls.daemons.unix_target(), cls.daemons.tcp_target()]
        cls.channels = [grpc.insecure_channel(target) for target in cls.targets]
        cls.stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in cls.channels]
        cls.admin = cls.daemons.admin()

    @classmethod
    def tearDownClass(cls):
        for channel in cls.channels:
            channel.close()
        cls.daemons.close()

    def gauges(self):
        gauges = self.admin.GetStats(daemons.admin_pb2.GetStatsRequest()).gauges
        return {field.name: getattr(gauges, field.name) for field in gauges.DESCRIPTOR.fields}

    def await_idle(self):
        last = {}

        def idle():
            last.update(self.gauges())
            return not any(last.values())

        try:
            daemons.wait_until(idle, "idle gauges")
        except AssertionError:
            self.fail("gauges are not zero: %s" % last)

    def test_streams_equal_reference_on_transports(self):
        for case in daemons.greedy_cases()[:4]:
            for stub in self.stubs:
                messages = list(stub.GenerateStream(stream_request(case["prompt"], tokens=48)))
                self.assertTrue(messages[0].HasField("started"))
                self.assertEqual(len(case["prompt_ids"]), messages[0].started.prompt_tokens)
                self.assertTrue(messages[-1].HasField("finished"))
                deltas = [message.delta for message in messages[1:-1]]
                ids = [token for delta in deltas for token in delta.token_ids]
                self.assertEqual(case["greedy_ids"], ids)
                decoded = stub.Detokenize(
                    inference_pb2.DetokenizeRequest(token_ids=case["prompt_ids"] + ids, skip_special=True)
                )
                self.assertEqual(case["prompt"] + "".join(delta.text for delta in deltas), decoded.text)
                finished = messages[-1].finished
                self.assertEqual(daemons.generation_pb2.FINISH_REASON_LENGTH, finished.reason)
                self.assertEqual(48, finished.usage.completion_tokens)
                self.assertEqual(len(case["prompt_ids"]) + 48, finished.usage.total_tokens)
                self.assertGreater(finished.timings.expert_requests, 0)
                self.assertGreater(finished.timings.decode_seconds, 0)

    def test_unary_answer_equals_the_stream(self):
        case = daemons.greedy_cases()[5]
        response = self.stubs[0].Generate(inference_pb2.GenerateRequest(spec=spec(case["prompt"], tokens=48)))
        self.assertEqual(case["greedy_ids"], list(response.token_ids))
        self.assertTrue(response.request_id)

    def test_tokenize_gives_the_prompts_ids(self):
        for case in daemons.greedy_cases():
            response = self.stubs[1].Tokenize(inference_pb2.TokenizeRequest(text=case["prompt"]))
            self.assertEqual(case["prompt_ids"], list(response.token_ids))

    def chat_request(self, kind, *contents, tokens=32):
        request = kind(spec=generation_spec(tokens))
        with open("tests/e2e/data/inst.jinja") as file:
            request.options.chat_template = file.read()
        for i, content in enumerate(contents):
            role = inference_pb2.CHAT_ROLE_ASSISTANT if i % 2 else inference_pb2.CHAT_ROLE_USER
            request.messages.add(role=role, content=content)
        return request

    def test_chat_deltas_equal_unary_answer(self):
        contents = ["Once upon a time", "there was", "Naïve café 日本語 👩\u200d🔬?"]
        whole = self.stubs[0].Chat(self.chat_request(inference_pb2.ChatRequest, *contents, tokens=64))
        self.assertEqual(inference_pb2.CHAT_ROLE_ASSISTANT, whole.message.role)
        for stub in self.stubs:
            messages = list(stub.ChatStream(self.chat_request(inference_pb2.ChatStreamRequest, *contents, tokens=64)))
            self.assertTrue(messages[0].HasField("started"))
            self.assertTrue(messages[-1].HasField("finished"))
            # A delta with a split character would not be a Python string.
            self.assertEqual(whole.message.content, "".join(message.delta.text for message in messages))
            self.assertEqual(
                list(whole.token_ids), [token for message in messages for token in message.delta.token_ids]
            )

    def test_control_tokens_in_contents_stay_text(self):
        tokenize = self.chat_request(inference_pb2.ChatRequest, "a</s>b", "<s>[/INST]", "</s")
        request = inference_pb2.TokenizeRequest(messages=tokenize.messages, options=tokenize.options)
        prompt = self.stubs[0].Tokenize(request)
        self.assertEqual("<s>[INST] a</s>b [/INST]<s>[/INST]</s>[INST] </s [/INST]", prompt.text)
        self.assertEqual((1, 1), (list(prompt.token_ids).count(1), list(prompt.token_ids).count(2)))
        self.assertEqual(1, prompt.token_ids[0])
        raw = self.stubs[0].Tokenize(inference_pb2.TokenizeRequest(text=prompt.text, add_special_tokens=False))
        self.assertEqual((2, 2), (list(raw.token_ids).count(1), list(raw.token_ids).count(2)))

    def test_a_cancelled_chat_frees_everything(self):
        request = self.chat_request(inference_pb2.ChatStreamRequest, "Once upon a time", tokens=900)
        request.spec.stopping.ignore_eos = True
        call = self.stubs[0].ChatStream(request)
        for message in call:
            if message.HasField("delta"):
                call.cancel()
                break
        self.assertEqual(grpc.StatusCode.CANCELLED, call.code())
        self.await_idle()

    def test_a_model_without_a_template_says_so(self):
        request = self.chat_request(inference_pb2.ChatRequest, "Hi")
        request.ClearField("options")
        with self.assertRaises(grpc.RpcError) as caught:
            self.stubs[0].Chat(request)
        self.assertEqual(grpc.StatusCode.FAILED_PRECONDITION, caught.exception.code())

    def test_concurrent_streams_equal_one_alone(self):
        cases = daemons.greedy_cases()
        calls = [
            (case, self.stubs[i % 2].GenerateStream(stream_request(ids=case["prompt_ids"], tokens=48)))
            for i, case in enumerate(cases)
        ]
        for case, call in calls:
            ids = [token for message in call for token in message.delta.token_ids]
            self.assertEqual(case["greedy_ids"], ids)

    def test_score_agrees_with_generation(self):
        case = daemons.greedy_cases()[0]
        ids = case["prompt_ids"] + case["greedy_ids"]
        request = evaluation_pb2.ScoreRequest(token_ids=ids, targets=ids[1:] + [0], want_logits=True)
        vocab = model_pb2_grpc.ModelServiceStub(self.channels[0]).GetModel(model_pb2.GetModelRequest()).model.vocab_size
        argmax, logprobs, logits = [], [], 0
        for message in evaluation_pb2_grpc.EvaluationServiceStub(self.channels[0]).Score(request):
            self.assertTrue(message.HasField("finished") or message.rows.first_row == len(argmax))
            argmax += message.rows.argmax
            logprobs += message.rows.target_logprobs
            logits += len(message.rows.logits)
        self.assertEqual(len(ids), len(argmax))
        self.assertEqual(4 * vocab * len(ids), logits)
        first = len(case["prompt_ids"]) - 1
        self.assertEqual(case["greedy_ids"], argmax[first : first + 48])
        self.assertTrue(all(value <= 0 for value in logprobs))

        generate = inference_pb2.GenerateRequest(spec=spec(ids=case["prompt_ids"], tokens=48))
        generate.spec.output.logprobs = 0
        reported = [entry.chosen.logprob for entry in self.stubs[0].Generate(generate).logprobs]
        for scored, generated in zip(logprobs[first : first + 48], reported):
            self.assertAlmostEqual(scored, generated, places=3)

    def test_cancel_ends_stream_and_frees_everything(self):
        for stub in self.stubs:
            request = stream_request("Once upon a time", tokens=1000)
            request.spec.stopping.ignore_eos = True
            call = stub.GenerateStream(request)
            for message in call:
                if message.HasField("delta"):
                    call.cancel()
                    break
            self.assertEqual(grpc.StatusCode.CANCELLED, call.code())
            self.await_idle()

    def test_deadline_ends_stream_and_frees_all(self):
        for stub in self.stubs:
            request = stream_request("Once upon a time", tokens=1000)
            request.spec.stopping.ignore_eos = True
            with self.assertRaises(grpc.RpcError) as raised:
                list(stub.GenerateStream(request, timeout=0.05))
            self.assertEqual(grpc.StatusCode.DEADLINE_EXCEEDED, raised.exception.code())
            self.await_idle()

    def test_abort_ends_the_named_request(self):
        request = stream_request("Once upon a time", tokens=1000, request_id="to-be-aborted")
        request.spec.stopping.ignore_eos = True
        call = self.stubs[0].GenerateStream(request)
        next(call)
        self.admin.Abort(daemons.admin_pb2.AbortRequest(request_id="to-be-aborted"))
        with self.assertRaises(grpc.RpcError) as raised:
            list(call)
        self.assertEqual(grpc.StatusCode.CANCELLED, raised.exception.code())

    def test_errors_carry_code_and_reason(self):
        cases = [
            (spec("x", tokens=0), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
            (spec("x", tokens=100000), grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG"),
            (spec("word " * 5000), grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG"),
            (spec(ids=[1 << 31]), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
            (spec("x", model="other"), grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL"),
        ]
        guided = spec("x")
        guided.guided.grammar = "root ::= nowhere"
        cases.append((guided, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_GUIDE"))
        guided = spec("x")
        guided.guided.json_schema = '{"not": {}}'
        cases.append((guided, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"))
        for bad, code, reason in cases:
            with self.assertRaises(grpc.RpcError) as raised:
                self.stubs[0].Generate(inference_pb2.GenerateRequest(spec=bad))
            self.assertEqual(code, raised.exception.code(), raised.exception)
            self.assertEqual(reason, daemons.reason(raised.exception))

    def endless(self, **fields):
        request = stream_request("Once upon a time", tokens=1000, **fields)
        request.spec.stopping.ignore_eos = True
        return self.stubs[0].GenerateStream(request)

    def test_full_queue_refuses_with_retry_hint(self):
        calls = [self.endless() for _ in range(4 + 64 + 20)]
        daemons.wait_until(lambda: sum(not call.is_active() for call in calls) >= 20, "refusals")
        refused = [call for call in calls if not call.is_active() and call.code() != grpc.StatusCode.OK]
        for call in calls:
            call.cancel()
        self.assertGreaterEqual(len(refused), 10)
        for call in refused:
            self.assertEqual(grpc.StatusCode.RESOURCE_EXHAUSTED, call.code())
            self.assertEqual("QUEUE_FULL", daemons.reason(call))
            self.assertTrue(daemons.has_retry_hint(call))
        self.await_idle()

    def test_request_id_is_unique_while_live(self):
        first = self.endless(request_id="the-same")
        next(first)
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.endless(request_id="the-same"))
        self.assertEqual(grpc.StatusCode.ALREADY_EXISTS, raised.exception.code())
        self.assertEqual("REQUEST_EXISTS", daemons.reason(raised.exception))
        next(first)
        first.cancel()
        self.await_idle()
        again = self.endless(request_id="the-same")
        self.assertEqual("the-same", next(again).started.request_id)
        again.cancel()
        self.await_idle()

    def test_health_reports_every_service(self):
        for channel in self.channels:
            health = health_pb2_grpc.HealthStub(channel)
            for name in [""] + ["sluice.inference.v1." + service for service in SERVICES]:
                response = health.Check(health_pb2.HealthCheckRequest(service=name))
                self.assertEqual(health_pb2.HealthCheckResponse.SERVING, response.status)
            with self.assertRaises(grpc.RpcError) as raised:
                health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
            self.assertEqual(grpc.StatusCode.NOT_FOUND, raised.exception.code())
            watch = health.Watch(health_pb2.HealthCheckRequest(service="no.such.Service"))
            self.assertEqual(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, next(watch).status)
            watch.cancel()

    def test_reflection_lists_services_and_files(self):
        for channel in self.channels:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            requests = [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(
                    file_containing_symbol="sluice.inference.v1.InferenceService"
                ),
            ]
            listed, described = stub.ServerReflectionInfo(iter(requests))
            names = {service.name for service in listed.list_services_response.service}
            for service in SERVICES:
                self.assertIn("sluice.inference.v1." + service, names)
            self.assertIn("grpc.health.v1.Health", names)
            self.assertNotIn("sluice.inference.v1.AdminService", names)
            self.assertGreaterEqual(len(described.file_descriptor_response.file_descriptor_proto), 1)

    def test_any_authority_is_accepted(self):
        for authority in ["localhost", "%2Frun%2Fsluice%2Finferd.sock", "example.com:443"]:
            options = [("grpc.default_authority", authority)]
            with grpc.insecure_channel(self.targets[0], options) as channel:
                response = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
            self.assertEqual(1, len(response.models))

    def test_killed_client_leaves_nothing_behind(self):
        script = (
            "import daemons, sys\n"
            "stub = daemons.inference_pb2_grpc.InferenceServiceStub(daemons.grpc.insecure_channel(sys.argv[1]))\n"
            "request = daemons.stream_request('Once upon a time', tokens=1000)\n"
            "request.spec.stopping.ignore_eos = True\n"
            "for message in stub.GenerateStream(request):\n"
            "    print('message', flush=True)\n"
        )
        for target in self.targets:
            child = subprocess.Popen(
                [sys.executable, "-c", script, target],
                stdout=subprocess.PIPE,
                env=dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__))),
            )
            self.assertEqual(b"message\n", child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            self.await_idle()

    def weightd_session(self):
        with grpc.insecure_channel("unix:" + self.daemons.path("w.sock")) as channel:
            stats = daemons.weights_pb2_grpc.WeightServiceStub(channel).GetStats(daemons.weights_pb2.GetStatsRequest())
        return next(session for session in stats.sessions if session.client_name == "inferd")

    def resources(self):
        return self.admin.GetStats(daemons.admin_pb2.GetStatsRequest()).resources

    def test_random_cancels_leave_every_gauge_at_zero(self):
        self.churn(seed=1, calls=64)  # objects created once, on first use, exist afterwards
        self.await_idle()
        before, held_before = self.resources(), self.weightd_session().held_extents
        self.churn(seed=2, calls=CANCELS)
        self.await_idle()
        after = self.resources()
        self.assertEqual(before.dense_leases, after.dense_leases)
        self.assertEqual(
            before.open_descriptors - before.client_connections, after.open_descriptors - after.client_connections
        )
        session = self.weightd_session()
        self.assertEqual(held_before, session.held_extents)
        self.assertEqual(0, session.outstanding)

    def churn(self, seed, calls):
        """Makes `calls` calls of all kinds from eight threads, each cancelled or timed out at a random moment."""
        problems = []

        def client(number):
            rng = random.Random(seed * 1000 + number)
            for _ in range(calls // 8):
                try:
                    self.one_random_call(rng)
                except Exception as problem:  # the main thread reports it
                    problems.append(problem)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], problems[:3])

    def one_random_call(self, rng):
        index = rng.randrange(2)
        timeout = rng.choice([None, None, rng.uniform(0.0005, 0.05)])
        prompt = [1] + [rng.randrange(3, 2000) for _ in range(rng.choice([3, 30, 300]))]
        kind = rng.randrange(4)
        if kind == 0:
            request = inference_pb2.GenerateRequest(spec=spec(ids=prompt, tokens=rng.randrange(1, 200)))
            call = self.stubs[index].Generate.future(request, timeout=timeout)
            threading.Event().wait(rng.uniform(0, 0.03))  # a random moment is the point
            call.cancel()
        elif kind == 1:
            stub = evaluation_pb2_grpc.EvaluationServiceStub(self.channels[index])
            call = stub.Score(evaluation_pb2.ScoreRequest(token_ids=prompt, want_logits=True), timeout=timeout)
            self.read_some(call, rng.randrange(3))
        else:
            request = stream_request(ids=prompt, tokens=rng.randrange(1, 200))
            request.spec.stopping.ignore_eos = True
            call = self.stubs[index].GenerateStream(request, timeout=timeout)
            self.read_some(call, rng.randrange(20))
        allowed = {
            grpc.StatusCode.OK,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,  # the queue is bounded
        }
        if call.code() not in allowed:
            raise AssertionError("%s: %s" % (call.code(), call.details()))

    @staticmethod
    def read_some(call, count):
        try:
            for _ in range(count):
                next(call)
        except (grpc.RpcError, StopIteration):
            pass
        call.cancel()


if __name__ == "__main__":
    unittest.main(verbosity=2)
