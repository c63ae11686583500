"""Complete code that resembles another file: ``reference_ids`` lets the drafter copy from it."""

from __future__ import annotations

import smollm2

import ngramspec
from ngramspec import Speculator

REFERENCE = '''\
def area_of_rectangle(width, height):
    """Return the area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("width and height must not be negative")
    return width * height


def perimeter_of_rectangle(width, height):
    """Return the perimeter of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("width and height must not be negative")
    return 2 * (width + height)
'''
START = '''\
def area_of_rectangle(width, height):
    """Return the area of a rectangle."""
'''


def main() -> None:
    """Complete the same start without and with the reference text."""
    options = smollm2.parser(__doc__, max_new_tokens=64).parse_args()
    model, tokenizer = smollm2.load(options.model)
    inputs = tokenizer(START, return_tensors="pt")
    reference = tokenizer(REFERENCE)["input_ids"]
    for name, extra in (("without", {}), ("with", {"reference_ids": reference})):
        speculator = Speculator()
        out = ngramspec.generate(
            model,
            **inputs,
            speculator=speculator,
            max_new_tokens=options.max_new_tokens,
            do_sample=False,
            **extra,
        )
        print(f"{name} reference text: {speculator.stats.tokens_per_call:.2f} tokens per call")
    print(tokenizer.decode(out[0], skip_special_tokens=True))  # the text is the same both times


if __name__ == "__main__":
    main()
