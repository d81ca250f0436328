"""Coding agents and client packages through whole turns with tool calls, against the server with a scripted model: by hand,
since none of them is in Debian.

usage: agents_live_test.py [BUILD/tests/scripted_server]

Run it with the Python of an environment that has some of these; what is missing is named and skipped:
`pip install claude-agent-sdk` (it contains Claude Code), `openai-codex` (Codex CLI), `aider-chat`, `litellm`,
`openai-agents`, `pydantic-ai-slim[openai,anthropic]`, `llama-index-llms-openai-like`, `langchain-openai`, `mini-swe-agent`.
The model's answers are rules over the prompt (scripted_server.cc). A test passes if the client executed the call and its
last words are the script's answer to the call's result. Prints the version of each client.
"""
import asyncio
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVER = sys.argv.pop(1) if len(sys.argv) > 1 else os.path.join(ROOT, "build/release/tests/scripted_server")
TEXT = os.path.join(ROOT, "tests/common/text/data")
PATIENCE = 180
COMMAND = "echo $((6*7))-done"
RESULT = "42-done"
LAST = "The command printed 42-done."


def call(name, arguments):
    return "I call a tool.\n<tool_call>\n%s\n</tool_call>" % json.dumps({"name": name, "arguments": arguments})


def needs(*packages):
    """Skips a test whose packages are missing; prints the version of the first."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"not run: pip install {' '.join(missing)}")


class AgentsTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.work = os.path.join(self.dir, "work")
        os.makedirs(self.work)
        subprocess.run(["git", "init", "-q", self.work], check=True)

    def serve(self, *rules):
        """Starts the server; returns its address. A rule is (text in the prompt, answer); the first that fits answers."""
        path = os.path.join(self.dir, "rules.json")
        with open(path, "w") as file:
            json.dump([{"when": when, "answer": answer} for when, answer in rules], file)
        self.log = os.path.join(self.dir, "server.log")
        with open(self.log, "w") as log:
            server = subprocess.Popen(
                [SERVER, path, TEXT + "/chat/templates/qwen3_moe.jinja", TEXT + "/bytebpe_qwen2"],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server.stdout.readline().strip()

    def run_program(self, *command, **environment):
        home = os.path.join(self.dir, "home")
        os.makedirs(home, exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        done = subprocess.run(
            command, cwd=self.work, env={**kept, "HOME": home, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        )  # fmt: skip
        return done.stdout

    def say(self, text):
        print(f"\n  {text}", end=" ", flush=True)

    # Claude Code, which the package contains.
    def claude(self, url, prompt, *options):
        import claude_agent_sdk

        program = os.path.join(os.path.dirname(claude_agent_sdk.__file__), "_bundled/claude")
        self.say("Claude Code " + self.run_program(program, "--version").strip())
        said = self.run_program(
            program, "-p", prompt, "--model", "scripted", "--output-format", "json", "--max-turns", "6", *options,
            ANTHROPIC_BASE_URL=url, ANTHROPIC_AUTH_TOKEN="none", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )  # fmt: skip
        return json.loads(said.strip().split("\n")[-1])

    @needs("claude_agent_sdk")
    def test_claude_code_runs_a_command(self):
        url = self.serve((RESULT, LAST), ('"Bash"', call("Bash", {"command": COMMAND, "description": "count"})))
        end = self.claude(url, "Run the command.", "--allowedTools", "Bash")
        self.assertEqual((LAST, False), (end["result"], end["is_error"]))

    @needs("claude_agent_sdk")
    def test_claude_code_edits_a_file(self):
        path = os.path.join(self.work, "note.txt")
        with open(path, "w") as file:
            file.write("one marmalade\n")
        url = self.serve(
            ("has been updated", "Edited."),
            ("one marmalade", call("Edit", {"file_path": path, "old_string": "one", "new_string": "two"})),
            ('"Read"', call("Read", {"file_path": path})),
        )
        end = self.claude(url, "Edit the note.", "--allowedTools", "Read", "Edit")
        with open(path) as file:
            self.assertEqual("two marmalade\n", file.read(), end)
        self.assertEqual("Edited.", end["result"])

    # Codex CLI, which the package contains.
    def codex(self, url, prompt):
        from codex_cli_bin import bundled_codex_path

        program = str(bundled_codex_path())
        self.say(self.run_program(program, "--version").strip().split("\n")[-1])
        home = os.path.join(self.dir, "codex")
        os.makedirs(home, exist_ok=True)
        with open(os.path.join(home, "config.toml"), "w") as file:
            file.write(
                'model = "scripted"\nmodel_provider = "sluice"\n[model_providers.sluice]\nname = "sluice"\n'
                f'base_url = "{url}/v1"\nwire_api = "responses"\nrequest_max_retries = 0\nstream_max_retries = 0\n'
            )
        said = self.run_program(
            program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", prompt,
            CODEX_HOME=home,
        )  # fmt: skip
        events = [json.loads(line) for line in said.split("\n") if line.startswith("{")]
        return [event["item"] for event in events if event["type"] == "item.completed"], said

    @needs("codex_cli_bin")
    def test_codex_runs_a_command(self):
        url = self.serve((RESULT, LAST), ("exec_command", call("exec_command", {"cmd": COMMAND})))
        items, said = self.codex(url, "Run the command.")
        outputs = [item["aggregated_output"] for item in items if item["type"] == "command_execution"]
        self.assertEqual([RESULT + "\n"], outputs, said)
        self.assertEqual(LAST, items[-1]["text"])

    @needs("aider")
    def test_aider_edits_a_file(self):
        path = os.path.join(self.work, "sum.py")
        with open(path, "w") as file:
            file.write("print(1)\n")
        edit = "I change it.\n\nsum.py\n```python\n<<<<<<< SEARCH\nprint(1)\n=======\nprint(2)\n>>>>>>> REPLACE\n```\n"
        url = self.serve(("", edit))
        said = self.run_program(
            sys.executable, "-m", "aider", "--model", "openai/scripted", "--edit-format", "diff", "--yes-always",
            "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-auto-commits", "--no-gitignore",
            "--message", "Print 2.", "sum.py", OPENAI_API_BASE=url + "/v1", OPENAI_API_KEY="none",
        )  # fmt: skip
        self.say("aider " + importlib.metadata.version("aider-chat"))
        with open(path) as file:
            self.assertEqual("print(2)\n", file.read(), said)

    @needs("litellm")
    def test_litellm_calls_a_tool_on_both_apis(self):
        import litellm

        self.say("litellm " + importlib.metadata.version("litellm"))
        url = self.serve((RESULT, LAST), ('"run"', call("run", {"command": COMMAND})))
        tool = {"type": "function", "function": {"name": "run", "description": "Runs.", "parameters": {
            "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}  # fmt: skip
        for model, base in (("openai/scripted", url + "/v1"), ("anthropic/scripted", url)):
            for stream in (False, True):
                with self.subTest(model=model, stream=stream):
                    messages = [{"role": "user", "content": "Run the command."}]

                    def ask():
                        answer = litellm.completion(
                            model=model, api_base=base, api_key="none", messages=messages, tools=[tool], stream=stream)  # fmt: skip
                        return litellm.stream_chunk_builder(list(answer)) if stream else answer

                    message = ask().choices[0].message
                    self.assertEqual({"command": COMMAND}, json.loads(message.tool_calls[0].function.arguments))
                    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
                    self.assertEqual(LAST, ask().choices[0].message.content)

    @needs("agents")
    def test_openai_agents_run_to_the_end(self):
        import agents
        from openai import AsyncOpenAI

        self.say("openai-agents " + importlib.metadata.version("openai-agents"))
        url = self.serve((RESULT, LAST), ('"run"', call("run", {"command": COMMAND})))
        agents.set_tracing_disabled(True)

        @agents.function_tool
        def run(command: str) -> str:
            """Runs a command."""
            return subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True).stdout

        for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            with self.subTest(kind=kind.__name__):
                client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)  # belongs to one event loop
                agent = agents.Agent(name="a", instructions="Run it.", tools=[run], model=kind("scripted", client))
                end = asyncio.run(agents.Runner.run(agent, "Run the command."))
                self.assertEqual(LAST, end.final_output)

    @needs("pydantic_ai")
    def test_pydantic_ai_runs_to_the_end(self):
        import anthropic
        from openai import AsyncOpenAI
        from pydantic_ai import Agent
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider

        self.say("pydantic-ai " + importlib.metadata.version("pydantic-ai-slim"))
        url = self.serve((RESULT, LAST), ('"run"', call("run", {"command": COMMAND})))
        chat = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url + "/v1", api_key="none"))
        messages = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=url, api_key="none"))
        for model in (OpenAIChatModel("scripted", provider=chat), AnthropicModel("scripted", provider=messages)):
            with self.subTest(model=type(model).__name__):
                agent = Agent(model)

                @agent.tool_plain
                def run(command: str) -> str:
                    return subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True).stdout

                self.assertEqual(LAST, agent.run_sync("Run the command.").output)

    @needs("llama_index.llms.openai_like" if importlib.util.find_spec("llama_index") else "llama_index")
    def test_llama_index_calls_a_tool(self):
        from llama_index.core.llms import ChatMessage
        from llama_index.core.tools import FunctionTool
        from llama_index.llms.openai_like import OpenAILike

        self.say("llama-index-llms-openai-like " + importlib.metadata.version("llama-index-llms-openai-like"))
        url = self.serve((RESULT, LAST), ('"run"', call("run", {"command": COMMAND})))
        model = OpenAILike(model="scripted", api_base=url + "/v1", api_key="none", is_chat_model=True,
                           is_function_calling_model=True)  # fmt: skip

        def run(command: str) -> str:
            """Runs a command."""
            return RESULT

        history = [ChatMessage(role="user", content="Run the command.")]
        tools = [FunctionTool.from_defaults(run)]
        answer = model.chat_with_tools(tools, chat_history=history)
        asked = model.get_tool_calls_from_response(answer)
        self.assertEqual({"command": COMMAND}, asked[0].tool_kwargs)
        history += [answer.message, ChatMessage(role="tool", content=RESULT,
                                                additional_kwargs={"tool_call_id": asked[0].tool_id})]  # fmt: skip
        self.assertEqual(LAST, model.chat_with_tools(tools, chat_history=history).message.content)

    @needs("langchain_openai")
    def test_langchain_calls_a_tool_on_both_apis(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI

        self.say("langchain-openai " + importlib.metadata.version("langchain-openai"))
        url = self.serve((RESULT, LAST), ('"run"', call("run", {"command": COMMAND})))

        @tool
        def run(command: str) -> str:
            """Runs a command."""
            return RESULT

        for responses in (False, True):
            with self.subTest(responses=responses):
                model = ChatOpenAI(model="scripted", base_url=url + "/v1", api_key="none", max_retries=0,
                                   use_responses_api=responses).bind_tools([run])  # fmt: skip
                messages = [HumanMessage("Run the command.")]
                answer = model.invoke(messages)
                self.assertEqual({"command": COMMAND}, answer.tool_calls[0]["args"])
                messages += [answer, ToolMessage(RESULT, tool_call_id=answer.tool_calls[0]["id"])]
                self.assertEqual(LAST, model.invoke(messages).text)

    @needs("minisweagent")
    def test_mini_swe_agent_runs_a_command(self):
        self.say("mini-swe-agent " + importlib.metadata.version("mini-swe-agent"))
        finish = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 42-submitted"
        url = self.serve((RESULT, call("bash", {"command": finish})), ('"bash"', call("bash", {"command": COMMAND})))
        out = os.path.join(self.dir, "end.json")
        said = self.run_program(
            sys.executable, "-m", "minisweagent.run.mini", "--task", "Run the command.", "--model", "openai/scripted",
            "--yolo", "--exit-immediately", "--cost-limit", "0", "--output", out, OPENAI_API_BASE=url + "/v1",
            OPENAI_API_KEY="none", MSWEA_CONFIGURED="true", MSWEA_COST_TRACKING="ignore_errors",
        )  # fmt: skip
        with open(out) as file:
            self.assertIn("42-submitted", file.read(), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
