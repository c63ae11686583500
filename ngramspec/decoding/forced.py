"""Jump-forward decoding: tokens that a call's logits processors leave no alternative to.

For a grammar, the matcher is copied, the copy accepts the last committed token, and then gives the
forced continuation. The processor is never called, and its matchers do not change. For
transformers' own processors, the banned ids are read.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import finalize

import numpy as np

from ngramspec.drafters.forced import Forced
from ngramspec.hf_model.compat.names import BIASING, SUPPRESSING, processor_name

# Attribute that holds the rows' matchers, by the processor's module and class. All three make the
# matchers in their first call. Each later call first accepts the last committed token.
MATCHERS = {
    ("xgrammar.contrib.hf", "LogitsProcessor"): "matchers",
    ("outlines.backends.xgrammar", "XGrammarLogitsProcessor"): "_matchers",
    ("outlines.backends.llguidance", "LLGuidanceLogitsProcessor"): "ll_matchers",
}
MAX_TOKEN_BYTES = 64  # longest token that ``spelled`` tries; not tuned
ALL_BYTES = [bytes((each,)) for each in range(256)]
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
MASK_WORD_BITS = 32  # bits of a word of xgrammar's masks
Spelling = dict[bytes, int]  # token ids by their text

_spellings: dict[int, Spelling] = {}  # by the ``id`` of a live compiled grammar


def forced_by(processors: Iterable[Any] | None, row: int, rows: int, vocab: int) -> Forced | None:
    """The source of a row's forced tokens, or None if no processor is known to force any.

    Only the first known grammar is used. ``vocab`` is the size of the target's vocabulary.
    """
    listed = list(processors or ())
    for processor in listed:
        kind = type(processor)
        matchers = MATCHERS.get((kind.__module__, kind.__name__))
        if matchers is not None:
            grammar = _LLGuidance if matchers == "ll_matchers" else _XGrammar
            return grammar(processor, matchers, row, rows)
    return banned_by(listed, vocab)


class _Grammar(Forced):
    """Forced tokens by the row's matcher, in the processor's attribute ``matchers``."""

    def __init__(self, processor: Any, matchers: str, row: int, rows: int) -> None:
        self._processor, self._matchers = processor, matchers
        self._row, self._rows = row, rows

    def _matcher(self) -> Any:
        """The row's matcher; None before the first call, when matchers may be an earlier call's."""
        begun = getattr(self._processor, "prefilled", True)
        fresh = getattr(self._processor, "is_first_token", False)
        matchers = getattr(self._processor, self._matchers, ())
        ready = begun and not fresh and len(matchers) == self._rows
        return matchers[self._row] if ready else None


class _XGrammar(_Grammar):
    """Forced tokens by xgrammar, which gives bytes: they are split into the longest tokens."""

    def after(self, context: Sequence[int], most: int) -> list[int]:
        matcher = self._matcher()
        if matcher is None or not context or matcher.is_terminated():
            return []
        copy = matcher.fork()
        if not copy.accept_token(context[-1]) or copy.is_terminated():
            return []
        several = getattr(self._processor, "compiled_grammars", None)
        grammar = several[self._row] if several else self._processor.compiled_grammar
        found = spelled(_jump_forward(copy), _spelling(grammar), most)
        followed = all(copy.accept_token(token) for token in found)
        if followed and len(found) < most and copy.is_completed():
            found += _only(copy, grammar.tokenizer_info.vocab_size)
        return found


def _jump_forward(matcher: Any) -> bytes:
    """The bytes that a matcher forces, without an incomplete character at their end.

    xgrammar can give them only as a string. If they are not one, its error has them.
    """
    try:
        text: str = matcher.find_jump_forward_string()
        return text.encode()
    except UnicodeDecodeError as error:
        begun = error.object.lstrip(CONTINUATION_BYTES)  # of a character that was begun before
        whole = utf_8_decode(begun, "replace", False)[1]
        return error.object[: len(error.object) - len(begun) + whole]


def _spelling(grammar: Any) -> Spelling:
    """The vocabulary of a compiled grammar, made once and kept while the grammar exists."""
    found = _spellings.get(id(grammar))
    if found is None:
        found = spelling_of(grammar.tokenizer_info.decoded_vocab)
        _spellings[id(grammar)] = found
        finalize(grammar, _spellings.pop, id(grammar), None)
    return found


def spelling_of(names: Sequence[bytes]) -> Spelling:
    """The first token of each text; those of byte fallback only for bytes without another one.

    The tokens of byte fallback follow each other in the vocabulary.
    """
    zeros = (token for token, name in enumerate(names) if name == ALL_BYTES[0])
    first = next((token for token in zeros if list(names[token : token + 256]) == ALL_BYTES), None)
    tokens = list(range(len(names)))
    if first is not None:
        tokens = tokens[:first] + tokens[first + 256 :] + tokens[first : first + 256]
    found: Spelling = {}
    for token in tokens:
        found.setdefault(names[token], token)
    return found


def spelled(text: bytes, spelling: Spelling, most: int) -> list[int]:
    """Split a text into at most ``most`` tokens, each the longest match; stop if none matches.

    Example:
        >>> spelled(b"abcd", {b"a": 1, b"ab": 2, b"c": 3}, 8)
        [2, 3]
    """
    found: list[int] = []
    at = 0
    while at < len(text) and len(found) < most:
        ends = range(min(len(text), at + MAX_TOKEN_BYTES), at, -1)
        fits = next((end for end in ends if text[at:end] in spelling), None)
        if fits is None:
            break
        found.append(spelling[text[at:fits]])
        at = fits
    return found


def _only(matcher: Any, vocab: int) -> list[int]:
    """The only allowed token, such as the end of the sequence; empty if there are several."""
    words = np.zeros((1, -(-vocab // MASK_WORD_BITS)), np.int32)
    matcher.fill_next_token_bitmask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    left: list[int] = np.flatnonzero(bits).tolist()
    return left if len(left) == 1 else []


class _LLGuidance(_Grammar):
    """Forced tokens by llguidance, which gives tokens."""

    def after(self, context: Sequence[int], most: int) -> list[int]:
        matcher = self._matcher()
        if matcher is None or not context or matcher.is_stopped():
            return []
        copy = matcher.deep_copy()
        if not copy.consume_token(context[-1]):
            return []
        found: list[int] = [] if copy.is_stopped() else copy.compute_ff_tokens()
        ends = copy.is_stopped() or (copy.consume_tokens(found) and copy.is_stopped())
        end = self._processor.llg_tokenizer.eos_token
        return [*found, *([end] if ends else [])][:most]


class Banned(Forced):
    """Forced tokens where all ids but one are banned, ``always`` or after certain tokens.

    ``conditional`` are pairs of (tokens, id that is banned after them).
    """

    def __init__(
        self, always: set[int], conditional: Sequence[tuple[tuple[int, ...], int]], vocab: int
    ) -> None:
        self.reach = max((len(before) for before, _ in conditional), default=1)
        self._always, self._conditional, self._vocab = always, conditional, vocab

    def after(self, context: Sequence[int], most: int) -> list[int]:
        text = list(context)
        while len(text) < len(context) + most:
            banned = self._always | {
                token
                for before, token in self._conditional
                if tuple(text[-len(before) :]) == before
            }
            if len(banned) != self._vocab - 1:
                break
            text.append((set(range(self._vocab)) - banned).pop())
        return text[len(context) :]


def banned_by(processors: Iterable[Any], vocab: int) -> Banned | None:
    """The ids banned by transformers' processors; None if several ids are always left."""
    always: set[int] = set()
    conditional: list[tuple[tuple[int, ...], int]] = []
    for processor in processors:
        name = processor_name(processor)
        if name in SUPPRESSING:
            always.update(processor.suppress_tokens.tolist())
        elif name in BIASING:
            for sequence, bias in processor.sequence_bias.items():
                if bias == -np.inf:
                    conditional.append((tuple(sequence[:-1]), sequence[-1]))
    always.update(token for before, token in conditional if not before)
    conditional = [(before, token) for before, token in conditional if before]
    always = {token for token in always if 0 <= token < vocab}
    if len(always | {token for _, token in conditional}) < vocab - 1:
        return None
    return Banned(always, conditional, vocab)
