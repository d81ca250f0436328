#!/usr/bin/python3
"""Measures the cost of structured output per step: answers to a JSON schema of 50 fields and free ones, in turns.

usage: guide_share.py --pack PACK [--pairs 8] [--tokens 200] [--bin build/release/bin] [OPTION ..]

PACK must have a tokenizer. Both kinds are drawn at temperature 1 and have the same number of tokens. OPTIONs are passed to the
daemons (as --threads 2). Prints a Markdown row: the median times per token of both, and the median and range of the pairs'
ratios; the target is 1.02. Exit status 1 if a command failed or a complete answer violates the schema.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

KINDS = [{"type": "string", "maxLength": 20}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["red", "green", "blue"]},
         {"type": "array", "items": {"type": "number"}}]  # fmt: skip
NAMES = [f"field_{i}" for i in range(50)]
SCHEMA = {"type": "object", "properties": {name: KINDS[i % 5] for i, name in enumerate(NAMES)}, "required": NAMES}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack", required=True)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--bin", default="build/release/bin")
    o, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as work:
        schema = os.path.join(work, "schema.json")
        with open(schema, "w", encoding="utf-8") as file:
            json.dump(SCHEMA, file)

        def per_token(seed, *more):
            command = [os.path.join(o.bin, "sluice"), "run", "--pack", o.pack, "--json", "--keep", "20s", "--prompt",
                       "The answer is ", "--temperature", "1", "-n", str(o.tokens), "--seed", str(seed), *more]  # fmt: skip
            out = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "SLUICE_RUNTIME_DIR": work}).stdout  # fmt: skip
            reply = json.loads(out)
            if len(reply["token_ids"]) < o.tokens and json.loads(reply["text"]).keys() != SCHEMA["properties"].keys():
                sys.exit("guide_share: an answer does not fit")
            return 1000 * reply["timings"]["decode_seconds"] / (len(reply["token_ids"]) - 1)

        per_token(0, "--json-schema", schema)  # compiles the schema and warms up
        free, guided = [], []
        for seed in range(o.pairs):
            free.append(per_token(seed, "--ignore-eos"))
            guided.append(per_token(seed, "--json-schema", schema))
    ratios = [b / a for a, b in zip(free, guided)]
    print("| free ms a token | guided ms a token | ratio | of the pairs |\n|---|---|---|---|")
    print(f"| {statistics.median(free):.2f} | {statistics.median(guided):.2f} | {statistics.median(ratios):.3f} "
          f"| {min(ratios):.3f} to {max(ratios):.3f} |")  # fmt: skip


if __name__ == "__main__":
    main()
