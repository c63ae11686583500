"""What is done to each structure: its methods with all kinds of arguments, right and wrong."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ngramspec._native.copyindex import CopyIndex
from ngramspec._native.ngram import NGramTable
from ngramspec._native.unigram import UnigramCounts
from ngramspec._native.value import Calibration, ContextTable, ValueEngine
from sanitize import stores

Operation = Callable[[Any, "Source"], object]
LAST_ID = 2**31 - 1
HUGE = (2**16 + 1, 2**31 - 2, 2**31 - 1, 2**31, 2**40, -1, -(2**31))


class Source:
    """Tokens and other arguments, drawn from one generator."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.begin()

    def begin(self) -> None:
        """A new text with a vocabulary of its own; nothing of it is committed yet."""
        size = self.rng.choice((1, 2, 5, 40, 3000))
        self.ids = [
            self.rng.choice((self.rng.randrange(50), self.rng.randrange(2**31), LAST_ID))
            for _ in range(size)
        ]
        self.text: list[int] = []
        self.lost = False  # whether the text is no longer known

    def tokens(self, most: int = 12) -> np.ndarray:
        """New tokens, or some that the text had before."""
        n = self.rng.randrange(most + 1)
        if self.text and self.rng.random() < 0.6:
            start = self.rng.randrange(len(self.text))
            return np.array(self.text[start : start + n], np.int32)
        return np.array([self.rng.choice(self.ids) for _ in range(n)], np.int32)

    def gamma(self) -> int:
        return self.rng.choice((0, 1, 2, 8, 16, 64, self.rng.randrange(300)))

    def costs(self, gamma: int) -> np.ndarray | None:
        slope = self.rng.choice((None, 0.0, 0.02, 1.0))
        if slope is None:
            return None
        return (1 + slope * np.arange(gamma + 2)).astype(np.float32)

    def hostile(self) -> Any:
        """What is no aligned one-dimensional array of int32 ids >= 0."""
        memory = bytes(self.rng.randrange(256) for _ in range(41))
        return self.rng.choice(
            (
                lambda: None,
                lambda: [1, 2],
                lambda: "12",
                lambda: np.arange(4),
                lambda: np.arange(4, dtype=np.float32),
                lambda: np.arange(4, dtype=">i4"),
                lambda: np.ones((2, 2), np.int32),
                lambda: np.array(3, np.int32),
                lambda: np.arange(9, dtype=np.int32)[::2],
                lambda: np.array([1, 2, -1 - self.rng.randrange(2**31), 4], np.int32),
                lambda: array("i", [3, -3]),
                lambda: np.frombuffer(memory, np.int32, 10, 1),
                lambda: memoryview(np.frombuffer(memory, np.int32, 9, 3)),
                lambda: memory,
            )
        )()


def extend(structure: Any, source: Source, tokens: Any) -> None:
    """Commit, and note what is in then: all, or as many as the MemoryError says."""
    text = [*source.text, *tokens]
    try:
        structure.extend(tokens)
    except MemoryError as error:
        said = str(error)  # "copy index at 1234 tokens"
        source.text = text[: int(said.split(" at ")[1].split()[0])]
        raise
    source.text = text


def extend_some(structure: Any, source: Source) -> None:
    extend(structure, source, source.tokens())


def extend_much(structure: Any, source: Source) -> None:
    extend(structure, source, source.tokens(400))


def extend_other_memory(structure: Any, source: Source) -> None:
    tokens = source.tokens(100)
    extend(structure, source, source.rng.choice((array("i", tokens.tolist()), memoryview(tokens))))


def extend_resized(structure: Any, source: Source) -> None:
    """Another thread resizes the memory meanwhile: refused, or too late."""
    tokens = array("i", source.tokens(300).tolist())
    done = threading.Event()

    def resize() -> None:
        while not done.is_set():
            try:
                tokens.extend(range(500))
                del tokens[-500:]
            except BufferError:
                pass

    other = threading.Thread(target=resize)
    other.start()
    source.lost = True  # nobody knows which tokens were read
    try:
        structure.extend(tokens)
    finally:
        done.set()
        other.join()


