"""The shortest way in: one prompt, the hook of transformers, and the statistics."""

from __future__ import annotations

import smollm2

from ngramspec import Speculator

QUESTION = f"Summarize this text in two sentences:\n\n{smollm2.TEXT}"


def main() -> None:
    """Generate without and with speculation, and print the text, the times and the statistics."""
    options = smollm2.parser(__doc__, max_new_tokens=64).parse_args()
    model, tokenizer = smollm2.load(options.model)
    inputs = smollm2.encode(tokenizer, QUESTION)
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}
    speculator = Speculator()
    _, baseline = smollm2.timed(model.generate, **call)
    out, speculative = smollm2.timed(model.generate, **call, custom_generate=speculator)
    print(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    smollm2.report(baseline, speculative, speculator.stats)


if __name__ == "__main__":
    main()
