"""inferd's HTTP server with Python's http.client: the sample model, whole answers and streams, tokenize, metrics, keys,
disconnects, refusals."""
import hashlib
import http.client
import json
import os
import re
import socket
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))

import daemons  # noqa: E402

SAY = [{"role": "user", "content": "The film is a story about a young man who"}]


def http_arguments(*more):
    return ["--http", "127.0.0.1:0", *more]


class HttpEndpoint:
    """One connection to the HTTP server."""

    def __init__(self, port, key=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=daemons.PATIENCE)
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = "Bearer " + key

    def __del__(self):
        self.connection.close()

    def ask(self, method, path, body=None, **headers):
        """Returns status, headers and body of an answer; a JSON body is parsed."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        self.connection.request(method, path, data, {**self.headers, **headers})
        answer = self.connection.getresponse()
        text = answer.read().decode()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, answer.headers, json.loads(text) if is_json else text

    def post(self, path, body):
        status, _, answer = self.ask("POST", path, body)
        assert status == 200, (status, answer)
        return answer

    def events(self, path, body):
        status, headers, text = self.ask("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, text)
        blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
        assert all(block.startswith("data: ") for block in blocks) and blocks[-1] == "data: [DONE]", text[-200:]
        return [json.loads(block[6:]) for block in blocks[:-1]]


class HttpTest(unittest.TestCase):
    def start(self, *arguments):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        self.daemons.start_weightd()
        self.daemons.start_inferd(*http_arguments(*arguments))
        self.port = int(re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", self.daemons.inferd.text()).group(1))
        return HttpEndpoint(self.port)

    def test_answers_whole_and_streamed_are_the_same(self):
        endpoint = self.start()
        chat = {"messages": SAY, "max_tokens": 24, "temperature": 0}
        whole = endpoint.post("/v1/chat/completions", chat)
        text = whole["choices"][0]["message"]["content"]
        self.assertEqual("length", whole["choices"][0]["finish_reason"])
        self.assertEqual(24, whole["usage"]["completion_tokens"])
        events = endpoint.events("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}})
        self.assertEqual(text, "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"]))
        self.assertEqual(whole["usage"]["total_tokens"], events[-1]["usage"]["total_tokens"])
        self.assertEqual(1, len({e["id"] for e in events}))

        completion = {"prompt": ["The film", "In the"], "max_tokens": 8, "temperature": 0, "n": 2, "echo": True,
                      "logprobs": 2}  # fmt: skip
        choices = endpoint.post("/v1/completions", completion)["choices"]
        self.assertEqual([0, 1, 2, 3], [c["index"] for c in choices])
        self.assertTrue(choices[1]["text"].startswith("The film") and choices[2]["text"].startswith("In the"))
        for choice in choices:
            scores = choice["logprobs"]
            self.assertEqual({len(scores["tokens"])}, {len(v) for v in scores.values()})
            self.assertIsNone(scores["token_logprobs"][0])
            self.assertTrue(all(p <= 0 for p in scores["token_logprobs"][1:]))
        # Scores of the model's own greedy answer as a prompt.
        only = {"prompt": choices[0]["text"], "max_tokens": 0, "echo": True, "logprobs": 1}
        scored = endpoint.post("/v1/completions", only)["choices"][0]["logprobs"]
        made = choices[0]["logprobs"]
        self.assertEqual(made["tokens"], scored["tokens"])
        for a, b in zip(made["token_logprobs"][1:], scored["token_logprobs"][1:]):
            self.assertAlmostEqual(a, b, places=3)

    def test_the_rest_of_the_http_server(self):
        endpoint = self.start()
        model = endpoint.ask("GET", "/v1/models")[2]["data"][0]["id"]
        self.assertEqual(200, endpoint.ask("GET", "/v1/models/" + model)[0])
        self.assertEqual((200, {"status": "ok"}), endpoint.ask("GET", "/health")[::2])
        ids = endpoint.post("/tokenize", {"content": "The film"})["tokens"]
        self.assertEqual("The film", endpoint.post("/detokenize", {"tokens": ids})["content"].strip())
        self.assertIn("The film", endpoint.post("/apply-template", {"messages": SAY})["prompt"])
        metrics = endpoint.ask("GET", "/metrics")[2]
        self.assertIn('inferd_http_responses_total{client="tcp",code="200"}', metrics)
        for method, path, body, status, param in [
            ("POST", "/v1/chat/completions", {"messages": SAY, "max_tokens": "many"}, 400, "max_tokens"),
            ("POST", "/v1/chat/completions", {"messages": SAY, "n": 0}, 400, "n"),
            ("POST", "/v1/chat/completions", {"messages": "x"}, 400, "messages"),
            ("POST", "/v1/chat/completions", {"messages": SAY, "model": "other"}, 404, None),
            ("POST", "/v1/chat/completions", b"{", 400, None),
            ("POST", "/v1/embeddings", {"input": "x"}, 404, None),
            ("GET", "/v1/chat/completions", None, 405, None),
            ("GET", "/nowhere", None, 404, None),
        ]:
            got, _, answer = endpoint.ask(method, path, body)
            self.assertEqual((status, param), (got, answer["error"]["param"]), answer)
        self.assertEqual(403, endpoint.ask("GET", "/v1/models", Host="evil.example")[0])
        self.assertEqual(
            403, endpoint.ask("POST", "/v1/completions", b"{}", Origin="http://evil.example", **{"Content-Type": "text/plain"})[0]
        )

    def test_keys_are_asked_for_and_counted(self):
        folder = daemons.tempfile.mkdtemp()
        self.addCleanup(daemons.shutil.rmtree, folder)
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            for name in ("ann", "bob"):
                file.write("%s %s per-minute=2\n" % (name, hashlib.sha256(name.encode()).hexdigest()))
        endpoint = self.start("--http-keys", keys)
        self.assertEqual(401, endpoint.ask("GET", "/v1/models")[0])
        self.assertEqual(200, endpoint.ask("GET", "/health")[0])
        self.assertEqual(401, HttpEndpoint(self.port, "eve").ask("GET", "/v1/models")[0])
        ann = HttpEndpoint(self.port, "ann")
        self.assertEqual([200, 200, 429], [ann.ask("GET", "/v1/models")[0] for _ in range(3)])
        self.assertEqual("30", ann.ask("GET", "/v1/models")[1]["Retry-After"])
        metrics = HttpEndpoint(self.port, "bob").ask("GET", "/metrics")[2]
        self.assertIn('client="key:ann",code="200"} 2', metrics)

    def test_disconnect_cancels_its_requests(self):
        self.start("--parallel", "2", "--context", "1024")
        body = json.dumps({"messages": SAY, "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        left = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(12)]
        for one in left:
            one.sendall(head + body)
        self.assertTrue(left[0].recv(100).startswith(b"HTTP/1.1 200"))
        for one in left:
            one.close()

        def idle():
            metrics = HttpEndpoint(self.port).ask("GET", "/metrics")[2]
            return all("\n%s 0\n" % name in metrics for name in ("inferd_requests_running", "inferd_requests_waiting",
                                                                 "inferd_calls_active"))  # fmt: skip

        daemons.wait_until(idle, "gauges back to zero")

    def test_many_streams_at_once_are_all_served(self):
        self.start()
        texts = []

        def stream(seed):
            chat = {"messages": SAY, "max_tokens": 12, "temperature": 0}
            events = HttpEndpoint(self.port).events("/v1/chat/completions", chat)
            texts.append("".join(e["choices"][0]["delta"].get("content", "") for e in events))

        threads = [threading.Thread(target=stream, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((24, 1), (len(texts), len(set(texts))))

    def test_beyond_loopback_it_needs_keys_or_tls(self):
        self.daemons = daemons.Daemons()
        self.addCleanup(self.daemons.close)
        arguments = self.daemons.inferd_arguments() + ["--http", "0.0.0.0:0"]
        result = daemons.subprocess.run(
            [os.path.join(daemons.BIN, "inferd"), *arguments], capture_output=True, text=True, timeout=daemons.PATIENCE
        )
        self.assertEqual(2, result.returncode)
        self.assertIn("--http-keys", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