def extend_hostile(structure: Any, source: Source) -> None:
    structure.extend(source.hostile())


def draft(structure: Any, source: Source) -> None:
    structure.draft(source.gamma(), source.tokens(9))


def draft_hostile(structure: Any, source: Source) -> None:
    if source.rng.random() < 0.5:
        structure.draft(source.rng.choice(HUGE))
    else:
        structure.draft(source.gamma(), source.hostile())


def draft_value(engine: ValueEngine, source: Source) -> None:
    gamma = source.gamma()
    engine.draft(gamma, source.costs(gamma))


def draft_tree(engine: ValueEngine, source: Source) -> None:
    gamma = source.gamma()
    engine.draft_tree(gamma, source.costs(gamma))


def value_hostile(engine: ValueEngine, source: Source) -> None:
    ask = source.rng.choice((engine.draft, engine.draft_tree))
    if source.rng.random() < 0.5:
        ask(source.rng.choice(HUGE), source.costs(3))
    else:
        ask(9, source.rng.choice((source.costs(3), source.hostile(), np.ones(11, np.float32)[1:])))


def recycle(engine: ValueEngine, source: Source) -> None:
    tokens, k = source.tokens(6), source.rng.randrange(11)
    ids = np.array([[source.rng.choice(source.ids) for _ in range(k)] for _ in tokens], np.int32)
    rows = max(len(tokens) + source.rng.choice((0, 0, 0, 1, -1)), 0)
    log_probs = np.linspace(1, -90, rows * k, dtype=np.float32).reshape(rows, k)
    accepted = range(len(tokens) // 2)
    engine.recycle(tokens, ids.reshape(len(tokens), k), log_probs, accepted)


def set_head_rows(engine: ValueEngine, source: Source) -> None:
    """Rows of a head along a path, the draft's or another one, in place of earlier ones."""
    before, k = source.tokens(6), source.rng.randrange(11)
    ids = np.array([[source.rng.choice(source.ids) for _ in range(k)] for _ in before], np.int32)
    if source.rng.random() < 0.5:  # the path of the rows' first tokens
        before = np.array([0, *(row[0] for row in ids if k)][: len(before)], np.int32)
    rows = max(len(ids) + source.rng.choice((0, 0, 0, 1, -1)), 0)
    log_probs = np.linspace(1, -90, rows * k, dtype=np.float32).reshape(rows, k)
    depth = source.rng.choice((0, 0, 1, 2, 5, source.rng.choice(HUGE[:3])))
    engine.set_head_rows(before, ids.reshape(len(ids), k), log_probs, depth)


def fix(engine: ValueEngine, source: Source) -> None:
    """Fix the first tokens of the next chain, and draft it."""
    tokens = source.tokens(4)
    shares = np.linspace(0, 1, max(len(tokens) + source.rng.choice((0, 0, 1)), 0), dtype=np.float32)
    engine.fix(tokens, shares)
    draft_value(engine, source)
    engine.check_integrity()


def copies(index: CopyIndex, source: Source) -> None:
    rng = source.rng
    index.copies(source.gamma(), rng.choice((1, 4, 50, 0, LAST_ID)), rng.choice((1, 2, 9, 0)))
    index.longest_match()


def look_up(table: NGramTable, source: Source) -> None:
    context = source.tokens(table.order)
    table.top_k(context, source.rng.choice((1, 3, 999, LAST_ID, 0)))
    table.total(context)


def look_up_hostile(table: NGramTable, source: Source) -> None:
    ask = source.rng.choice((table.total, lambda each: table.top_k(each, 3)))
    ask(source.hostile())


def keys(table: NGramTable, source: Source) -> None:
    assert len(set(table.contexts().tolist())) == len(table.contexts())


def count(counts: UnigramCounts, source: Source) -> None:
    counts.count(source.rng.choice((*source.ids[:5], -1, LAST_ID)))
    counts.best()


def add(table: ContextTable, source: Source) -> None:
    for _ in range(source.rng.choice((1, 5, 40))):
        at = source.rng.randrange(2**31)
        table.add(source.tokens(7), source.rng.choice(source.ids), at, source.rng.randrange(-2, 9))


def add_close(table: ContextTable, source: Source) -> None:
    """Contexts of one token and others: enough of them for segments to split."""
    first = source.rng.randrange(2**30)
    for token in range(first, first + 200):
        table.add(np.array([token], np.int32), 7, token, 2)


def get(table: ContextTable, source: Source) -> None:
    table.get(source.tokens(7), source.rng.randrange(-2, 9))


def context_hostile(table: ContextTable, source: Source) -> None:
    if source.rng.random() < 0.5:
        table.add(source.hostile(), 1, 2)
    else:
        table.add(source.tokens(20), source.rng.choice((-1, -(2**31), 3)), -5)


def inspect(structure: Any, source: Source) -> None:
    assert structure.sizeof() > 0
    assert structure.longest_probe() >= 0


def measure(engine: ValueEngine, source: Source) -> None:
    assert engine.sizeof() > 0
    assert np.isfinite(engine.calibration.to_array()).all()


@dataclass(frozen=True)
class Kind:
    """How a structure is made, and what is done to it: often what stands there often."""

    make: Callable[..., Any]
    arguments: Callable[[random.Random], tuple[Any, ...]]
    usual: tuple[Operation, ...]
    rare: tuple[Operation, ...]


def engine(*options: Any) -> ValueEngine:
    return ValueEngine(Calibration(), *options)


EXTENDING = (extend_some, extend_some, extend_other_memory, extend_hostile)
DRAFTING = (draft, draft, draft_hostile)
KINDS = {
    "n-gram table": Kind(
        NGramTable,
        lambda rng: (rng.randint(2, 8), rng.choice((None, None, 8, 9, 60, 500))),
        (*EXTENDING, *DRAFTING, look_up, look_up_hostile, inspect),
        (extend_much, extend_resized, keys),
    ),
    "copy index": Kind(
        CopyIndex,
        lambda rng: (),
        (*EXTENDING, *DRAFTING, copies, inspect),
        (extend_much, extend_resized),
    ),
    "unigram counts": Kind(
        UnigramCounts,
        lambda rng: (),
        (*EXTENDING, count, inspect),
        (extend_much, extend_resized),
    ),
    "value engine": Kind(
        engine,
        lambda rng: (
            *(rng.random() < 0.8 for _ in range(3)),
            rng.choice((1, 2, 5, LAST_ID)),
            None,
            rng.random() < 0.7,
            rng.random() < 0.7,
        ),
        (
            *(*EXTENDING, *[draft_value] * 3, *[draft_tree] * 3, value_hostile, measure),
            *(recycle, set_head_rows, set_head_rows, fix),
        ),
        (extend_much, extend_resized),
    ),
    "context table": Kind(
        ContextTable,
        lambda rng: (),
        (add, add, get, get, context_hostile, inspect),
        (add_close,),
    ),
    "shared text": Kind(
        stores.Shared, stores.shared_arguments, stores.SHARED_USUAL, stores.SHARED_RARE
    ),
    "corpora": Kind(
        stores.Corpora, stores.corpora_arguments, stores.CORPORA_USUAL, (stores.look_up,)
    ),
}
MAY_BE_REFUSED = (
    extend_hostile,
    draft_hostile,
    value_hostile,
    set_head_rows,
    fix,
    look_up,
    look_up_hostile,
    context_hostile,
    copies,
    recycle,
    *stores.REFUSED_HERE,
)
