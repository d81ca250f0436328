#!/usr/bin/python3
"""The page at / in a headless Chromium, against real daemons on the sample model. Not run by ctest: needs chromium.

usage: browser.py OUT     screenshots land in OUT; exit code 0 if all that is expected was seen
SLUICE_BIN names the programs (default build/release/bin).
"""
import hashlib
import os
import signal
import socket
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests/e2e"), os.path.dirname(os.path.abspath(__file__))]
os.chdir(ROOT)

import daemons  # noqa: E402
from chromium import Chromium  # noqa: E402

QUESTION = "The film is a story about a young man who"
LAST = "document.querySelector('.turn:last-child')"
ENDED = "%s && %s.dataset.end !== 'running' && %s.classList.contains('assistant')" % (LAST, LAST, LAST)


class Walk:
    def __init__(self, out):
        self.out = out
        os.makedirs(out, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.daemons = daemons.Daemons()
        self.daemons.start_weightd()
        self.start()
        self.browser = Chromium()
        self.url = "http://127.0.0.1:%d/" % self.port

    def start(self, *arguments):
        self.daemons.start_inferd("--http", "127.0.0.1:%d" % self.port, "--context", "1024", *arguments)

    def close(self):
        self.browser.close()
        self.daemons.close()

    def expect(self, what, condition):
        print("%-64s %s" % (what, "yes" if condition else "NO"), flush=True)
        if not condition:
            raise AssertionError(what)

    def shot(self, name):
        self.browser.screenshot(os.path.join(self.out, name + ".png"))

    def send(self, text):
        self.browser.value("document.getElementById('question').focus()")
        self.browser.type(text)
        self.browser.press("Enter", text="\r")

    def answer(self):
        self.browser.wait(ENDED, "the end of an answer")
        return self.browser.value("%s.dataset.end" % LAST)

    def set(self, name, value):
        self.browser.value("{const e = byId('%s'); e.value = '%s'; e.onchange();}" % (name, value))

    def whole_answer(self):
        b = self.browser
        b.look(1200, 800, "light")
        b.open(self.url)
        b.wait("byId('state').dataset.state === 'good' && byId('model').textContent !== ''")
        self.expect("the message box has the focus", b.value("document.activeElement.id") == "question")
        self.shot("1-empty-light")
        self.set("preset", "even")
        self.set("seed", "2")
        self.set("max_tokens", "120")
        self.send(QUESTION)
        self.expect("an answer comes", self.answer() == "whole")
        self.expect("it has text", b.value("%s.querySelector('.text').textContent.length" % LAST) > 50)
        self.expect("and is told to who cannot see it", b.value("byId('announce').textContent.startsWith('Answer: ')"))
        first = b.value("%s.querySelector('.text').textContent" % LAST)
        b.wait("byId('live-rate').textContent !== '–'", "a look at metrics")
        b.wait("byId('tiers').children.length >= 4")
        self.shot("2-answer-light")
        b.value("%s.querySelector('.retry').click()" % LAST)
        self.expect("Retry makes it again, in its place", self.answer() == "whole" and b.value("turns.length") == 2)
        self.expect("the same with the same seed", first == b.value("%s.querySelector('.text').textContent" % LAST))
        b.value("byId('show-settings').click()")
        b.look(1200, 800, "dark")
        self.shot("3-answer-dark")
        b.value("byId('show-settings').click()")

    def stopped(self):
        b = self.browser
        # The sample model finishes almost instantly, so the browser slows down the server's writes.
        b.ask("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=2000, uploadThroughput=-1)
        self.set("max_tokens", "700")
        self.send("Again")
        b.wait("%s.dataset.end === 'running' && %s.querySelector('.text').textContent.length > 5" % (LAST, LAST))
        self.expect("while it runs there is Stop, and no Send", b.value("!byId('stop').hidden && byId('send').hidden"))
        b.press("Escape")
        self.expect("Escape stops it", self.answer() == "stopped")
        b.ask("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        b.look(1200, 800, "light")
        self.shot("4-stopped-light")
        self.set("max_tokens", "40")

    def reasoning(self):
        b = self.browser
        script = (
            "{const t = addTurn('assistant', '', {end: 'running'});"
            "takeChunk(t, {choices: [{delta: {reasoning_content: 'First the width, then the height.'}}]}); fillTurn(t);"
            "takeChunk(t, {choices: [{delta: {content: '## A\\n- It **is** <b>12</b>, as `x * y`:\\n```python\\nprint(3 * 4)\\n```\\nas said.'}}]});"
            "t.end = 'whole'; fillTurn(t); t.details.open = true;}"
        )
        b.value(script)
        self.expect("thoughts stand apart", b.value("%s.querySelector('details').textContent.includes('width')" % LAST))
        shown = b.value("['.heading', 'strong:not(.heading)', 'code', 'pre'].map((w) => %s.querySelector(w).textContent)" % LAST)
        self.expect("headings, strong words and code look like it", shown == ["A", "is", "x * y", "print(3 * 4)"])
        self.expect("markup of a model is text", b.value("%s.querySelector('b') === null" % LAST))
        self.shot("5-reasoning-light")
        b.value("dropTurn()")

    def narrow(self):
        b = self.browser
        for scheme in ("light", "dark"):
            b.look(375, 700, scheme)
            wide = b.value("document.documentElement.scrollWidth")
            self.expect("375 pixels are enough (%s)" % scheme, wide <= 375)
            b.value("byId('live').hidden || byId('show-live').click()")
            self.shot("6-narrow-" + scheme)
        b.value("byId('show-live').click()")
        self.shot("7-narrow-live-dark")
        b.look(1200, 800, "light")

    def weightd_killed(self):
        b = self.browser
        self.daemons.weightd.stop(signal.SIGKILL)
        b.wait("byId('state').textContent === 'not serving'")
        self.send("And now?")
        self.expect("without weightd an answer fails", self.answer() == "failed")
        self.expect("and says so", b.value("%s.querySelector('.mark').textContent" % LAST).startswith("Failed: "))
        self.shot("8-weightd-killed-light")
        self.daemons.start_weightd()
        b.wait("byId('state').textContent === 'serving'")
        b.value("%s.querySelector('.retry').click()" % LAST)
        self.expect("once it is back Retry answers", self.answer() == "whole")

    def server_away(self):
        b = self.browser
        self.set("max_tokens", "700")
        self.send("More")
        b.wait("%s.dataset.end === 'running' && %s.querySelector('.text').textContent.length > 5" % (LAST, LAST))
        self.daemons.inferd.stop(signal.SIGKILL)
        self.expect("inferd killed in the middle: the answer failed", self.answer() == "failed")
        b.wait("byId('state').textContent === 'server away' && !byId('notice').hidden")
        self.shot("9-server-away-light")
        self.set("max_tokens", "40")
        keys = self.daemons.path("keys")
        with open(keys, "w") as file:
            file.write("ann %s\n" % hashlib.sha256(b"a key of hers").hexdigest())
        self.start("--http-keys", keys)
        b.wait("byId('state').textContent === 'serving'")

    def key(self):
        b = self.browser
        self.send("Is this mine?")
        b.wait("byId('key-dialog').open")
        self.expect("a key is asked for, and has the focus", b.value("document.activeElement.id") == "key")
        self.shot("10-key-light")
        b.type("a key of hers")
        b.press("Enter", text="\r")
        b.wait("!byId('key-dialog').open")
        self.expect("with it the question is answered", self.answer() == "whole")
        self.expect("it is kept in the session's storage alone", b.value("sessionStorage.getItem('sluice-key')") == "a key of hers" and b.value("localStorage.length + document.cookie.length") == 0)
        before = b.value("turns.length")
        b.open(self.url)
        b.wait("byId('state').textContent === 'serving' && byId('model').textContent !== ''")
        self.expect("the conversation outlives a reload", b.value("turns.length") == before)

    def access(self):
        b = self.browser
        b.value("byId('show-settings').click(); byId('question').focus()")
        order = []
        for _ in range(40):
            b.press("Tab")
            order.append(b.value("document.activeElement.id || document.activeElement.textContent"))
        for name in ("fresh", "show-settings", "show-live", "log", "question", "send", "preset", "temperature", "system", "Retry"):
            self.expect("Tab comes to " + name, name in order)
        nodes = b.ask("Accessibility.getFullAXTree")["nodes"]
        roles = ("button", "textbox", "combobox", "spinbutton", "progressbar", "searchbox", "link", "dialog")
        shown = [n for n in nodes if not n.get("ignored") and n.get("role", {}).get("value") in roles]
        nameless = [n["role"]["value"] for n in shown if not n.get("name", {}).get("value")]
        self.expect("all %d controls have names" % len(shown), len(shown) > 15 and nameless == [])
        self.shot("11-settings-light")

    def left(self):
        elsewhere = [url for url in self.browser.requests if not url.startswith((self.url, "data:", "about:"))]
        self.expect("of %d requests none went elsewhere" % len(self.browser.requests), elsewhere == [])
        self.expect("nothing was refused by the policy: %s" % self.browser.problems, self.browser.problems == [])
        # The policy works: the browser blocks a page that requests other hosts.
        refused = self.browser.value("fetch('http://127.0.0.1:1/').then(() => 'asked', () => 'refused')")
        self.browser.value("1")
        text = " ".join(self.browser.problems)
        self.expect("a request to another origin is stopped", refused == "refused" and "Content Security Policy" in text)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    walk = Walk(os.path.abspath(sys.argv[1]))
    try:
        for step in (walk.whole_answer, walk.stopped, walk.reasoning, walk.narrow, walk.weightd_killed, walk.server_away, walk.key,
                     walk.access, walk.left):  # fmt: skip
            step()
    finally:
        walk.close()


if __name__ == "__main__":
    main()
