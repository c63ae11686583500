"""Whether a text that is still growing can become a JSON array or object."""

from __future__ import annotations

DIGITS, HEX_DIGITS = "0123456789", "0123456789abcdefABCDEF"
CLOSERS = {"{": "}", "[": "]"}
SPACED = {"first value", "value", "first key", "key", "colon", "value end"}  # whitespace may follow
# A state, the characters that it reads, and the state after them. A literal's states are its parts.
_ROWS = [
    *(("colon", ":", "value"), ("key", '"', "string"), ("value", '"', "string")),
    *(("string", '"', "string end"), ("string", "\\", "escape")),
    *(("escape", '"\\/bfnrt', "string"), ("escape", "u", "hex")),
    *(("hex", HEX_DIGITS, "hex 1"), ("hex 1", HEX_DIGITS, "hex 2")),
    *(("hex 2", HEX_DIGITS, "hex 3"), ("hex 3", HEX_DIGITS, "string")),
    *(("value", "-", "minus"), ("value", "0", "zero"), ("value", "123456789", "integer")),
    *(("minus", "0", "zero"), ("minus", "123456789", "integer"), ("integer", DIGITS, "integer")),
    *(("zero", ".", "point"), ("integer", ".", "point"), ("point", DIGITS, "fraction")),
    *(("fraction", DIGITS, "fraction"), ("zero", "eE", "e"), ("integer", "eE", "e")),
    *(("fraction", "eE", "e"), ("e", "+-", "sign"), ("e", DIGITS, "exponent")),
    *(("sign", DIGITS, "exponent"), ("exponent", DIGITS, "exponent")),
]
for _word in ("true", "false", "null"):
    _ROWS += [(_word[:at] or "value", _word[at], _word[: at + 1]) for at in range(len(_word))]
NEXT = {(state, letter): after for state, letters, after in _ROWS for letter in letters}
ENDS = {"string end", "zero", "integer", "fraction", "exponent", "true", "false", "null"}


class JsonPrefix:
    """Reads an array or an object character by character, and nothing after it.

    It accepts the JSON that Python's ``json`` accepts, without NaN and infinities.
    """

    def __init__(self) -> None:
        self.legal = True  # whether the text so far is an array or object, or begins one
        # Its length in characters, including leading whitespace; None: it has not ended.
        self.end: int | None = None
        self._read = 0
        self._open: list[str] = []  # closing brackets of the open arrays and objects
        self._state = "begin"
        self._key = False  # whether the current or the last scalar is a key

    def add(self, text: str) -> None:
        """Read more text, up to the end or to the first illegal character."""
        for letter in text:
            if self.end is not None or not self.legal:
                return
            state = self._after(letter)
            self._read += 1
            if state is None:
                self.legal = False
            else:
                self._state = state
                self.end = None if self._open or state == "begin" else self._read

    def _after(self, letter: str) -> str | None:
        """The state after a character; None: the character is illegal."""
        state = self._state
        if state == "string" and letter not in '"\\':
            return state if letter >= " " else None
        if state in ENDS and (state, letter) not in NEXT:
            state = "colon" if self._key else "value end"
        if (state in SPACED and letter in " \t\n\r") or (state == "begin" and letter.isspace()):
            return state
        if state in ("first value", "first key", "value end") and letter == self._open[-1]:
            self._open.pop()
            return "value end"
        if state == "value end" and letter == ",":
            return "key" if self._open[-1] == "}" else "value"
        state = state.removeprefix("first ")
        if state in ("begin", "value") and letter in CLOSERS:
            self._open.append(CLOSERS[letter])
            return "first key" if letter == "{" else "first value"
        if state in ("key", "value"):
            self._key = state == "key"
        return NEXT.get((state, letter))
