#!/usr/bin/env python3
"""Makes data/*/marked_cases.jsonl: rendered chats in pieces of two origins, with the ids that Hugging Face tokenizers
gives them when control tokens count in the template's pieces only.

usage: python3 -m venv /tmp/v && /tmp/v/bin/pip install tokenizers==0.23.3 && /tmp/v/bin/python make_marked_cases.py
A line is {"template", "pieces": [[text, is_client], ..], "ids"}. The reference cuts the template's pieces at the
control tokens itself and encodes what lies between with all of them turned off. Deterministic.
"""
import copy
import json
import os
import random
import re

from tokenizers import Tokenizer

from make_goldens import DATA, TOKENIZERS, WORDS

TURNS = ["\n", "User: ", "[INST] ", " [/INST]", "system\n", "assistant", "\n\nAssistant:", ""]


def control_tokens(document, template):
    return [t for t in document["added_tokens"]
            if t["special"] or (t["content"] in template and t["content"].strip())]


def reference_of(document, control):
    changed = copy.deepcopy(document)
    ids = {t["id"] for t in control}
    for token in changed["added_tokens"]:
        token["special"] = token["id"] in ids
    reference = Tokenizer.from_str(json.dumps(changed))
    reference.encode_special_tokens = True
    return reference


def client_text(rng, control):
    parts = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.random()
        token = rng.choice(control)["content"]
        cut = rng.randint(1, len(token) - 1)
        if kind < 0.3:
            parts.append(token)
        elif kind < 0.5:
            parts.append(rng.choice([token[:cut], token[cut:]]))
        elif kind < 0.6:
            parts.append(rng.choice(["  ", "    ", "\n", "\t", "日本語", "Ünïcode", "e\u0301", "👩\u200d🔬"]))
        else:
            parts.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6))))
    return "".join(parts)


def pieces_of(rng, control):
    pieces = []
    for _ in range(rng.randint(1, 4)):
        own = "".join(rng.choice([t["content"] for t in control] + TURNS) for _ in range(rng.randint(1, 3)))
        token = rng.choice(control)["content"]
        cut = rng.randint(1, len(token) - 1)
        kind = rng.random()
        if kind < 0.2:  # a token across the border, either way round
            pieces += [[own + token[:cut], 0], [token[cut:] + client_text(rng, control), 1]]
        elif kind < 0.4:
            pieces += [[own, 0], [client_text(rng, control) + token[:cut], 1], [token[cut:], 0]]
        else:
            pieces += [[own, 0], [client_text(rng, control), 1]]
    return [p for p in pieces if p[0]]


def encode(reference, control, pieces):
    text = "".join(p[0] for p in pieces)
    marks = "".join(str(p[1]) * len(p[0]) for p in pieces)
    by_content = {t["content"]: t["id"] for t in control}
    pattern = re.compile("|".join(re.escape(c) for c in sorted(by_content, key=len, reverse=True)))
    ids, done, at = [], 0, 0
    while match := pattern.search(text, at):
        if "1" in marks[match.start():match.end()]:
            at = match.start() + 1
            continue
        if done < match.start():
            ids += reference.encode(text[done:match.start()], add_special_tokens=False).ids
        ids.append(by_content[match.group()])
        done = at = match.end()
    if done < len(text):
        ids += reference.encode(text[done:], add_special_tokens=False).ids
    return ids


def main():
    for name in TOKENIZERS:
        with open(os.path.join(DATA, name, "tokenizer.json"), encoding="utf-8") as file:
            document = json.load(file)
        rng = random.Random("marks of " + name)
        spelt = [t["content"] for t in document["added_tokens"] if not t["special"] and t["content"].strip()]
        with open(os.path.join(DATA, name, "marked_cases.jsonl"), "w", encoding="ascii", newline="\n") as out:
            for _ in range(60):
                template = "".join(c for c in spelt if rng.random() < 0.5)
                control = control_tokens(document, template)
                pieces = pieces_of(rng, control)
                line = {"template": template, "pieces": pieces,
                        "ids": encode(reference_of(document, control), control, pieces)}
                out.write(json.dumps(line) + "\n")


main()
