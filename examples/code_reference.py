"""Write code that resembles another file: ``reference_ids`` lets the drafter copy from it."""

from __future__ import annotations

import smollm2

import ngramspec
from ngramspec import Speculator

REFERENCE = '''\
"""Shapes in the plane."""


class Square:
    def __init__(self, length):
        self.length = length

    def area(self):
        return self.length * self.length

    def perimeter(self):
        return 4 * self.length


class Box:
    """A rectangle with sides parallel to the axes."""

    def __init__(self, length, width):
        self.length = length
        self.width = width

    def area(self):
        return self.length * self.width

    def perimeter(self):
        return 2 * (self.length + self.width)
'''
QUESTION = "Write a Python class Rectangle with methods area and perimeter."


def main() -> None:
    """Generate the same code as baseline, without and with the reference text."""
    options = smollm2.parser(__doc__, max_new_tokens=66).parse_args()
    model, tokenizer = smollm2.load(options.model)
    inputs = smollm2.encode(tokenizer, QUESTION)
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}
    reference = tokenizer(REFERENCE)["input_ids"]
    _, baseline = smollm2.timed(model.generate, **call)
    for name, extra in (("without", {}), ("with", {"reference_ids": reference})):
        speculator = Speculator()
        out, speculative = smollm2.timed(
            ngramspec.generate, model, **call, speculator=speculator, **extra
        )
        print(f"{name} reference text: ", end="")
        smollm2.report(baseline, speculative, speculator.stats)
    # the text is the same all three times
    print(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main()
