"""Summarize a text with a pipeline: existing code speculates inside an ``enabled`` block."""

from __future__ import annotations

import smollm2
from transformers import pipeline

import ngramspec
from ngramspec import Speculator


def main() -> None:
    """Summarize the text, and print the summary, the times and the statistics."""
    options = smollm2.parser(__doc__, max_new_tokens=64).parse_args()
    model, tokenizer = smollm2.load(options.model)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    question = f"Summarize this text in two sentences:\n\n{smollm2.TEXT}"
    chat = [{"role": "user", "content": question}]
    call = {"max_new_tokens": options.max_new_tokens, "do_sample": False}
    speculator = Speculator()
    _, baseline = smollm2.timed(pipe, chat, **call)
    with ngramspec.enabled(model, speculator):
        answer, speculative = smollm2.timed(pipe, chat, **call)
    print(answer[0]["generated_text"][-1]["content"])
    smollm2.report(baseline, speculative, speculator.stats)


if __name__ == "__main__":
    main()
