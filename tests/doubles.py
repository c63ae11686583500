"""Drafters that are right, wrong or random on purpose, and streamers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ngramspec import Draft, Drafter, DraftSession
from ngramspec.draft import EMPTY_DRAFT


class ScriptedSession(DraftSession):
    """Proposes what ``guess(position, gamma)`` says for the tokens from ``position`` on."""

    def __init__(self, owner: ScriptedDrafter, tokens: np.ndarray) -> None:
        self.owner = owner
        self.tokens = tokens.tolist()

    def propose(self, gamma, cost=None, *, tree=False):
        if self.owner.branches and not tree:
            return EMPTY_DRAFT
        self.owner.asked.append((len(self.tokens), gamma))
        return self.owner.guess(len(self.tokens), gamma)

    def observe(self, draft, accepted, verified=None):
        self.owner.observed.append((draft, list(accepted), verified))

    def extend(self, tokens):
        assert tokens.dtype == np.int32
        self.tokens += tokens.tolist()

    def close(self):
        self.owner.closed += 1


class ScriptedDrafter(Drafter):
    """A drafter from a function; remembers its sessions, what they were asked and told.

    Args:
        guess: called with the position of the first token to draft, and gamma.
        branches: whether it knows trees only, and has nothing where a chain is asked for.
    """

    source_names = ("scripted",)

    def __init__(self, guess: Callable[[int, int], Draft], *, branches: bool = False) -> None:
        self.guess = guess
        self.branches = branches
        self.sessions: list[ScriptedSession] = []
        self.asked: list[tuple[int, int]] = []
        self.observed: list = []
        self.closed = 0

    def start(self, tokens):
        self.sessions.append(ScriptedSession(self, tokens))
        return self.sessions[-1]


class Clock:
    """A clock that stands still unless ``now`` is set."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Failing:
    """A stopping criterion that raises an exception, or one of a class, after some tokens."""

    def __init__(self, error, after=5):
        self.error, self.left = error, after

    def __call__(self, ids, scores, **kwargs):
        self.left -= 1
        if not self.left:
            raise self.error
        return False


class Puts:
    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, tokens):
        self.puts.append((tuple(tokens.shape), tokens.dtype, tokens.tolist()))

    def end(self):
        self.ended += 1


class InterruptedStreamer(Puts):
    """A streamer whose ``put`` of the given number, the prompt's being 1, raises: Ctrl-C comes."""

    def __init__(self, at: int, error: BaseException | type = KeyboardInterrupt) -> None:
        super().__init__()
        self.at, self.error = at, error

    def put(self, tokens):
        super().put(tokens)
        if len(self.puts) == self.at:
            raise self.error


def ids(*tokens: int) -> np.ndarray:
    """Tokens as drafters take them, int32 (n,)."""
    return np.array(tokens, np.int32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def draft_of(tokens) -> Draft:
    return Draft(np.array(tokens, np.int32))


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Each node's tokens from the root on, in the draft's order."""
    found: list[tuple[int, ...]] = []
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents.tolist()
    for token, parent in zip(draft.tokens.tolist(), parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def oracle(text: list[int]) -> ScriptedDrafter:
    """Always right: ``text`` is the whole sequence that plain decoding gives."""
    return ScriptedDrafter(lambda at, gamma: draft_of(text[at : at + gamma]))


def liar(text: list[int], vocab: int) -> ScriptedDrafter:
    return ScriptedDrafter(
        lambda at, gamma: draft_of([(t + 1) % vocab for t in (text + [0] * 64)[at : at + gamma]])
    )


def half_right(text, vocab: int, seed=0, right: float = 0.7) -> ScriptedDrafter:
    """Right tokens, each one spoilt if chance, by a seed or a generator, says so."""
    rng = np.random.default_rng(seed)

    def guess(at, gamma):
        tokens = np.array((text + [0] * 64)[at : at + gamma], np.int32)
        spoilt = rng.random(len(tokens)) < 1 - right
        return draft_of(np.where(spoilt, (tokens + 1) % vocab, tokens))

    return ScriptedDrafter(guess)


def all_lengths(text: list[int], vocab: int = 97) -> ScriptedDrafter:
    """A right draft of every length in turn, from none to nine; each third one begins wrongly."""

    def guess(at, gamma):
        calls = len(drafter.asked)
        wrong = [(text[at] + 1) % vocab] if calls % 3 == 0 else []
        return draft_of((wrong + text[at:])[: min(calls % 10, gamma)])

    drafter = ScriptedDrafter(guess)
    return drafter


def random_drafter(vocab: int, seed: int = 0) -> ScriptedDrafter:
    """Random tokens, random lengths from none to gamma."""
    rng = np.random.default_rng(seed)
    return ScriptedDrafter(
        lambda at, gamma: draft_of(rng.integers(0, vocab, rng.integers(0, gamma + 1)))
    )


def bushy(text: list[int], vocab: int, seed: int = 0, right: float = 0.7) -> ScriptedDrafter:
    """Trees in which each node's right continuation is found with probability ``right``, at a
    random place among wrong siblings, some of which go on."""
    rng = np.random.default_rng(seed)

    def guess(at, gamma):
        tokens, parents, frontier = [], [], [(-1, at, True)]
        while frontier and len(tokens) < gamma:
            parent, where, on_path = frontier.pop(int(rng.integers(len(frontier))))
            true = text[where] if on_path and where < len(text) else None
            siblings = rng.choice(vocab, 3, replace=False).tolist()
            if true is not None:
                siblings = [each for each in siblings if each != true]
                if rng.random() < right:
                    siblings.insert(int(rng.integers(len(siblings) + 1)), true)
            for token in siblings[: gamma - len(tokens)]:
                if token == true or rng.random() < 0.3:
                    frontier.append((len(tokens), where + 1, token == true))
                tokens.append(token)
                parents.append(parent)
        return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))

    return ScriptedDrafter(guess, branches=True)


class DraftModelDouble:
    """A draft model without a model; subclasses add ``forward``."""

    room = ahead = vocab = None
    ready = True
    reading = 0.0  # cost of reading a token

    def __init__(self, cost=0.05):
        self.price, self.read = cost, []

    def reading_cost(self, tokens):
        return self.reading * tokens

    def cost(self, last):
        return self.price

    def commit(self, length):
        self.committed = length

    def truncate(self, length):
        del self.read[length:]


class Characters:
    """A tokenizer with a token for each character; "<tool_call>" can be one, too."""

    def __init__(self, special=False):
        self.special = special

    def get_vocab(self):
        pieces = {chr(i): i for i in range(1100) if i != 300}
        return pieces | ({"<tool_call>": 300} if self.special else {})

    def encode(self, text, add_special_tokens=True):
        ids = [ord(each) for each in text.replace("<tool_call>", "\u012c")]
        if self.special:
            return ids
        return [each for one in ids for each in ([one] if one != 300 else map(ord, "<tool_call>"))]

    def decode(self, ids, skip_special_tokens=True):
        return "".join("<tool_call>" if each == 300 else chr(each) for each in ids)
