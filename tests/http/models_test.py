"""Several models behind one HTTP port and one gRPC socket: requests by name, states, switches within a budget, idle unloading,
lost daemons, cached prefixes."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402
import grpc  # noqa: E402
import harness  # noqa: E402
from daemons import inference_pb2, model_pb2  # noqa: E402

SAY = [{"role": "user", "content": "The film is a story about a young man who"}]
CHAT = {"messages": SAY, "max_tokens": 16, "temperature": 0}
CLIENTS = 8


def chat_request(model, tokens=16, kind=inference_pb2.ChatRequest, **fields):
    """CHAT for gRPC."""
    request = kind(spec=daemons.generation_pb2.GenerationSpec(model=model, **fields))
    request.spec.sampling.temperature = 0
    request.spec.stopping.max_tokens = tokens
    request.messages.add(role=inference_pb2.CHAT_ROLE_USER, content=SAY[0]["content"])
    return request


def stream_chat(stub, model, **fields):
    """The text of a streamed answer, which must begin and end as it should."""
    events = list(stub.ChatStream(chat_request(model, kind=inference_pb2.ChatStreamRequest, **fields), timeout=120))
    kinds = [event.WhichOneof("event") for event in events]
    if kinds[0] != "started" or kinds[-1] != "finished":
        raise AssertionError(kinds)
    return "".join(event.delta.text for event in events)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=harness.PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except OSError:
            self.sock.close()
            raise


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


class ModelsTest(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = os.path.join(cls.work, "packs")
        os.mkdir(cls.folder)
        template = os.path.join(cls.work, "template")
        with open(template, "w") as file:
            file.write("{% for message in messages %}{{ message.content }} {% endfor %}")
        for name, bits in (("alpha", "bf16"), ("beta", "q8")):
            command = ["pack", harness.SAMPLE, "--out", os.path.join(cls.folder, name), "--bits", bits, "--json"]
            command += ["--chat-template", template]
            subprocess.run([harness.BIN + "/sluice", *command], check=True, capture_output=True)

    def setUp(self):
        super().setUp()
        self.socket = os.path.join(self.runtime, "http.sock")
        self.server = None

    def tearDown(self):
        self.end()
        super().tearDown()

    def serve(self, *args):
        """Starts a server and returns once it answers."""
        self.server = self.start("serve", "--http", "unix:" + self.socket, *args)
        self.wait_for(self.answers, "the server")

    def answers(self):
        if self.server.popen.poll() is not None:
            raise AssertionError(self.server.finish()[2])
        try:
            return os.path.exists(self.socket) and self.ask("GET", "/health")[0] == 200
        except ConnectionRefusedError:  # bound, and not listening yet
            return False

    def serve_folder(self, *args):
        self.serve("--models", self.folder, "--context", "256", *args)

    def end(self):
        if self.server is not None and self.server.popen.returncode is None:
            self.server.popen.send_signal(signal.SIGTERM)
            code, _, self.log = self.server.finish()
            self.assertEqual(0, code, self.log)

    def ask(self, method, path, body=None, **headers):
        connection = UnixConnection(self.socket)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, answer.headers, json.loads(text) if is_json else text

    def post(self, path, body):
        status, _, answer = self.ask("POST", path, body)
        self.assertEqual(200, status, answer)
        return answer

    def chat(self, model, **members):
        return text_of(self.post("/v1/chat/completions", {**CHAT, "model": model, **members}))

    def channel(self, target=None):
        channel = grpc.insecure_channel(target or f"unix:{self.runtime}/inferd.sock")
        self.addCleanup(channel.close)
        return channel

    def inference(self):
        return daemons.inference_pb2_grpc.InferenceServiceStub(self.channel())

    def listed(self):
        """The models as gRPC lists them, by name."""
        stub = daemons.model_pb2_grpc.ModelServiceStub(self.channel())
        return {m.name: m for m in stub.ListModels(model_pb2.ListModelsRequest(), timeout=harness.PATIENCE).models}

    def refusal(self, call, request):
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=harness.PATIENCE)
        return caught.exception.code(), daemons.reason(caught.exception), caught.exception.details()

    def states(self):
        return {m["id"]: m["state"] for m in self.ask("GET", "/v1/models")[2]["data"]}

    def metric(self, name):
        """The values of a metric by model, or the one value."""
        text = self.ask("GET", "/metrics")[2]
        found = {m[1]: float(m[2]) for m in re.finditer("^" + name + r'(?:\{model="(\w+)"\})? (\S+)$', text, re.M)}
        return found[None] if None in found else found

    def settled(self):
        self.wait_for(lambda: self.metric("sluice_model_requests_running") == {"alpha": 0, "beta": 0}, "the end")
        self.wait_for(lambda: self.metric("sluice_model_requests_waiting") == {"alpha": 0, "beta": 0}, "the end")

    def alone(self):
        """The answers of each model served by itself."""
        texts = {}
        for name in ("alpha", "beta"):
            self.serve("--pack", os.path.join(self.folder, name), "--context", "256")
            texts[name] = self.chat(name)
            self.end()
            self.wait_for(lambda: not self.processes(), "the daemons' end")
        return texts

    def inferd_of(self, name):
        """The process of a model's inferd; none if it has none."""
        for pid in self.processes("inferd"):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if os.path.join(self.folder, name).encode() in file.read().split(b"\0"):
                    return pid
        return None

    def test_requests_reach_the_model_that_they_name(self):
        alone = self.alone()
        self.serve_folder()
        self.assertEqual({"alpha": "unloaded", "beta": "unloaded"}, self.states())
        self.assertEqual(503, self.ask("GET", "/metrics/alpha")[0])
        self.assertEqual([], self.processes("inferd"))
        self.assertEqual(alone["alpha"], self.chat("alpha"))
        self.assertEqual({"alpha": "loaded", "beta": "unloaded"}, self.states())
        beta = self.ask("GET", "/v1/models/beta")[2]
        self.assertEqual(("beta", "unloaded", 256), (beta["id"], beta["state"], beta["max_model_len"]))
        self.assertEqual(alone["beta"], self.chat(beta["meta"]["model_id"]))
        self.assertEqual({"alpha": "loaded", "beta": "loaded"}, self.states())

        status, headers, text = self.ask("POST", "/v1/chat/completions", {**CHAT, "model": "beta", "stream": True})
        self.assertEqual((200, "text/event-stream"), (status, headers["Content-Type"]))
        events = [json.loads(block[6:]) for block in text.split("\n\n")[:-2] if not block.startswith(":")]
        self.assertEqual(alone["beta"], "".join(e["choices"][0]["delta"].get("content", "") for e in events))
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        self.assertIn('inferd_memory_bytes{part="kv"}', self.ask("GET", "/metrics/alpha")[2])
        self.assertEqual(404, self.ask("GET", "/metrics/gamma")[0])
        for path, body, found in [
            ("/v1/completions", {"prompt": "The film", "max_tokens": 4}, lambda a: a["choices"][0]["text"]),
            ("/v1/messages", {"messages": SAY, "max_tokens": 4}, lambda a: a["content"][0]["text"]),
            ("/v1/messages/count_tokens", {"messages": SAY}, lambda a: a["input_tokens"]),
            ("/v1/responses", {"input": "The film", "max_output_tokens": 4}, lambda a: a["output"]),
            ("/tokenize", {"content": "The film"}, lambda a: a["tokens"]),
            ("/apply-template", {"messages": SAY}, lambda a: a["prompt"]),
        ]:
            self.assertTrue(found(self.post(path, {**body, "model": "alpha"})), path)

    def test_grpc_requests_reach_the_named_model(self):
        alone = self.alone()
        self.serve_folder()
        stub = self.inference()
        listed = self.listed()
        self.assertEqual(["alpha", "beta"], sorted(listed))
        self.assertEqual({model_pb2.MODEL_STATE_UNLOADED}, {m.state for m in listed.values()})
        self.assertEqual([], self.processes("inferd"))
        self.assertEqual(alone["alpha"], stub.Chat(chat_request("alpha")).message.content)
        self.assertEqual({"alpha": "loaded", "beta": "unloaded"}, self.states())
        self.assertEqual(alone["beta"], stream_chat(stub, listed["beta"].id))
        loaded = self.listed()
        self.assertEqual({model_pb2.MODEL_STATE_LOADED}, {m.state for m in loaded.values()})

        # Both servers describe a model in the same way.
        models = daemons.model_pb2_grpc.ModelServiceStub
        own = models(self.channel(f"unix:{self.runtime}/models/1/inferd.sock")).GetModel(model_pb2.GetModelRequest())
        passed_on = models(self.channel()).GetModel(model_pb2.GetModelRequest(model="beta"))
        self.assertEqual(own.model, passed_on.model)
        self.assertEqual(own.model, loaded["beta"])

        ids = stub.Tokenize(inference_pb2.TokenizeRequest(model="alpha", text="The film")).token_ids
        text = stub.Detokenize(inference_pb2.DetokenizeRequest(model="alpha", token_ids=ids, skip_special=True)).text
        self.assertEqual("The film", text)
        scoring = daemons.evaluation_pb2_grpc.EvaluationServiceStub(self.channel())
        rows = list(scoring.Score(daemons.evaluation_pb2.ScoreRequest(model="beta", token_ids=ids)))
        self.assertEqual(len(ids), sum(len(event.rows.argmax) for event in rows))
        health = daemons.health_pb2_grpc.HealthStub(self.channel())
        service = "sluice.inference.v1.InferenceService"
        answer = health.Check(daemons.health_pb2.HealthCheckRequest(service=service))
        self.assertEqual(daemons.health_pb2.HealthCheckResponse.SERVING, answer.status)

    def test_grpc_errors_arrive_with_their_details(self):
        self.serve_folder()
        stub = self.inference()
        code, reason, text = self.refusal(stub.Chat, chat_request("gamma"))
        self.assertEqual((grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL"), (code, reason))
        self.assertIn("alpha, beta", text)
        code, reason, text = self.refusal(stub.Chat, chat_request(""))
        self.assertEqual((grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), (code, reason))
        self.assertIn("this server has several", text)
        self.assertEqual([], self.processes("inferd"))
        with self.assertRaises(grpc.RpcError) as caught:  # inferd's own
            stub.Chat(chat_request("alpha", tokens=0))
        self.assertEqual(grpc.StatusCode.INVALID_ARGUMENT, caught.exception.code())
        bad = daemons.error_details_pb2.BadRequest()
        self.assertTrue(any(detail.Unpack(bad) for detail in daemons.details(caught.exception)))
        self.assertEqual("spec.stopping.max_tokens", bad.field_violations[0].field)

        hidden = os.path.join(self.folder, "beta")
        os.rename(hidden, hidden + ".away")
        self.addCleanup(lambda: os.path.exists(hidden) or os.rename(hidden + ".away", hidden))
        with self.assertRaises(grpc.RpcError) as caught:
            list(stub.ChatStream(chat_request("beta", kind=inference_pb2.ChatStreamRequest)))
        self.assertEqual(grpc.StatusCode.UNAVAILABLE, caught.exception.code())
        self.assertIn("model beta cannot be loaded", caught.exception.details())
        self.assertTrue(daemons.has_retry_hint(caught.exception))
        self.assertIn("pack", self.listed()["beta"].failure)
        os.rename(hidden + ".away", hidden)
        self.assertTrue(stream_chat(stub, "beta"))
        self.assertEqual("", self.listed()["beta"].failure)

    def test_a_grpc_client_that_leaves_ends_its_call(self):
        self.serve_folder("--models-budget", "110MiB")
        stub = self.inference()
        long = chat_request("alpha", tokens=200, kind=inference_pb2.ChatStreamRequest)
        long.spec.stopping.ignore_eos = True
        running = stub.ChatStream(long)
        self.assertEqual("started", next(running).WhichOneof("event"))
        waiting = stub.ChatStream(chat_request("beta", kind=inference_pb2.ChatStreamRequest))
        self.wait_for(lambda: self.metric("sluice_model_requests_waiting")["beta"] == 1, "the request")
        waiting.cancel()
        running.cancel()
        self.settled()

        # A deadline ends a request that waits, too: a daemon that is stopped answers nothing.
        weightd = self.only_process("weightd")
        os.kill(weightd, signal.SIGSTOP)
        try:
            with self.assertRaises(grpc.RpcError) as caught:
                stub.Chat(chat_request("beta"), timeout=0.3)
            self.assertEqual(grpc.StatusCode.DEADLINE_EXCEEDED, caught.exception.code())
            self.wait_for(lambda: self.metric("sluice_model_requests_waiting")["beta"] == 0, "the end")
        finally:
            os.kill(weightd, signal.SIGCONT)
        self.assertTrue(stream_chat(stub, "beta"))

    def test_grpc_is_served_over_tcp_too(self):
        self.serve_folder("--listen", "127.0.0.1:0", "--quiet")
        stub = self.inference()
        text = stub.Chat(chat_request("alpha")).message.content
        self.end()
        port = re.search(r"gRPC +127\.0\.0\.1:(\d+)", self.log)[1]
        self.serve_folder("--listen", "127.0.0.1:" + port)
        tcp = daemons.inference_pb2_grpc.InferenceServiceStub(self.channel("127.0.0.1:" + port))
        self.assertEqual(text, tcp.Chat(chat_request("alpha")).message.content)

    def test_other_names_are_refused(self):
        self.serve_folder()
        for path, body, status, code in [
            ("/v1/chat/completions", {**CHAT, "model": "gamma"}, 404, "model_not_found"),
            ("/v1/chat/completions", CHAT, 400, "invalid_value"),
            ("/v1/chat/completions", {**CHAT, "model": 1}, 400, "invalid_value"),
            ("/v1/chat/completions", b"{", 400, None),
            ("/v1/embeddings", {"model": "alpha", "input": "x"}, 404, "unsupported_endpoint"),
            ("/nowhere", {"model": "alpha"}, 404, None),
        ]:
            got, _, answer = self.ask("POST", path, body)
            self.assertEqual(status, got, answer)
            if code is not None:
                self.assertEqual(code, answer["error"]["code"], answer)
        _, _, answer = self.ask("POST", "/v1/messages", {"messages": SAY, "max_tokens": 4, "model": "claude"})
        self.assertEqual(("error", "not_found_error"), (answer["type"], answer["error"]["type"]))
        self.assertIn("alpha, beta", answer["error"]["message"])
        self.assertEqual(404, self.ask("GET", "/v1/models/gamma")[0])
        self.assertEqual(405, self.ask("GET", "/v1/chat/completions")[0])
        self.assertEqual([], self.processes("inferd"))
        # A model's own refusal arrives unchanged, with the client's id.
        status, headers, answer = self.ask("POST", "/v1/chat/completions", {**CHAT, "model": "alpha", "n": 0},
                                           **{"x-request-id": "mine"})  # fmt: skip
        self.assertEqual((400, "n", "mine"), (status, answer["error"]["param"], headers["x-request-id"]))
        self.assertEqual("<!doctype html>", self.ask("GET", "/")[2][:15].lower())

    def test_models_take_turns_within_the_budget(self):
        alone = self.alone()
        self.serve_folder("--models-budget", "110MiB")
        budget = self.metric("sluice_models_budget_bytes")
        wrong = []

        def work(number):
            stub = self.inference()
            for turn in range(6):
                name = ("alpha", "beta")[(number + turn) % 2]
                if number % 2 == 0:
                    status, _, answer = self.ask("POST", "/v1/chat/completions", {**CHAT, "model": name})
                    text = text_of(answer) if status == 200 else answer
                else:
                    text = stream_chat(stub, name)
                if text != alone[name]:
                    wrong.append((name, text))
                if sum(self.metric("sluice_model_memory_bytes").values()) > budget:
                    wrong.append("the budget was exceeded")

        clients = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual([], wrong)
        self.assertLessEqual(len(self.processes("inferd")), 1)
        turns = 0
        while sum(self.metric("sluice_model_loads_total").values()) < 20:  # whatever the clients' pace made of it
            name = ("alpha", "beta")[turns % 2]
            self.assertEqual(alone[name], self.chat(name))
            turns += 1
        self.assertEqual({"alpha": 0, "beta": 0}, self.metric("sluice_model_losses_total"))

    def test_commands_use_the_model_that_they_name(self):
        self.serve_folder()
        run = ("run", "--prompt", "The film", "-n", 8, "--temperature", 0)
        text = self.ok(*run, "--pack", self.folder + "/alpha")
        self.assertEqual({"alpha": "loaded", "beta": "unloaded"}, self.states())
        self.assertEqual(text, self.ok(*run, "--model", "alpha"))
        self.assertEqual(text, self.ok(*run, "--model", "alpha", "--address", f"unix:{self.runtime}/inferd.sock"))
        own = ("--address", f"unix:{self.runtime}/models/0/inferd.sock", "--pack", self.folder + "/alpha")
        self.assertEqual(text, self.ok(*run, *own))
        self.assertTrue(self.ok("chat", "--model", "beta", "--prompt", "The film", "-n", 8, "--temperature", 0))
        self.assertEqual({"alpha": "loaded", "beta": "loaded"}, self.states())
        for wrong, words in [
            (("--pack", self.pack), "its models are alpha, beta"),
            (("--model", "gamma"), "its models are alpha, beta"),
            (("--model", "alpha", "--context", "128"), "--context cannot be compared"),
            (("--model", "alpha", "--keep", "1m"), "a server of several models runs in"),
        ]:
            code, _, err = self.sluice(*run, *wrong)
            self.assertNotEqual(0, code)
            self.assertIn(words, err)
        self.end()
        code, _, err = self.sluice(*run, "--model", "alpha")
        self.assertNotEqual(0, code)
        self.assertIn("no server of several models runs in", err)

    def test_an_idle_model_is_unloaded(self):
        self.serve_folder("--idle-unload", "300ms")
        text = self.chat("alpha")
        self.wait_for(lambda: self.states()["alpha"] == "unloaded", "the model's end")
        self.assertEqual([], self.processes("inferd"))
        self.assertEqual(text, self.chat("alpha"))
        self.assertEqual(2, self.metric("sluice_model_loads_total")["alpha"])

    def test_a_lost_inferd_disturbs_no_other_model(self):
        alone = self.alone()
        self.serve_folder()
        self.assertEqual(alone, {name: self.chat(name) for name in ("alpha", "beta")})
        wrong = []
        served = {"alpha": 0, "beta": 0}
        over = threading.Event()

        def work(name, stub):
            while not over.is_set():
                try:
                    text = self.chat(name) if stub is None else stub.Chat(chat_request(name)).message.content
                except (AssertionError, grpc.RpcError) as error:
                    text = error
                if text != alone[name]:
                    wrong.append((name, text))
                served[name] += 1

        ways = [(name, stub) for name in ("alpha", "beta") for stub in (None, self.inference())]
        clients = [threading.Thread(target=work, args=way) for way in ways]
        for client in clients:
            client.start()
        try:
            for losses in range(1, 4):
                before = dict(served)  # each client has answers since the last loss: no request is lost twice
                self.wait_for(lambda: all(served[name] > before[name] + 4 for name in served), "answers")
                os.kill(self.inferd_of("alpha"), signal.SIGKILL)
                self.wait_for(lambda: self.metric("sluice_model_losses_total")["alpha"] == losses, "the loss")
            self.wait_for(lambda: self.states()["alpha"] == "loaded", "the model")
        finally:
            over.set()
            for client in clients:
                client.join()
        self.assertEqual([], wrong)
        self.assertEqual({"alpha": 4, "beta": 1}, self.metric("sluice_model_loads_total"))

    def test_a_lost_weightd_is_started_again(self):
        self.serve_folder()
        text = self.chat("alpha")
        self.kill_daemon("weightd")
        self.wait_for(lambda: self.ask("POST", "/v1/chat/completions", {**CHAT, "model": "alpha"})[0] == 200, "weightd")
        self.assertEqual(text, self.chat("alpha"))

    def test_a_client_that_leaves_ends_its_request(self):
        self.serve_folder("--models-budget", "110MiB")
        self.chat("alpha")
        long = {**CHAT, "model": "alpha", "max_tokens": 200, "ignore_eos": True, "stream": True}
        running = UnixConnection(self.socket)
        running.request("POST", "/v1/chat/completions", json.dumps(long))
        first = running.getresponse()
        self.assertTrue(first.read(1))
        waiting = UnixConnection(self.socket)
        waiting.request("POST", "/v1/chat/completions", json.dumps({**long, "model": "beta"}))
        waiting.close()
        first.close()
        running.close()
        self.settled()

    def test_models_keep_their_conversations(self):
        """A killed inferd, an unloaded model, and a new server find the chats of before in each model's prefix file."""
        file = os.path.join(self.work, "prefixes")
        options = ("--models", self.folder, "--context", "1024", "--models-budget", "110MiB", "--prefix-file", file)
        self.serve(*options)
        chats = [(("alpha", "beta")[number // 4], f"{number} " + SAY[0]["content"] * 12) for number in range(8)]
        texts = {}

        def begin(model, words):
            members = {"messages": [{"role": "user", "content": words}], "cache_salt": words[0]}
            texts[words] = self.chat(model, **members)

        def go_on(model, words):
            """The cached share of the prompt of the chat's next turn."""
            turn = [{"role": "user", "content": words}, {"role": "assistant", "content": texts[words]}]
            members = {"messages": [*turn, {"role": "user", "content": "and?"}], "max_tokens": 4, "cache_salt": words[0]}
            usage = self.post("/v1/chat/completions", {**CHAT, **members, "model": model})["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

        for chat in chats:  # beta's first one unloads alpha
            begin(*chat)
        self.assertEqual({"alpha": "unloaded", "beta": "loaded"}, self.states())
        names = [name for name in os.listdir(self.work) if name.startswith("prefixes.")]
        self.assertEqual(2, len(names), names)
        # Waits until the idle inferd has saved all: its file grows no more.
        beta = next(os.path.join(self.work, n) for n in names if n.endswith(self.listed()["beta"].id[:12]))
        sizes = [-1]

        def is_saved():
            sizes.append(os.stat(beta).st_blocks)
            time.sleep(0.5)
            return sizes[-1] == sizes[-2]

        self.wait_for(is_saved, "the prefix file")
        os.kill(self.inferd_of("beta"), signal.SIGKILL)
        self.wait_for(lambda: self.metric("sluice_model_losses_total")["beta"] == 1, "the loss")
        for model, words in reversed(chats):  # beta's anew after the kill, alpha's after the unloading
            self.assertGreater(go_on(model, words), 0.9, (model, words[:20]))
        self.end()
        self.wait_for(lambda: not self.processes(), "the daemons' end")
        self.serve(*options)
        for model, words in chats:
            self.assertGreater(go_on(model, words), 0.9, (model, words[:20]))

    def test_a_load_that_fails_is_reported(self):
        self.serve_folder()
        self.chat("beta")
        hidden = os.path.join(self.folder, "alpha")
        os.rename(hidden, hidden + ".away")
        self.addCleanup(lambda: os.path.exists(hidden) or os.rename(hidden + ".away", hidden))
        status, headers, answer = self.ask("POST", "/v1/chat/completions", {**CHAT, "model": "alpha"})
        self.assertEqual((503, "1"), (status, headers["Retry-After"]), answer)
        self.assertIn("model alpha cannot be loaded", answer["error"]["message"])
        self.assertIn("failure", self.ask("GET", "/v1/models/alpha")[2])
        self.chat("beta")
        os.rename(hidden + ".away", hidden)
        self.chat("alpha")
        self.assertNotIn("failure", self.ask("GET", "/v1/models/alpha")[2])

    def test_wrong_sets_of_models_are_refused(self):
        for args, words in [
            ((), "one of --model, --pack and --models"),
            (("--models", self.runtime), "there is no pack in it"),
            (("--models", self.folder, "--models-budget", "1MiB"), "--models-budget is 1.0 MiB"),
            (("--pack", self.folder + "/alpha", "--pack", self.folder + "/alpha"), "have the same name"),
            (("--models", self.folder, "--trace", "t"), "--trace is for one model"),
        ]:
            code, _, err = self.sluice("serve", "--http", "unix:" + self.socket, *args)
            self.assertNotEqual(0, code)
            self.assertIn(words, err)

    def test_a_waiting_stream_is_kept_alive(self):
        self.serve_folder()
        self.chat("beta")
        # A daemon that is stopped answers nothing, so the request waits.
        weightd = self.only_process("weightd")
        os.kill(weightd, signal.SIGSTOP)
        try:
            connection = UnixConnection(self.socket)
            connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "model": "alpha", "stream": True}))
            answer = connection.getresponse()
            self.assertEqual(b": ping\n\n", answer.read(8))
            self.assertEqual("loading", self.states()["alpha"])
        finally:
            os.kill(weightd, signal.SIGCONT)
        self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
        connection.close()


if __name__ == "__main__":
    harness.main()
