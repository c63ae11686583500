"""Several prompts in one call: each row advances by its own number of tokens."""

from __future__ import annotations

import smollm2

from ngramspec import Speculator

QUESTIONS = [
    "Repeat this list three times: red, green, blue, yellow.",
    "Count from one to twelve.",
    "Repeat this sentence twice: The lamp is lit every evening.",
]


def main() -> None:
    """Generate for all prompts at once, and print the texts and the statistics."""
    options = smollm2.parser(__doc__, max_new_tokens=60).parse_args()
    model, tokenizer = smollm2.load(options.model)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    tokenizer.padding_side = "left"  # as for every batch of a decoder-only model
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
    )
    speculator = Speculator()
    out = model.generate(
        **inputs,
        max_new_tokens=options.max_new_tokens,
        do_sample=False,
        custom_generate=speculator,
    )
    for question, row in zip(QUESTIONS, out, strict=True):
        new = row[inputs["input_ids"].shape[1] :]
        print(f"> {question}\n{tokenizer.decode(new, skip_special_tokens=True)}\n")
    print(f"{speculator.stats.tokens_per_call:.2f} tokens per call of a row")


if __name__ == "__main__":
    main()
