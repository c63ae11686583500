"""Drafters that are right, wrong, random or faulty; and which settings are drawn with them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from ngramspec import Draft, Drafter, DraftSession

SPECS = (
    "copy",
    "ngram",
    "unigram",
    "none",
    "copy+ngram",
    "copy+ngram(order=4,window=64)+unigram",
    "ngram(order=3)",
    "ngram(mode=backoff)",
    "ngram(order=2,window=8)+unigram",
    "copy(min_match=1)+unigram",
)
DRAWN = ("ngram(sample=true)", "ngram(order=3,sample=true)", "unigram(sample=true)")
OWN = ("half", "oracle", "liar", "random", "bushy", "bushy and half")
FAULTY = (
    "faulty: raises",
    "faulty: starts never",
    "faulty: beyond",
    "faulty: none",
    "faulty: extends never",
    "faulty: parents",
)


def is_drawn(case: Any) -> bool:
    """Whether the case's drafts may be sampled ones."""
    return "sample=true" in case.drafter + case.swap


def drafter_of(name: str, texts: list[list[int]], vocab: int, seed: int) -> Any:
    """What to give a Speculator for a drafter's name.

    Args:
        texts: each row's whole text without padding, as plain decoding gives it.
    """
    if name in OWN or name in FAULTY:
        return Knowing(name, texts, vocab, seed)
    return name


class Knowing(Drafter):
    """Knows the texts, and does with them what its kind says."""

    source_names = ("knowing",)

    def __init__(self, kind: str, texts: list[list[int]], vocab: int, seed: int) -> None:
        self.kind, self.texts, self.vocab, self.seed = kind, texts, vocab, seed
        self.branches = kind.startswith("bushy")
        self.sessions = 0

    def start(self, tokens: Any) -> DraftSession:
        if self.kind == "faulty: starts never":
            raise RuntimeError("the drafter does not start")
        self.sessions += 1
        return Session(self, tokens.tolist())


class Session(DraftSession):
    def __init__(self, owner: Knowing, tokens: list[int]) -> None:
        self.owner, self.tokens = owner, tokens
        self.rng = random.Random(f"{owner.seed} {owner.sessions}")

    def extend(self, tokens: Any) -> None:
        if self.owner.kind == "faulty: extends never":
            raise RuntimeError("the session does not extend")
        self.tokens += tokens.tolist()

    def ahead(self, count: int) -> list[int]:
        """What follows, as far as a text is known to go on."""
        for text in self.owner.texts:
            for length in range(min(len(text), len(self.tokens)), 0, -1):
                if self.tokens[-length:] == text[:length]:
                    return text[length : length + count]
        return []

    def propose(self, gamma: int, cost: Any = None, *, tree: bool = False) -> Draft:
        kind, rng, vocab = self.owner.kind, self.rng, self.owner.vocab
        if kind.startswith("faulty"):
            return self.faulty(kind.removeprefix("faulty: "), gamma)
        if kind == "random":
            return _chain(rng.choices(range(vocab), k=rng.randint(0, gamma)))
        ahead = self.ahead(gamma)
        if kind.startswith("bushy") and tree:
            return self.bushy(ahead, gamma)
        if kind == "oracle":
            return _chain(ahead)
        if kind == "liar":
            return _chain([(each + 1) % vocab for each in ahead] or [3] * min(gamma, 2))
        return _chain([each if rng.random() < 0.7 else rng.randrange(vocab) for each in ahead])

    def bushy(self, ahead: list[int], gamma: int) -> Draft:
        """A tree: each right token among wrong siblings, some of which go on."""
        rng, tokens, parents, last = self.rng, [], [], -1
        for right in ahead:
            wrong = rng.sample([t for t in range(self.owner.vocab) if t != right], 2)
            siblings = [*wrong[: rng.randint(0, 2)], right]
            rng.shuffle(siblings)
            if rng.random() < 0.15:
                siblings.remove(right)
            place = last
            for token in siblings[: gamma - len(tokens)]:
                tokens.append(token)
                parents.append(place)
                if token == right:
                    last = len(tokens) - 1
            if last == place:
                break
        return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))

    def faulty(self, kind: str, gamma: int) -> Any:
        right, rng = self.ahead(gamma), self.rng
        if rng.random() < 0.3:
            return _chain(right)
        if kind == "raises":
            raise RuntimeError("the drafter raises")
        if kind == "beyond":
            return _chain([*right, self.owner.vocab + 5][-gamma:] if gamma else [])
        if kind == "none":
            return None
        if kind == "parents":
            wrong = np.full(len(right), len(right) + 1, np.int32)
            return Draft(np.array(right, np.int32), wrong)
        return _chain(right)


def _chain(tokens: list[int]) -> Draft:
    return Draft(np.array(tokens, np.int32))


def draw(rng: random.Random) -> tuple[str, dict[str, Any], str]:
    """A drafter's name, a Speculator's other arguments, and a drafter to swap in or ""."""
    groups = [("auto",), SPECS, OWN, DRAWN, FAULTY]
    drafter = rng.choice(rng.choices(groups, (30, 20, 40, 4, 6))[0])
    settings: dict[str, Any] = {}
    most = 64
    if rng.random() < 0.3:
        settings["gamma_max"] = most = rng.choice((1, 2, 5, 16, 200))
    tree = rng.choice((None, 1, 4, 9, 20)) if rng.random() < 0.35 else "auto"
    if drafter.startswith("bushy") and rng.random() < 0.7:
        tree = rng.choice((4, 9, 20))
    if tree != "auto":
        settings["tree"] = tree
    gammas = [each for each in (1, 2, 3, 5, 8, 12) if each <= (tree if _number(tree) else most)]
    gamma = rng.choice(["auto", "auto", "heuristic", *gammas])
    if gamma != "auto":
        settings["gamma"] = gamma
    if rng.random() < 0.12 and not _number(tree):
        settings["width"] = rng.choice((8, 16, 24))
        if _number(gamma) and gamma >= settings["width"]:
            del settings["gamma"]
    if rng.random() < 0.1:
        settings["policy"] = "priority"
    if rng.random() < 0.08 or (drafter in DRAWN and rng.random() < 0.5):
        settings["verification"] = "match"
    elif rng.random() < 0.03 and "width" not in settings:
        settings["verification"] = "typical"
    elif rng.random() < 0.02 and "width" not in settings:
        settings["lenience"] = 0.7
    if rng.random() < 0.2:
        settings["unsupported"] = "plain"
    if rng.random() < 0.15:
        settings["on_step"] = "watch"
    if rng.random() < 0.1:
        settings["compiled"] = False
    swap = rng.choice((*SPECS, *OWN)) if rng.random() < 0.06 else ""
    return drafter, settings, swap


def _number(value: Any) -> bool:
    return isinstance(value, int)
