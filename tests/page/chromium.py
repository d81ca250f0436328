"""A headless Chromium on a pipe: the DevTools protocol with nothing but Python."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

PATIENCE = 60


class Chromium:
    def __init__(self):
        program = shutil.which("chromium")
        if program is None:
            raise SystemExit("browser.py: chromium is not installed: apt-get install chromium")
        self.profile = tempfile.mkdtemp(prefix="sluice-chromium-")
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()

        def descriptors():  # Chromium reads commands at 3 and writes answers at 4
            os.dup2(to_browser, 50)
            os.dup2(from_browser, 51)
            os.dup2(50, 3)
            os.dup2(51, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-extensions",
             "--no-first-run", "--disable-background-networking", "--user-data-dir=" + self.profile, "about:blank"],
            close_fds=False, preexec_fn=descriptors, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.rest = b""
        self.number = 0
        self.session = None
        self.requests = []  # URLs requested by the page
        self.problems = []  # problems reported by the page's console
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self.ask(domain + ".enable")

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session and not method.startswith("Target."):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError("%s: %s" % (method, answer["error"]))
                return answer["result"]

    def read(self):
        while b"\0" not in self.rest:
            part = os.read(self.inp, 1 << 16)
            if not part:
                raise AssertionError("chromium has ended")
            self.rest += part
        line, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(line)
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["source"] != "network":
            self.problems.append(parameters["entry"]["text"])
        return message

    def value(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError("%s: %s" % (script, answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, script, what=None):
        deadline = time.monotonic() + PATIENCE
        while not self.value(script):
            if time.monotonic() > deadline:
                raise AssertionError("gave up waiting for %s; the page: %s" % (what or script, self.value("document.body.innerText")))
            time.sleep(0.05)

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href.startsWith('http')")

    def press(self, key, code=None, modifiers=0, text=None):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=codes[key],
                     modifiers=modifiers, **(more if kind == "keyDown" else {}))  # fmt: skip

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def look(self, width, height, scheme):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
