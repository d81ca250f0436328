#!/usr/bin/env python3
"""Makes random_cases.jsonl beside each tokenizer of data/, and data/components.jsonl, with Hugging Face tokenizers.

usage: python3 -m venv /tmp/v && /tmp/v/bin/pip install tokenizers==0.23.3 && /tmp/v/bin/python make_goldens.py
Deterministic: the same version of the library writes the same bytes. What the files hold: data/README.md.
"""
import copy
import json
import os
import random

from tokenizers import Tokenizer

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
TOKENIZERS = ["spm2048", "bytebpe_gpt2", "bytebpe_qwen2", "bytebpe_deepseek", "bytebpe_o200k"]

POOLS = [
    range(0x20, 0x7F), range(0x20, 0x7F), range(0x00, 0x20), range(0x80, 0x250), range(0x300, 0x370),
    range(0x370, 0x530), range(0x590, 0x700), range(0x900, 0xE00), range(0xE00, 0x1200), range(0x1E00, 0x2070),
    range(0x2070, 0x2500), range(0x3000, 0x3100), range(0x4E00, 0x9FFF, 7), range(0xAC00, 0xD7A4, 11),
    range(0xF900, 0xFFF0), range(0x1D400, 0x1D800), range(0x1F300, 0x1FB00), range(0x31350, 0x31360),
    [0x200D, 0xFE0F, 0x85, 0xA0, 0x180E, 0x2028, 0x3000, 0x17F, 0x212A, 0x130, 0x2581, 0x120, 0x1FAE9, 0x1C89],
    [ord(c) for c in "'sStTreveVEllLLdDmM  'ſ"], [ord(c) for c in "0123456789"], [ord(c) for c in "ABCabc xyzXYZ"],
]
WORDS = ("the quick brown fox jumps over lazy dogs; In 1984, she'd said: \"Wait... what?!\" and we've been there, "
         "unreachable tokenizer Streaming def f(x): return x**2 // 3.14159 https://example.org/a_b?c=d&e=%20").split(" ")


def random_text(rng, specials):
    parts = []
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.15 and specials:
            parts.append(rng.choice(specials))
        elif kind < 0.2 and specials:
            token = rng.choice(specials)
            cut = rng.randint(0, len(token))
            parts.append(token[:cut] + rng.choice(["", " ", "x", "\n"]) + token[cut:])
        elif kind < 0.45:
            parts.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8))))
        elif kind < 0.55:
            parts.append(rng.choice([" ", "\n", "\r\n", "\t", "  ", "\u3000", "\u00a0"]) * rng.randint(1, 12))
        else:
            pool = rng.choice(POOLS)
            parts.append("".join(chr(rng.choice(pool)) for _ in range(rng.randint(1, 10))))
    return "".join(parts)


def case(reference, text, add_special_tokens, parse_special, bos=None):
    reference.encode_special_tokens = not parse_special
    ids = reference.encode(text, add_special_tokens=add_special_tokens).ids
    if bos is not None and add_special_tokens:
        ids = [bos] + ids
    return {"text": text, "add_special_tokens": add_special_tokens, "parse_special": parse_special, "ids": ids,
            "decoded": reference.decode(ids, skip_special_tokens=False),
            "decoded_skip": reference.decode(ids, skip_special_tokens=True)}


def write_random_cases():
    for name in TOKENIZERS:
        rng = random.Random("random cases " + name)
        reference = Tokenizer.from_file(f"{DATA}/{name}/tokenizer.json")
        # As in DeepSeek's repositories BOS comes from tokenizer_config.json alone.
        bos = reference.token_to_id("<｜begin▁of▁sentence｜>") if name == "bytebpe_deepseek" else None
        specials = [token.content for token in reference.get_added_tokens_decoder().values()]
        with open(f"{DATA}/{name}/random_cases.jsonl", "w") as out:
            for i in range(120):
                golden = case(reference, random_text(rng, specials), i % 2 == 0, i % 3 != 0, bos)
                out.write(json.dumps(golden) + "\n")


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
REGEXES = ["\\s+", "\\p{L}+|\\p{N}", "[a-e]+", "\\d{1,3}", "(?i:s|ll)", "\\w+|[^\\w\\s]+", "(?<=a)b|c", "a|", "x*",
           " ?\\p{Lu}\\p{Ll}*", "\\S{1,5}", "[^a-z]", "\\b", "(?=[A-Z])", "\\d{2}+", "[\\p{L}&&[^\\p{Han}]]+", ".+$",
           "^.", "\\s+$", "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", "[^\\W\\d]+", "(?:\\r?\\n)+(?!\\s)", "\\h+"]

# These match empty strings; the library's Replace then loses track of its text.
EMPTY_MATCHES = ["a|", "x*", "\\b", "(?=[A-Z])"]


