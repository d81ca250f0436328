"""usage: make_jinja_cases.py OUT.json; renders the templates below with Jinja2, set up as transformers'
apply_chat_template sets it up, over twenty conversations, and writes {template, conversation, expected or null}.
Needs python3-jinja2. The templates are written in the manner of published chat templates: ChatML, [INST], channel
tags, tools as JSON and as XML, reasoning that is cut from earlier turns."""
import datetime
import json
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1700000000


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
ENVIRONMENT.filters["tojson"] = to_json
ENVIRONMENT.globals["raise_exception"] = refuse
ENVIRONMENT.globals["strftime_now"] = lambda text: datetime.datetime.fromtimestamp(
    NOW, datetime.timezone.utc).strftime(text)

TEMPLATES = {
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "inst": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] | trim + "\\n\\n" %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: ' ~ message['role']) }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system_message if loop.first else '') + message['content'] | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' and message.content is not none %}
        {{- ' ' ~ message.content.strip() ~ eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
""",
    "tools": """{%- macro render_extra(d, skip) %}
{%- for key, value in d | items %}{%- if key not in skip %}

<{{ key }}>{{ value if value is string else value | tojson }}</{{ key }}>{%- endif %}{%- endfor %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- "# Tools\\n\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{{- render_extra(tool.function.parameters, ['type']) }}{%- endfor %}
{{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "channels": """{%- macro describe(spec) -%}
{%- if spec.type == "array" -%}{{ describe(spec['items']) }}[]
{%- elif spec.enum -%}{{ spec.enum | map("tojson") | join(" | ") }}
{%- elif spec.type is defined -%}{{ {"string": "string", "integer": "number"}.get(spec.type, "any") }}
{%- else -%}any{%- endif -%}
{%- endmacro -%}
<|start|>system<|message|>{{ "Today is " ~ strftime_now("%Y-%m-%d") ~ ".\\n\\nReasoning: " ~ (reasoning_effort | default("medium")) }}<|end|>
{%- for tool in tools or [] -%}
// {{ tool.function.description | replace("\\n", " ") }}
type {{ tool.function.name }} = (_: {
{%- for name, spec in tool.function.parameters.properties | dictsort %}{{ name }}{{ "?" if name not in tool.function.parameters.required }}: {{ describe(spec) }},
{%- endfor %} }) => any;
{%- endfor %}
{%- for m in messages if m.role not in ["developer"] %}
{%- if m.content is iterable and m.content is not string %}
<|start|>{{ m.role }}<|message|>{% for part in m.content %}{{ part.text | trim }}{{ "|" if not loop.last }}{% endfor %}<|end|>
{%- elif m.content %}
<|start|>{{ m.role }}{% if loop.previtem is defined and loop.previtem.role == m.role %}*{% endif %}<|message|>{% generation %}{{ m.content }}{% endgeneration %}<|end|>
{%- else %}{% continue %}{% endif %}
{%- if loop.index > 5 %}{% break %}{% endif %}
{%- else %}
nobody speaks
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
""",
    "language": """{%- set ns = namespace(x=0, found=false) -%}
{% macro f(a, b='q') %}[{{ a }}|{{ b }}]{{ caller() if caller }}{% endmacro %}
{% for m in messages if m.role != 'system' %}
  {%- if loop.first and not ns.found %}{% set ns.found = true %}FIRST{% endif %}
{{ loop.index }}/{{ loop.revindex }} {{ m['role'] | upper }}: {{ (m.content or '') | string | trim }}{{ f(m.role) }} {{ f(b=loop.last, a=1) }}
{% if loop.index0 is even %}even{% else %}odd{% endif %}

{% else %}
none
{% endfor %}
{{ messages[0].content[:3] if messages[0].content is string else messages | length }} {{ 'a,b,c'.split(',') }} {{ [1, 2.5, 'x', none, true] }} {{ {'k': 'v', 'n': [1, {}]} | tojson }} {{ {'k': {'z': 1}, 'e': []} | tojson(indent=2) }}
{{ "%s" ~ 7 // 2 ~ -7 // 2 ~ 2 ** 3 ~ -7 % 3 }} {{ 'abc' in 'xabcx' }} {{ not true and false or 'z' }} {{ x is defined }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 1 < 2 <= 2 }} {{ 3 > 2 > 2 }}
{{- '  tight  ' }} {#- comment -#}   
{{ 'Hello World'.title() }} {{ "tab\\tq" | tojson }} {{ range(1, 7, 2) | list }} {{ 3.0 }} {{ 1 / 4 }} {{ 10 | float }} {{ -3 | abs }} {{ 'x' if false }}|{{ 'abc'[-1] }}{{ 'abc'[::-1] }}{{ 'né'[1] }}
{% raw %}{{ not run }}{% endraw %}
{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}
{% for k, v in {'b': 1, 'a': 2}.items() %}{% if k == 'a' %}{% continue %}{% endif %}{{ k }}{{ v }}{% endfor %}
{% filter upper %}shout {{ 1 }}{% endfilter %}
{% set block %}cap {{ ns.found }}{% endset %}{{ block | length }}{{ block }}
{% call f('called') %}body{% endcall %}
    {%+ if true %} kept {% endif +%}
{{ [3, 1, 2] | sort | join('-') }} {{ ['b', 'a', 'b'] | unique | list }} {{ [0, 1, ''] | select | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ 'a' * 3 }} {{ [1] + [2] }} {{ "it's" }} {{ ["it's", 'q"'] }}
{{ 'line one\\nline two' | indent(2) }} {{ [1, 2] | max }} {{ 'CamelCase'.lower().replace('c', 'k', 1) }} {{ ' a b  c '.split() }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 2.5 | round }} {{ '7' | int + 1 }}
""",
}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(arguments):
    return {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Get \"weather\" <|im_end|>\nof a city",
    "parameters": {"type": "object", "properties": {
        "n": {"type": "integer", "enum": [1, 2]}, "city": {"type": "string", "description": "The city"},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]}}}

CONVERSATIONS = [
    {"messages": [user("Hello")]},
    {"messages": [system("Be brief."), user("Hi  \n"), assistant(" Hello there! "), user("ünï ¿?")]},
    {"messages": [user("a"), assistant("b"), user("c"), assistant("d"), user("<|im_start|>x</s>")]},
    {"messages": [system("sys"), user("weather?"), assistant(None, tool_calls=[call({"city": "Rome", "n": 1})]),
                  {"role": "tool", "content": "sunny", "tool_call_id": "call12345"}, assistant("It is sunny")],
     "tools": [TOOL]},
    {"messages": [user("x")], "tools": [TOOL, TOOL]},
    {"messages": [user("q"), assistant("<think>\nhmm\n</think>\n\nanswer"), user("more")], "enable_thinking": False},
    {"messages": [user("q"), assistant("<think>\nhmm\n</think>\n\nanswer")], "enable_thinking": True},
    {"messages": [user("q"), assistant("", reasoning_content="let me think", tool_calls=[call('{"a": 1}')]),
                  {"role": "tool", "content": "r1"}, {"role": "tool", "content": "r2"}, user("z")]},
    {"messages": [assistant("starts wrong")]},
    {"messages": [user([{"type": "text", "text": " part one "}, {"type": "text", "text": "two"}])]},
    {"messages": [system("only a system message")]},
    {"messages": [user("")]},
    {"messages": [user("tabs\tand \"quotes\" and \\ and \u0001 and \u007f")], "tools": [TOOL]},
    {"messages": [user("日本語 😀"), assistant("はい"), user("emoji 👩‍👩‍👧")]},
    {"messages": [user("u1"), user("u2")]},
    {"messages": [{"role": "developer", "content": "dev"}, user("after")], "reasoning_effort": "high"},
    {"messages": [user(str(i)) if i % 2 == 0 else assistant(str(i)) for i in range(9)]},
    {"messages": [user("{{ not a template }} {% if %}")]},
    {"messages": [system("  spaces  "), user("  spaces  "), assistant("  spaces  "), user("  spaces  ")]},
    {"messages": [user("numbers"), assistant(None, tool_calls=[call({"x": 1.5, "y": None, "z": [True, -3]})])]},
]


def without_nulls(conversation):
    """Drops null members of messages, as transformers 5 does."""
    messages = [{k: v for k, v in message.items() if v is not None} for message in conversation["messages"]]
    return {**conversation, "messages": messages}


def main(path):
    cases = []
    for name, source in TEMPLATES.items():
        template = ENVIRONMENT.from_string(source)
        for conversation in CONVERSATIONS:
            for prompt in (False, True):
                variables = {"tools": None, "documents": None, **without_nulls(conversation)}
                try:
                    expected = template.render(**variables, add_generation_prompt=prompt, bos_token="<s>",
                                               eos_token="</s>")
                except (jinja2.exceptions.TemplateError, TypeError):
                    expected = None
                cases.append({"name": name, "conversation": conversation, "prompt": prompt, "expected": expected})
    with open(path, "w", encoding="ascii") as out:
        json.dump({"now": NOW, "templates": TEMPLATES, "cases": cases}, out, indent=0)
        out.write("\n")
    print(len(cases), "cases,", sum(case["expected"] is None for case in cases), "refused")


if __name__ == "__main__":
    main(sys.argv[1])
