"""Prompts of several kinds for engines' tests."""

from __future__ import annotations

KINDS = (
    "def add_{0}(a, b):\n    return a + b + {0}\n\n\ndef sub_{0}(a, b):\n    return a - b\n\n\n",
    "Name: Ada {0}\nCity: Paris\nAge: {0}1\n\nName: Bob {0}\nCity: Rome\nAge: {0}2\n\nName: Cy\n",
    "Question: What is {0} plus {0}? Answer step by step.\nAnswer:",
    "Copy this list: red {0}, green {0}, blue {0}, white {0}, black {0}.\nCopy: red {0}, green",
    "Write a short story about {0} friends who find an old map in the attic.\n",
)


def engine_prompts(count: int) -> list[str]:
    """Different prompts, cycling through the kinds."""
    return [KINDS[at % len(KINDS)].format(at) for at in range(count)]
