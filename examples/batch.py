"""Several prompts in one call: each row advances by its own number of tokens."""

from __future__ import annotations

import smollm2

from ngramspec import Speculator

QUESTIONS = [
    "When was the lighthouse built?",
    "How far could the lamp be seen?",
    "How often did the keeper climb the steps?",
]


def main() -> None:
    """Answer all questions at once, and print the answers, the times and the statistics."""
    options = smollm2.parser(__doc__, max_new_tokens=80).parse_args()
    model, tokenizer = smollm2.load(options.model)
    chats = [
        [
            {
                "role": "user",
                "content": f"Answer with a sentence of the text. {each}\n\n{smollm2.TEXT}",
            }
        ]
        for each in QUESTIONS
    ]
    tokenizer.padding_side = "left"  # as for every batch of a decoder-only model
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
    )
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}
    speculator = Speculator()
    _, baseline = smollm2.timed(model.generate, **call)
    out, speculative = smollm2.timed(model.generate, **call, custom_generate=speculator)
    for question, row in zip(QUESTIONS, out, strict=True):
        new = row[inputs["input_ids"].shape[1] :]
        print(f"> {question}\n{tokenizer.decode(new, skip_special_tokens=True)}\n")
    smollm2.report(baseline, speculative, speculator.stats)  # tokens per call are those of a row


if __name__ == "__main__":
    main()
