"""Summarize several texts in one call, with an encoder-decoder model such as T5.

    python summaries_batch.py

Version 5 of transformers has no pipeline for summaries, so the texts are encoded as a padded
batch. It prints the summaries, the times of the baseline and with speculation, and the tokens per
forward. For many texts and a decoder-only model, see summarize_folder.py.
"""

import argparse
import time

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import ngramspec

TEXTS = [
    """The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the
reef in one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one
hundred and twelve steps every evening to light the lamp, and every morning to put it out.""",
    """Before the first use, pump two litres of clean water through the filter. The water may
look cloudy at first, because fine ceramic dust is washed out of the cartridge.""",
    """The library opens at nine on weekdays and at ten on Saturdays. Books can be borrowed for
three weeks, and returned at any hour through the slot next to the main door.""",
]


def timed(function, **arguments):
    """Call a function; return its result and the seconds that it needs."""
    start = time.perf_counter()
    return function(**arguments), time.perf_counter() - start


def main():
    """Summarize all texts at once, as baseline and with speculation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="google-t5/t5-small")
    parser.add_argument("--prefix", default="summarize: ", help="before each text")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype=torch.float32)
    model = model.to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    inputs = tokenizer(
        [options.prefix + text for text in TEXTS],
        padding=True,
        truncation=True,
        return_tensors="pt",
    ).to(device)
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}

    plain, baseline = timed(model.generate, **call)
    with ngramspec.enable(model) as handle:
        out, speculative = timed(model.generate, **call)

    for summary in tokenizer.batch_decode(out, skip_special_tokens=True):
        print(f"> {summary}")
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{handle.stats.tokens_per_call:.1f} tokens per forward")
    print(f"same text: {out.equal(plain)}")


if __name__ == "__main__":
    main()
