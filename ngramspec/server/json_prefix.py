"""Whether a text that is still growing can become a JSON array or object."""

from __future__ import annotations

import re

SPACE = frozenset(" \t\n\r")
LITERALS = ("true", "false", "null")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
OF_NUMBERS = frozenset("-+.eE0123456789")
ENDS = {"{": "}", "[": "]"}


class JsonPrefix:
    """Reads an array or an object letter by letter; what is behind it is not read.

    It is the JSON that Python's ``json`` reads, but without NaN and infinities.

    Attributes:
        legal: whether what was read begins an array or an object, or is one.
        end: how many letters that took, whitespace before it included; None: it has not ended.
    """

    def __init__(self) -> None:
        self.legal = True
        self.end: int | None = None
        self._read = 0
        self._open: list[str] = []  # what ends the arrays and objects that have begun
        self._next = self._begin  # what reads the next letter
        self._word = ""  # of a literal or a number, as far as it was read
        self._key = False  # whether the string that is being read is a key

    def add(self, text: str) -> None:
        """Read some more text, up to the end or to the first letter that is not legal."""
        for letter in text:
            if self.end is not None or not self.legal:
                return
            self.legal = self._next(letter)
            self._read += 1
            if self.legal and not self._open and self._next == self._behind:
                self.end = self._read

    def _begin(self, letter: str) -> bool:
        """Before the array or object, which may stand behind any whitespace."""
        return letter.isspace() or self._nest(letter)

    def _nest(self, letter: str) -> bool:
        if letter not in ENDS:
            return False
        self._open.append(ENDS[letter])
        self._next = self._first_key if letter == "{" else self._first
        return True

    def _close(self, letter: str) -> bool:
        if letter != self._open[-1]:
            return False
        self._open.pop()
        self._next = self._behind
        return True

    def _first(self, letter: str) -> bool:
        """Of an array: a value, or its end."""
        return self._close(letter) or self._value(letter)

    def _first_key(self, letter: str) -> bool:
        """Of an object: a key, or its end."""
        return self._close(letter) or self._a_key(letter)

    def _a_key(self, letter: str) -> bool:
        return letter in SPACE or (letter == '"' and self._quote(key=True))

    def _value(self, letter: str) -> bool:
        if letter in SPACE or self._nest(letter):
            return True
        if letter == '"':
            return self._quote(key=False)
        self._word, self._next = "", self._in_word
        return self._in_word(letter)

    def _quote(self, *, key: bool) -> bool:
        self._key, self._next = key, self._in_string
        return True

    def _in_string(self, letter: str) -> bool:
        if letter == '"':
            self._next = self._colon if self._key else self._behind
        elif letter == "\\":
            self._next = self._escape
        return letter >= " "

    def _escape(self, letter: str) -> bool:
        self._word, self._next = "", self._hex if letter == "u" else self._in_string
        return letter in '"\\/bfnrtu'

    def _hex(self, letter: str) -> bool:
        self._word += letter
        if len(self._word) == 4:
            self._next = self._in_string
        return letter in "0123456789abcdefABCDEF"

    def _colon(self, letter: str) -> bool:
        if letter == ":":
            self._next = self._value
        return letter == ":" or letter in SPACE

    def _in_word(self, letter: str) -> bool:
        """In a literal or a number, or at the letter behind it."""
        word = self._word + letter
        if (letter in OF_NUMBERS and set(word) <= OF_NUMBERS) or any(
            literal.startswith(word) for literal in LITERALS
        ):
            self._word = word
            return True
        whole = self._word in LITERALS or NUMBER.fullmatch(self._word) is not None
        self._next = self._behind
        return whole and self._behind(letter)

    def _behind(self, letter: str) -> bool:
        """Behind a value inside an array or object."""
        if letter == ",":
            self._next = self._a_key if self._open[-1] == "}" else self._value
            return True
        return letter in SPACE or self._close(letter)
