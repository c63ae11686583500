"""A chat over several turns: later answers are drafted from earlier ones."""

from __future__ import annotations

import smollm2

from ngramspec import Speculator

QUESTIONS = [
    "Write a function in Python that returns the area of a rectangle.",
    "Give it a docstring.",
    "Give it type hints too.",
]


def main() -> None:
    """Ask the questions one after another; one Speculator serves all turns."""
    options = smollm2.parser(__doc__, max_new_tokens=64).parse_args()
    model, tokenizer = smollm2.load(options.model)
    speculator = Speculator()
    chat: list[dict[str, str]] = []
    for question in QUESTIONS:
        chat.append({"role": "user", "content": question})
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}
        speculator.reset()
        _, baseline = smollm2.timed(model.generate, **call)
        out, speculative = smollm2.timed(model.generate, **call, custom_generate=speculator)
        new = out[0, inputs["input_ids"].shape[1] :]
        answer = tokenizer.decode(new, skip_special_tokens=True)
        chat.append({"role": "assistant", "content": answer})
        print(f"> {question}\n{answer}\n")
        smollm2.report(baseline, speculative, speculator.stats)
        print()


if __name__ == "__main__":
    main()
