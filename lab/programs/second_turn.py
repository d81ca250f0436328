#!/usr/bin/python3
"""Measures the time to the first token of a chat's second turn, relative to that of its new tokens alone.

usage: second_turn.py --pack PACK [--first 2000] [--answer 64] [--new 64] [--runs 5] [--bin build/release/bin] [OPTION ..]

In each run a conversation of FIRST tokens is answered with ANSWER tokens and continued with NEW tokens; NEW other tokens are a
prompt of their own before and after. Tokens are random. OPTIONs are passed to the daemons (as --threads 2). Times are the
server's, from the start of the prompt to the first token. Prints a Markdown row with the medians; the target is 1.2. Exit
status 1 if a command failed or the second turn did not find the first one in the cache.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile


class Server:
    def __init__(self, o, options, work):
        self.command = [os.path.join(o.bin, "sluice"), "run", "--pack", o.pack, "--json", "--ignore-eos", "--keep", "20s",
                        *options]  # fmt: skip
        self.env = {**os.environ, "SLUICE_RUNTIME_DIR": work}  # keeps other users' daemons out of the run

    def answer(self, ids, tokens):
        """Returns (token ids, seconds to the first token, prompt tokens found in the cache)."""
        out = subprocess.run(
            [*self.command, "-n", str(tokens), "--token-ids", ",".join(map(str, ids))],
            check=True, stdout=subprocess.PIPE, env=self.env, text=True).stdout  # fmt: skip
        reply = json.loads(out)
        return reply["token_ids"], reply["timings"]["prompt_seconds"], reply["usage"]["cached_prompt_tokens"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack", required=True)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bin", default="build/release/bin")
    o, options = parser.parse_known_args()
    draw = random.Random(1)
    with open(os.path.join(o.pack, "manifest.json"), encoding="utf-8") as file:
        vocab = json.load(file)["manifest"]["config"]["vocab"]

    def text(count):
        return [draw.randrange(vocab) for _ in range(count)]

    whole, second, alone = [], [], []
    with tempfile.TemporaryDirectory() as work:
        server = Server(o, options, work)
        server.answer(text(o.new), 1)  # brings the weights into memory, as the first answer of a server does
        for _ in range(o.runs):
            alone.append(server.answer(text(o.new), 1)[1])
            prompt = text(o.first)
            said, seconds, _ = server.answer(prompt, o.answer)
            whole.append(seconds)
            _, seconds, cached = server.answer(prompt + said + text(o.new), 1)
            second.append(seconds)
            if cached != o.first + o.answer - 1:
                sys.exit(f"second_turn: {cached} tokens were cached, not {o.first + o.answer - 1}")
            alone.append(server.answer(text(o.new), 1)[1])
    first_ms, second_ms, alone_ms = (1000 * statistics.median(times) for times in (whole, second, alone))
    print("| first turn ms | second turn ms | its new tokens alone ms | ratio |\n|---|---|---|---|")
    print(f"| {first_ms:.1f} | {second_ms:.1f} | {alone_ms:.1f} | {second_ms / alone_ms:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
