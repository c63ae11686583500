"""Tokens per second of mlx-lm with and without ngramspec, for Apple's laptops.

Requires mlx-lm, with ngramspec in its environment; see docs/engines/mlx.md. The two take turns.

    python examples/mlx_speed.py --model mlx-community/Qwen2.5-Coder-1.5B-Instruct-4bit

It prints a table, and writes all turns to mlx_speed.json. There is no output here, because the
project has no such computer.
"""

import argparse
import json
import platform
from importlib.metadata import version
from statistics import median

CODE = '''class Account:
    """A bank account."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount

    def withdraw(self, amount):
        self.balance = self.balance - amount
'''
TEXT = """The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the
reef in one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one
hundred and twelve steps every evening to light the lamp, and every morning to put it out."""
PROMPTS = {
    "edit": f"Rename Account to BankAccount and balance to total. Answer with the code:\n\n{CODE}",
    "summary": f"Summarize this text in two sentences:\n\n{TEXT}",
    "story": "Write a short story about two friends who find an old map in the attic.",
}


def turn(generate, model, tokenizer, prompt, options):
    """Return the ids, the tokens per second after the prompt, and the accepted draft tokens."""
    drafted, ids = 0, []
    for response in generate(model, tokenizer, prompt, max_tokens=options.max_tokens):
        ids.append(response.token)
        drafted += response.from_draft
    return ids, response.generation_tps, drafted


def main():
    """Measure each prompt in turns, without and with ngramspec."""
    from mlx_lm import load
    from mlx_lm import stream_generate as plain

    from ngramspec import __version__
    from ngramspec.engines.mlx_lm import stream_generate

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="mlx_speed.json")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    ways, results = {"plain": plain, "ngramspec": stream_generate}, []
    for name, text in PROMPTS.items():
        prompt = text
        if tokenizer.has_chat_template:
            chat = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        said = {way: [] for way in ways}
        for repeat in range(options.repeats + 1):  # the first turn loads kernels
            for way, generate in ways.items():
                ids, rate, drafted = turn(generate, model, tokenizer, prompt, options)
                said[way] += [{"ids": ids, "rate": rate, "drafted": drafted}] * (repeat > 0)
        rates = {way: median(each["rate"] for each in turns) for way, turns in said.items()}
        same = said["plain"][-1]["ids"] == said["ngramspec"][-1]["ids"]
        results.append({"prompt": name, "rates": rates, "same": same, "turns": said})
        plain_rate, rate = rates.values()
        print(f"{name}: {plain_rate:.1f} and {rate:.1f} tokens per second, {rate / plain_rate:.2f}")
    versions = {"ngramspec": __version__} | {each: version(each) for each in ("mlx", "mlx-lm")}
    machine = {"machine": platform.platform(), "model": options.model, "versions": versions}
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(machine | {"results": results}, file, indent=1)


if __name__ == "__main__":
    main()
