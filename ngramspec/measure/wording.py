"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A number of things; the plural of the noun must end in s.

    Example:
        >>> counted(1, "prompt"), counted(1234, "prompt")
        ('1 prompt', '1,234 prompts')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
