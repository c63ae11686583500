"""Summarize a text with a pipeline: existing code speculates inside an ``enabled`` block."""

from __future__ import annotations

import smollm2
from transformers import pipeline

import ngramspec
from ngramspec import Speculator

TEXT = (
    "The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef in "
    "one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one "
    "hundred and twelve steps every evening to light the lamp, and every morning to put it out."
)


def main() -> None:
    """Summarize the text and print summary and statistics."""
    options = smollm2.parser(__doc__, max_new_tokens=80).parse_args()
    model, tokenizer = smollm2.load(options.model)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    chat = [{"role": "user", "content": f"Summarize this text in two sentences:\n\n{TEXT}"}]
    speculator = Speculator()
    with ngramspec.enabled(model, speculator):
        answer = pipe(chat, max_new_tokens=options.max_new_tokens, do_sample=False)
    print(answer[0]["generated_text"][-1]["content"])
    print(f"{speculator.stats.tokens_per_call:.2f} tokens per call")


if __name__ == "__main__":
    main()
