"""The tokens of ``logprobs``, as texts that join to the answer's text."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from ngramspec.server.sampling import TokenLogprobs
from ngramspec.server.text import Detokenizer
from ngramspec.server.token_bytes import TokenBytes


class TokenNames:
    """Names the tokens of one answer in order.

    A token's name is the text that it adds, so "" if its bytes are not a whole character yet, and
    the whole character if it completes one. The name of a token that is not shown follows, such as
    that of an end of sequence. Other tokens that were probable are named as if they were alone.

    Args:
        tokenizer: the model's tokenizer.
        bytes_of: the bytes of its tokens.
        prompt: the tokens before the answer.
        hidden: see ``CompletionRequest``.
        echoed: whether the prompt's tokens are named first.
        framing: number of tokens at the prompt's beginning that are not in its text.
    """

    def __init__(
        self,
        tokenizer: Any,
        bytes_of: TokenBytes,
        prompt: Sequence[int],
        hidden: Container[int] | None = None,
        *,
        echoed: bool = False,
        framing: int = 0,
    ) -> None:
        self._tokenizer, self._bytes_of, self._hidden = tokenizer, bytes_of, hidden
        self._answer = Detokenizer(tokenizer, prompt, hidden=hidden)
        self._prompt = Detokenizer(tokenizer, (), hidden=())
        self._left, self._framing = len(prompt) if echoed else 0, framing
        self._known: dict[int, str] = {}
        self.offset = 0  # number of characters of the named tokens' text

    def add(self, token: int, *, last: bool = False) -> str:
        """The name of the next token; ``last``: no other one follows."""
        if self._left:
            self._left -= 1
            shown, self._framing = self._framing <= 0, self._framing - 1
            text = self._prompt.add((token,) if shown else (), last=not self._left)
        else:
            text = self._answer.add((token,), last=last)
            shown = (bool(text) and not last) or not self._hides(token)
        self.offset += len(text)
        return text if shown else text + self.alone(token)

    def of(self, found: TokenLogprobs, name: str) -> dict[str, float]:
        """The log-probabilities of one position by name; ``name`` is that of its token.

        The token itself is always among them. A name that was used is replaced by the token's id.
        """
        named: dict[str, float] = {}
        ranked: Iterable[tuple[int, float]] = found.top
        if all(token != found.token for token, _ in found.top):
            ranked = (*found.top, (found.token, found.logprob or 0.0))
        for token, value in ranked:
            own = name if token == found.token else self.alone(token)
            taken = own in named or (own == name and token != found.token)
            named[f"token_id:{token}" if taken else own] = value
        return named

    def alone(self, token: int) -> str:
        """A token's text, with its spaces; ``bytes:\\\\xe6`` (as OpenAI's) if it is not text."""
        if token not in self._known:
            self._known[token] = self._alone(token)
        return self._known[token]

    def _alone(self, token: int) -> str:
        found = self._bytes_of(token, ())
        if found is None:
            text: str = self._tokenizer.decode([token], skip_special_tokens=False)
            return text
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{each:02x}" for each in found)

    def _hides(self, token: int) -> bool:
        """Whether a token that added no text is hidden."""
        if self._hidden is not None:
            return token in self._hidden
        decode = self._tokenizer.decode
        return not decode([token], skip_special_tokens=True) and bool(decode([token]))
