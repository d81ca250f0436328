#!/usr/bin/env python3
"""Makes data/chat/goldens.json: data/chat/templates/* rendered by transformers' apply_chat_template.

usage: python3 -m venv /tmp/v && /tmp/v/bin/pip install transformers==5.23.0 jinja2==3.1.6 &&
       /tmp/v/bin/python make_chat_goldens.py
Every template gets every conversation that its family can have, twenty or more; `expected` is null where the template
(or Jinja) refuses it. strftime_now is pinned to `now`. Deterministic.
"""
import datetime
import json
import os

import transformers.utils.chat_template_utils as template_utils
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "chat")
NOW = 1754006400  # 2025-08-01 00:00:00 UTC

# template: (bos, eos)
TEMPLATES = {
    "mixtral_8x7b": ("<s>", "</s>"),
    "mixtral_8x22b": ("<s>", "</s>"),
    "qwen2_moe": (None, "<|im_end|>"),
    "qwen2_moe_tools": (None, "<|im_end|>"),
    "qwen3_moe": (None, "<|im_end|>"),
    "qwen3.5_moe": (None, "<|im_end|>"),
    "olmoe": ("<|endoftext|>", "<|endoftext|>"),
    "deepseek_v2": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek_v3": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek_v3.1": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "glm4_moe": (None, "<|endoftext|>"),
    "phimoe": ("<s>", "<|endoftext|>"),
    "granitemoe": ("<|end_of_text|>", "<|end_of_text|>"),
    "gpt_oss": ("<|startoftext|>", "<|return|>"),
    "llama4": ("<|begin_of_text|>", "<|eot|>"),
    "xverse": ("<s>", "</s>"),
}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Its name"},
        "days": {"type": "integer", "description": "How many", "default": 1},
        "units": {"type": "string", "enum": ["C", "F"]}}}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "Now", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = "You are terse. Don't explain."
ASK = "What's the weather in Zürich?"
RESULT = '{"sky": "grey", "t": 3.5}'


def weather_turns(arguments, content="", call_id="abcdefghi", **more):
    return [turn("user", ASK), turn("assistant", content, tool_calls=[call("get_weather", arguments, id=call_id)]),
            turn("tool", RESULT, name="get_weather", tool_call_id=call_id, **more)]


# (messages, further arguments of apply_chat_template)
CONVERSATIONS = [
    ([turn("user", "Hi")], {}),
    ([turn("user", "Hi")], {"add_generation_prompt": False}),
    ([turn("system", SYSTEM), turn("user", "Hi")], {}),
    ([turn("system", SYSTEM), turn("user", "Hi"), turn("assistant", "Hello."), turn("user", "2+2?")], {}),
    ([turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d"), turn("user", "e")], {}),
    ([turn("user", "a"), turn("assistant", "b")], {"add_generation_prompt": False}),
    ([turn("system", ""), turn("user", "empty system")], {}),
    ([turn("user", "")], {}),
    ([turn("user", "  spaces  and\n\nlines \n"), turn("assistant", "\n kept? \n"), turn("user", "\tok")], {}),
    ([turn("user", "日本語 и Ünïcode 👩‍🔬 \"quotes\" 'single' \\ back & <b>")], {}),
    ([turn("user", "<|im_end|></s><|end|><|eot|><｜User｜>[INST]")], {}),
    ([turn("user", "a"), turn("user", "b")], {}),
    ([turn("assistant", "I begin."), turn("user", "ok")], {}),
    ([turn("user", "a"), turn("system", "in between"), turn("user", "b")], {}),
    ([turn("user", "why?"), turn("assistant", "<think>\nhm\n</think>\n\nBecause."), turn("user", "more")], {}),
    ([turn("user", "why?"), turn("assistant", "Because.", reasoning_content="hm, well"), turn("user", "more")], {}),
    ([turn("user", "why?"), turn("assistant", "Because.", reasoning_content="hm, well")],
     {"add_generation_prompt": False}),
    ([turn("user", "think")], {"enable_thinking": True}),
    ([turn("user", "don't think")], {"enable_thinking": False}),
    ([turn("system", SYSTEM), turn("user", "hard")], {"thinking": True, "reasoning_effort": "high"}),
    ([turn("user", "hi")], {"tools": [WEATHER]}),
    ([turn("system", SYSTEM), turn("user", ASK)], {"tools": [WEATHER, CLOCK]}),
    (weather_turns({"city": "Zürich", "days": 2}), {"tools": [WEATHER]}),
    (weather_turns('{"city": "Zürich"}'), {"tools": [WEATHER]}),
    (weather_turns({"city": "Bern"}) + [turn("assistant", "Grey, 3.5."), turn("user", "thanks")],
     {"tools": [WEATHER, CLOCK]}),
    ([turn("user", ASK), turn("assistant", "Let me see.", tool_calls=[
        call("clock", {}, id="000000001"), call("get_weather", {"city": "Uri", "units": "C"}, id="000000002")]),
      turn("tool", "12:00", name="clock", tool_call_id="000000001"),
      turn("tool", RESULT, name="get_weather", tool_call_id="000000002")], {"tools": [WEATHER, CLOCK]}),
    (weather_turns({"city": "Genève"}, reasoning_content="a tool then"), {"tools": [CLOCK]}),
    ([turn("user", "Use the papers."), turn("assistant", "Which?"), turn("user", "These.")],
     {"documents": [{"title": "A", "text": "alpha"}, {"title": "B", "text": "beta"}]}),
    ([turn("developer", "Be brief."), turn("user", "Hi")], {}),
    ([turn("user", [{"type": "text", "text": "parts "}, {"type": "text", "text": "of text"}])], {}),
]


class PinnedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


def tokenizer_of(name, bos, eos):
    with open(os.path.join(HERE, "templates", name + ".jinja"), encoding="utf-8", newline="") as file:
        source = file.read()
    empty = Tokenizer(models.BPE())
    tokens = {k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v is not None}
    return PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=source, **tokens)


def render(tokenizer, messages, options):
    options = {"add_generation_prompt": True, **options}
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # any exception of Jinja or the template: the conversation is refused
        print(f"  refused: {type(error).__name__}: {str(error)[:90]}")
        return None


def main():
    template_utils.datetime = PinnedTime
    out = {"now": NOW, "conversations": [{"messages": m, "options": o} for m, o in CONVERSATIONS], "templates": {}}
    for name, (bos, eos) in TEMPLATES.items():
        print(name)
        tokenizer = tokenizer_of(name, bos, eos)
        out["templates"][name] = {
            "bos_token": bos, "eos_token": eos,
            "expected": [render(tokenizer, messages, options) for messages, options in CONVERSATIONS]}
    with open(os.path.join(HERE, "goldens.json"), "w", encoding="utf-8", newline="\n") as file:
        json.dump(out, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
