#!/usr/bin/env python3
"""usage: chat_http.py [BASE_URL] [--key KEY]

Talks to inferd's OpenAI server with Python's own library: streams an answer, then prints one that conforms to a schema.
BASE_URL defaults to http://127.0.0.1:8080/v1. The `openai` package does the same in fewer lines.
"""
import argparse
import json
import urllib.error
import urllib.request

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def post(options, path, body):
    headers = {"Content-Type": "application/json"}
    if options.key:
        headers["Authorization"] = "Bearer " + options.key
    request = urllib.request.Request(options.base + path, json.dumps(body).encode(), headers)
    try:
        return urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        raise SystemExit("refused: %s" % json.load(error)["error"]["message"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--key")
    options = parser.parse_args()
    say = [{"role": "user", "content": "The film is a story about a young man who"}]

    stream = post(options, "/chat/completions", {"messages": say, "max_tokens": 32, "temperature": 0, "stream": True})
    for line in stream:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            for choice in json.loads(line[6:])["choices"]:
                print(choice["delta"].get("content", ""), end="", flush=True)
    print()

    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = json.load(post(options, "/chat/completions", {"messages": say, "max_tokens": 100, "response_format": form}))
    print(json.loads(answer["choices"][0]["message"]["content"]))


if __name__ == "__main__":
    main()
