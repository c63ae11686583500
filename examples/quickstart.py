"""The shortest way in: one prompt, the hook of transformers, and the statistics."""

from __future__ import annotations

import smollm2

from ngramspec import Speculator

QUESTION = "Repeat this list three times: red, green, blue, yellow."


def main() -> None:
    """Generate once and print text and statistics."""
    options = smollm2.parser(__doc__, max_new_tokens=100).parse_args()
    model, tokenizer = smollm2.load(options.model)
    inputs = smollm2.encode(tokenizer, QUESTION)
    speculator = Speculator()
    out = model.generate(
        **inputs,
        max_new_tokens=options.max_new_tokens,
        do_sample=False,
        custom_generate=speculator,
    )
    print(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    stats = speculator.stats
    print(f"{stats.tokens_per_call:.2f} tokens per call, acceptance rate {stats.alpha:.2f}")


if __name__ == "__main__":
    main()
