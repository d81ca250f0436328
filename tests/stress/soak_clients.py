"""Clients of soak.py and overload.py: one request of each kind, its reference answer, and who asks it over and over."""
import dataclasses
import http.client
import json
import random
import time

from kill_clients import OWN_TIME, Repeater
import daemons
from daemons import evaluation_pb2, evaluation_pb2_grpc, grpc, inference_pb2, inference_pb2_grpc
from model_switches import UnixConnection

LIMIT = 60.0  # seconds of own time within which every request must end
WAYS = ("stream", "generate", "chat", "score", "http completion", "http completion stream", "http chat", "http chat stream")
MANNERS = ("whole", "whole", "cancel", "slow", "dead")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"  # the sample has none
SLOW_READ = 0.05  # seconds between two reads of a slow reader
DEAD_SECONDS = 2.0  # that a dead reader keeps its connection


@dataclasses.dataclass(frozen=True)
class Ask:
    """One request. `seed` 0: greedy."""

    way: str
    prompt: str
    ids: tuple
    seed: int
    tokens: int


class Failed(Exception):
    """A request ended by an error. `code`: a gRPC code's name, an HTTP status, or `lost` for a cut connection."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


def all_asks(cases, tokens):
    return [
        Ask(way, case["prompt"], tuple(case["prompt_ids"]), seed, tokens)
        for way in WAYS for number, case in enumerate(cases) for seed in ((0,) if way == "score" else (0, 7 + number))
    ]  # fmt: skip


def grpc_spec(ask):
    spec = daemons.spec(text=ask.prompt, tokens=ask.tokens)
    spec.sampling.temperature = 1 if ask.seed else 0
    spec.sampling.seed = ask.seed
    spec.stopping.ignore_eos = True
    spec.output.return_token_ids = True
    return spec


def http_request(ask):
    """Path and body."""
    body = {"max_tokens": ask.tokens, "temperature": 1 if ask.seed else 0, "seed": ask.seed, "ignore_eos": True,
            "stream": ask.way.endswith("stream")}  # fmt: skip
    if "chat" in ask.way:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": ask.prompt}]}
    return "/v1/completions", {**body, "prompt": ask.prompt}


def grpc_parts(ask, channel):
    """The call, and a generator of the answer's parts: token ids, or rows of a score."""
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    options = {"timeout": LIMIT}
    if ask.way == "score":
        scored = ask.ids[:-1]
        request = evaluation_pb2.ScoreRequest(token_ids=scored, targets=ask.ids[1:])
        call = evaluation_pb2_grpc.EvaluationServiceStub(channel).Score(request, **options)
        return call, (list(zip(event.rows.argmax, event.rows.target_logprobs)) for event in call)
    if ask.way == "stream":
        call = stub.GenerateStream(inference_pb2.GenerateStreamRequest(spec=grpc_spec(ask)), **options)
        return call, (list(event.delta.token_ids) for event in call)
    if ask.way == "generate":
        call = stub.Generate.future(inference_pb2.GenerateRequest(spec=grpc_spec(ask)), **options)
        return call, (list(future.result().token_ids) for future in (call,))
    spec = grpc_spec(ask)
    spec.ClearField("prompt")
    message = inference_pb2.ChatMessage(role=inference_pb2.CHAT_ROLE_USER, content=ask.prompt)
    chat = inference_pb2.ChatRequest(spec=spec, messages=[message])
    chat.options.chat_template = TEMPLATE
    call = stub.Chat.future(chat, **options)
    return call, (list(future.result().token_ids) for future in (call,))


def choice_text(choice):
    inner = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or inner.get("content") or ""


def http_parts(answer):
    """The texts of an answer, whole or a stream of events."""
    if answer.headers["Content-Type"] != "text/event-stream":
        yield choice_text(json.loads(answer.read())["choices"][0])
        return
    for line in answer:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                raise Failed("event", json.dumps(event["error"]))
            for choice in event["choices"]:
                yield choice_text(choice)
    raise Failed("lost", "a stream without an end")


def read_parts(parts, empty, manner, rng):
    """Sums an answer's parts. Returns it, and whether it was read to its end."""
    got = empty
    left = rng.randrange(1, 12)
    for part in parts:
        got = got + part
        left -= 1
        if manner == "cancel" and left <= 0:
            return got, False
        if manner == "slow":
            time.sleep(SLOW_READ)
    return got, True


def ask_grpc(ask, target, manner, rng):
    with grpc.insecure_channel(target) as channel:
        call, parts = grpc_parts(ask, channel)
        try:
            if manner == "dead":
                time.sleep(DEAD_SECONDS)
                return [], False
            return read_parts(parts, [], manner, rng)
        except grpc.RpcError as error:
            late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and not daemons.reason(error)
            raise Failed("no end" if late else error.code().name, error.details()) from error
        finally:
            call.cancel()


def ask_http(ask, path, manner, rng):
    connection = UnixConnection(path)
    connection.timeout = LIMIT
    try:
        where, body = http_request(ask)
        connection.request("POST", where, json.dumps(body), {"Content-Type": "application/json"})
        if manner == "dead":
            time.sleep(DEAD_SECONDS)
            return "", False
        answer = connection.getresponse()
        if answer.status != 200:
            retry = answer.headers["Retry-After"]
            raise Failed(str(answer.status), f"Retry-After {retry}, {answer.read().decode(errors='replace')}")
        return read_parts(http_parts(answer), "", manner, rng)
    except TimeoutError as error:
        raise Failed("no end", str(error)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failed("lost", repr(error)) from error
    finally:
        connection.close()


class Endpoint:
    """Where one inferd is asked."""

    def __init__(self, target, http_path):
        self.target = target
        self.http_path = http_path

    def ask(self, ask, manner="whole", rng=random):
        """The answer (ids, a text, or rows), and whether it was read to its end; raises Failed."""
        if ask.way.startswith("http"):
            return ask_http(ask, self.http_path, manner, rng)
        return ask_grpc(ask, self.target, manner, rng)

    def metrics(self):
        connection = UnixConnection(self.http_path)
        connection.timeout = LIMIT
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()


class Asker(Repeater):
    """Asks; `judge` gets each end."""

    def __init__(self, endpoint, asks, seed, judge, manners=MANNERS):
        super().__init__()
        self.endpoint = endpoint
        self.asks = asks
        self.random = random.Random(seed)
        self.judge = judge
        self.manners = manners

    def once(self):
        ask, manner = self.random.choice(self.asks), self.random.choice(self.manners)
        began, wall = OWN_TIME.seconds, time.monotonic()
        try:
            got, whole = self.endpoint.ask(ask, manner, self.random)
            error = None
        except Failed as failed:
            got, whole, error = None, False, failed
        self.judge(ask, manner, got, whole, error, OWN_TIME.seconds - began, wall)
        if error is not None:
            self.stopping.wait(0.05)
