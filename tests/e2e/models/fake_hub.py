"""Fake model hub, with its large file store on another port and injected faults."""
import collections
import hashlib
import http.server
import json
import threading
import urllib.parse


def git_digest(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Serves `files` (path to bytes) as the repository own/model.

    `faults` maps a path, or "api", to a list; each answer for it takes one:
      ("status", CODE, HEADERS)   this status instead
      ("break", N)                the connection ends after N bytes of the answer
      ("length", N)               says N bytes, and sends as many
      ("long", N)                 N bytes too many, without a length
      ("short", N)                N bytes too few, without a length
      ("flip",)                   one bit of the content is another
      ("no range",)               all of the file, whatever was asked for
      ("wrong range",)            from one byte before what was asked for
      ("stop",)                   half of the answer, then nothing until close()
    `requests` lists (server, path, first byte asked for, Authorization).
    """

    commit = "c" * 40

    def __init__(self, files, small=1 << 16, token=None, page=3):
        self.files = dict(files)
        self.small = small
        self.token = token
        self.page = page
        self.listed = {}  # path: false list entry
        self.faults = collections.defaultdict(list)
        self.requests = []
        self.sent = collections.Counter()
        self.closing = threading.Event()
        self.servers = [self._serve("store"), self._serve("hub")]
        self.store, self.endpoint = (f"http://127.0.0.1:{s.server_address[1]}" for s in self.servers)

    def close(self):
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def entry(self, path):
        data = self.files[path]
        entry = {"type": "file", "path": path, "size": len(data), "oid": git_digest(data)}
        if len(data) > self.small:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return {**entry, **self.listed.get(path, {})}

    def asked(self, path, server=None):
        return [r for r in self.requests if r[1].endswith("/" + path) and server in (None, r[0])]

    def _serve(self, name):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.answer(name, self)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # clients disconnect in mid-answer
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def answer(self, name, call):
        url = urllib.parse.urlsplit(call.path)
        path = urllib.parse.unquote(url.path)
        wanted = call.headers.get("Range", "bytes=0-")
        first = int(wanted[len("bytes=") : -1])
        authorization = call.headers.get("Authorization")
        self.requests.append((name, path, first, authorization))
        if name == "hub" and self.token is not None and authorization != "Bearer " + self.token:
            return self.status(call, 401 if authorization is None else 403, {"X-Error-Message": "Access is restricted"})
        api = "/api/models/own/model/"
        if name == "hub" and path.startswith(api):
            if self.faults["api"]:
                return self.status(call, *self.faults["api"].pop(0)[1:])
            return self.api(call, path[len(api) :], urllib.parse.parse_qs(url.query))
        prefix = f"/own/model/resolve/{self.commit}/" if name == "hub" else "/store/"
        file = path[len(prefix) :] if path.startswith(prefix) else None
        if file not in self.files:
            return self.status(call, 404, {"X-Error-Message": "Not here"})
        if name == "hub" and "lfs" in self.entry(file):
            return self.status(call, 302, {"Location": self.store + "/store/" + urllib.parse.quote(file)})
        self.body(call, file, first)

    def status(self, call, code, headers):
        call.send_response(code)
        for key, value in {"Content-Length": "0", **headers}.items():
            call.send_header(key, value)
        call.end_headers()

    def api(self, call, rest, query):
        headers = {}
        if rest == "revision/main":
            body = {"id": "own/model", "sha": self.commit}
        elif rest == "tree/" + self.commit:
            at = int(query.get("cursor", ["0"])[0])
            paths = list(self.files)
            body = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}] if at == 0 else []
            body += [self.entry(path) for path in paths[at : at + self.page]]
            if at + self.page < len(paths):
                more = f"{self.endpoint}{call.path.split('?')[0]}?recursive=true&cursor={at + self.page}"
                headers["Link"] = f'<{more}>; rel="next"'
        else:
            return self.status(call, 404, {"X-Error-Message": "No such revision"})
        data = json.dumps(body).encode()
        self.status(call, 200, {**headers, "Content-Length": str(len(data))})
        call.wfile.write(data)

    def body(self, call, file, first):
        data = self.files[file]
        fault = self.faults[file].pop(0) if self.faults[file] else ("none",)
        kind = fault[0]
        if kind == "status":
            return self.status(call, *fault[1:])
        if kind == "no range":
            first = 0
        if kind == "wrong range":
            first -= 1
        if first >= len(data) and first > 0:
            return self.status(call, 416, {"Content-Range": f"bytes */{len(data)}"})
        body = data[first:]
        if kind == "flip":
            body = body[:-1] + bytes([body[-1] ^ 1])
        chunks = {"long": body + b"x" * fault[-1], "short": body[: -fault[-1]]}.get(kind) if len(fault) > 1 else None
        call.send_response(206 if first > 0 else 200)
        if first > 0:
            call.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        if chunks is not None:
            body = chunks
            call.send_header("Connection", "close")
        elif kind == "length":
            body = (body * 2)[: fault[1]]
            call.send_header("Content-Length", str(fault[1]))
        else:
            call.send_header("Content-Length", str(len(body)))
        call.end_headers()
        if kind in ("break", "stop"):
            body = body[: fault[1] if kind == "break" else len(body) // 2]
            call.close_connection = True
        try:
            call.wfile.write(body)
            call.wfile.flush()
            self.sent[file] += len(body)
            if kind == "stop":
                self.closing.wait()
        except OSError:
            pass
        if chunks is not None or kind in ("break", "stop"):
            call.close_connection = True