def normalizer(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return {"type": rng.choice(["NFC", "NFD", "NFKC", "NFKD"])}
    if kind == 1:
        return {"type": "Lowercase"}
    if kind == 2:
        return {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5}
    if kind == 3:
        return {"type": "Prepend", "prepend": rng.choice(["▁", "x", "ab"])}
    if kind == 4:
        return {"type": "Replace", "pattern": {"String": rng.choice([" ", "a", "  ", "th"])},
                "content": rng.choice(["▁", "", "zz"])}
    if kind == 5:
        regex = rng.choice([r for r in REGEXES if r not in EMPTY_MATCHES])
        return {"type": "Replace", "pattern": {"Regex": regex}, "content": rng.choice(["▁", "", "_"])}
    if kind == 6:
        return {"type": "ByteLevel"}
    return {"type": "Sequence", "normalizers": [normalizer(rng) for _ in range(rng.randint(0, 3))]}


def pre_tokenizer(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True,
                "use_regex": rng.random() < 0.5}
    if kind <= 2:
        return {"type": "Split", "pattern": {"Regex": rng.choice(REGEXES)}, "behavior": rng.choice(BEHAVIORS),
                "invert": rng.random() < 0.4}
    if kind == 3:
        return {"type": "Split", "pattern": {"String": rng.choice([" ", "e", "th", "."])},
                "behavior": rng.choice(BEHAVIORS), "invert": rng.random() < 0.4}
    if kind == 4:
        return {"type": "Digits", "individual_digits": rng.random() < 0.5}
    if kind == 5:
        return {"type": rng.choice(["Whitespace", "WhitespaceSplit"])}
    if kind == 6:
        return rng.choice([{"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
                           {"type": "Metaspace", "replacement": "▁", "split": rng.random() < 0.5,
                            "prepend_scheme": rng.choice(["first", "always", "never"])}])
    return {"type": "Sequence", "pretokenizers": [pre_tokenizer(rng) for _ in range(rng.randint(1, 3))]}


def decoder(rng, base):
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return rng.choice([
        base, byte_level, None, {"type": "Fuse"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["first", "never"]), "split": True},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
            {"type": "Strip", "content": rng.choice([" ", "e"]), "start": rng.randint(0, 3), "stop": 0}]},
        {"type": "Sequence", "decoders": [byte_level, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}])


def added_tokens(rng, tokens, vocab):
    tokens = copy.deepcopy(tokens)
    known = {token["content"] for token in tokens}
    next_id = max(max(vocab.values()), max(token["id"] for token in tokens)) + 1
    for content in rng.sample(["<a>", "<b c>", "foo", "  ", "Foo", "the", "\t\t", "Ünï", "in"], rng.randint(0, 4)):
        if content in known:
            continue
        in_model = content in vocab
        tokens.append({"id": vocab.get(content, next_id), "content": content, "single_word": rng.random() < 0.3,
                       "lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3,
                       "normalized": rng.random() < 0.5, "special": False if in_model else rng.random() < 0.4})
        next_id += 0 if in_model else 1
    return tokens


def write_components():
    """Tokenizers of data/ with other members, where the library and Sluice mean to agree."""
    rng = random.Random("components")
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "Y", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"X": {"id": "X", "ids": [5, 6], "tokens": ["a", "b"]},
                                   "Y": {"id": "Y", "ids": [7], "tokens": ["c"]}}}
    with open(f"{DATA}/components.jsonl", "w") as out:
        written = 0
        while written < 80:
            name = rng.choice(["spm2048", "bytebpe_gpt2", "bytebpe_o200k"])
            whole = json.load(open(f"{DATA}/{name}/tokenizer.json"))
            members = {"normalizer": rng.choice([None, whole["normalizer"], normalizer(rng), normalizer(rng)]),
                       "pre_tokenizer": rng.choice([None, whole["pre_tokenizer"], pre_tokenizer(rng), pre_tokenizer(rng)]),
                       "decoder": decoder(rng, whole["decoder"]), "post_processor": rng.choice([None, template]),
                       "added_tokens": added_tokens(rng, whole["added_tokens"], whole["model"]["vocab"])}
            model = {"byte_fallback": rng.random() < 0.4, "fuse_unk": rng.random() < 0.5,
                     "unk_token": rng.choice([None, "e"]), "ignore_merges": rng.random() < 0.4}
            whole.update(members)
            whole["model"].update(model)
            reference = Tokenizer.from_str(json.dumps(whole))
            plain_agrees = not model["ignore_merges"]  # the library then makes special tokens of plain text
            specials = [token["content"] for token in members["added_tokens"]]
            try:
                cases = [case(reference, random_text(rng, specials), True, i % 3 != 0 or not plain_agrees)
                         for i in range(6)]
            except BaseException:  # the library panics where normalizing leaves nothing of an added token
                continue
            if any(t["special"] and t["normalized"] for t in members["added_tokens"]):
                for golden in cases:
                    golden["decoded_skip"] = None  # the library leaves out by the token's text
            out.write(json.dumps({"base": name, "members": members, "model": model, "cases": cases}) + "\n")
            written += 1


if __name__ == "__main__":
    write_random_cases()
    write_components()
