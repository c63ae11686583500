"""Whether a text that is still growing can become a JSON array or object."""

from __future__ import annotations

import re

WHITESPACE = frozenset(" \t\n\r")
LITERALS = ("true", "false", "null")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
NUMBER_CHARACTERS = frozenset("-+.eE0123456789")
CLOSERS = {"{": "}", "[": "]"}


class JsonPrefix:
    """Reads an array or an object character by character, and nothing after it.

    It accepts the JSON that Python's ``json`` accepts, without NaN and infinities.

    Attributes:
        legal: whether the text so far is an array or an object, or the beginning of one.
        end: its length in characters, including leading whitespace; None: it has not ended.
    """

    def __init__(self) -> None:
        self.legal = True
        self.end: int | None = None
        self._read = 0
        self._open: list[str] = []  # closing brackets of the open arrays and objects
        self._next = self._begin  # the method that reads the next character
        self._word = ""  # the characters read of a literal or a number
        self._key = False  # whether the current string is a key

    def add(self, text: str) -> None:
        """Read more text, up to the end or to the first illegal character."""
        for letter in text:
            if self.end is not None or not self.legal:
                return
            self.legal = self._next(letter)
            self._read += 1
            if self.legal and not self._open and self._next == self._after_value:
                self.end = self._read

    def _begin(self, letter: str) -> bool:
        """Before the array or object, which may follow any whitespace."""
        return letter.isspace() or self._nest(letter)

    def _nest(self, letter: str) -> bool:
        if letter not in CLOSERS:
            return False
        self._open.append(CLOSERS[letter])
        self._next = self._first_key if letter == "{" else self._first
        return True

    def _close(self, letter: str) -> bool:
        if letter != self._open[-1]:
            return False
        self._open.pop()
        self._next = self._after_value
        return True

    def _first(self, letter: str) -> bool:
        """After ``[``: a value or the end."""
        return self._close(letter) or self._value(letter)

    def _first_key(self, letter: str) -> bool:
        """After ``{``: a key or the end."""
        return self._close(letter) or self._a_key(letter)

    def _a_key(self, letter: str) -> bool:
        return letter in WHITESPACE or (letter == '"' and self._quote(key=True))

    def _value(self, letter: str) -> bool:
        if letter in WHITESPACE or self._nest(letter):
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
            self._next = self._colon if self._key else self._after_value
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
        return letter == ":" or letter in WHITESPACE

    def _in_word(self, letter: str) -> bool:
        """In a literal or a number, or at the character after it."""
        word = self._word + letter
        if (letter in NUMBER_CHARACTERS and set(word) <= NUMBER_CHARACTERS) or any(
            literal.startswith(word) for literal in LITERALS
        ):
            self._word = word
            return True
        whole = self._word in LITERALS or NUMBER.fullmatch(self._word) is not None
        self._next = self._after_value
        return whole and self._after_value(letter)

    def _after_value(self, letter: str) -> bool:
        """After a value inside an array or object."""
        if letter == ",":
            self._next = self._a_key if self._open[-1] == "}" else self._value
            return True
        return letter in WHITESPACE or self._close(letter)
