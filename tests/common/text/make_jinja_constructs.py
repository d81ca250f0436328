"""usage: make_jinja_constructs.py DATA.json; renders each construct of DATA with Jinja2, set up as transformers'
apply_chat_template sets it up, and writes `expected` beside it, null where Jinja2 refuses. Needs python3-jinja2. A new
construct is a further {"template": ".."} in DATA's `cases`."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_jinja_cases import ENVIRONMENT  # noqa: E402


def rendered(template, conversation):
    try:
        return ENVIRONMENT.from_string(template).render(**conversation, bos_token="<s>", add_generation_prompt=False)
    except Exception:  # Jinja2 refuses with many types
        return None


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    for case in data["cases"]:
        case["expected"] = rendered(case["template"], json.loads(json.dumps(data["conversation"])))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write('{"conversation": ' + json.dumps(data["conversation"], ensure_ascii=False) + ',\n"cases": [\n')
        file.write(",\n".join(json.dumps(case, ensure_ascii=False) for case in data["cases"]))
        file.write("\n]}\n")


if __name__ == "__main__":
    main()
