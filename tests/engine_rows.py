"""An engine's batch, and a drafter that notes what it is asked, for the tests of its rows."""

from __future__ import annotations

import numpy as np

from ngramspec.draft import Draft
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.engines.rows import Rows, RowState

VOCAB = 5
K = 3
FAULTY = ["raise", "none", "wrong dtype", "no start", "outside", "long"]


class Recorded(DraftSession):
    """Notes its text; its drafts are those that the drafter is told to make."""

    def __init__(self, drafter, tokens):
        self.drafter, self.text, self.closed = drafter, list(tokens), False
        self.size = 1000 + 40 * len(tokens)

    def propose(self, gamma, cost=None, *, tree=False):
        self.drafter.asked.append(tuple(self.text))
        return self.drafter.next_draft(gamma)

    def observe(self, draft, accepted, verified=None):
        self.drafter.observed.append((len(draft), tuple(accepted), verified))

    def extend(self, tokens):
        assert not self.closed
        self.text += tokens.tolist()

    def sizeof(self):
        return self.size

    def close(self):
        assert not self.closed
        self.closed = True
        self.drafter.open -= 1


class Recorder(Drafter):
    estimates = True

    def __init__(self, script=()):
        self.script = list(script)
        self.asked, self.observed, self.open, self.started = [], [], 0, 0

    def start(self, tokens):
        self.started += 1
        if self.script and self.script[0] == "no start":
            self.script.pop(0)
            raise RuntimeError("no start")
        self.open += 1
        return Recorded(self, tokens.tolist())

    def next_draft(self, gamma):
        what = self.script.pop(0) if self.script else "good"
        if what == "raise":
            raise RuntimeError("told to")
        if what == "none":
            return None
        if what == "wrong dtype":
            return Draft(np.zeros(1, np.float64))
        n = gamma + 2 if what == "long" else gamma
        tokens = np.arange(n, dtype=np.int32) % VOCAB
        if what == "outside" and n > 1:
            tokens[1] = -5
        return Draft(tokens, None, np.full(n, 0.5, np.float32))


class Guess(Drafter):
    """Drafts as many tokens as it may, each as likely as the text's first one says, in percent."""

    estimates = True

    def start(self, tokens):
        return GuessSession(float(tokens[0]) / 100)


class GuessSession(DraftSession):
    def __init__(self, confidence):
        self.confidence = confidence

    def propose(self, gamma, cost=None, *, tree=False):
        tokens = np.zeros(gamma, np.int32)
        return Draft(tokens, None, np.full(gamma, self.confidence, np.float32))

    def extend(self, tokens):
        return None


class Engine:
    """Rows as an engine has them: one buffer, in whose rows texts come and go."""

    def __init__(self, rows, texts=(), named=False):
        self.rows, self.named = rows, named
        self.buffer = np.full((12, 300), 4, np.int32)
        self.slots: list[list[int]] = []  # the texts, by row
        self.names: list[str] = []
        self.came = 0
        for text in texts:
            self.arrive(text)

    def arrive(self, text):
        self.slots.append(list(text))
        self.names.append(f"request {self.came}")
        self.came += 1
        return self.slots[-1]

    def place(self, text):
        return next(at for at, each in enumerate(self.slots) if each is text)

    def leave(self, text):
        """The last row slides into the hole, as in vLLM."""
        at, name = self.place(text), self.names[self.place(text)]
        self.slots[at], self.names[at] = self.slots[-1], self.names[-1]
        self.slots.pop()
        self.names.pop()
        return name

    def step(self, new):
        """``new``: for each row the tokens committed, none for part of a prefill."""
        for text, tokens in zip(self.slots, new, strict=True):
            text += tokens
        told = []
        for at, (text, tokens) in enumerate(zip(self.slots, new, strict=True)):
            self.buffer[at, : len(text)] = text
            self.buffer[at, len(text) : len(text) + 4] = 3  # stale
            name = self.names[at] if self.named else None
            told.append(RowState(name, self.buffer[at], len(text), tokens))
        return self.rows.step(told)


def recorded(texts=(), script=(), *, named=False, max_len=300, **bounds):
    """A recording drafter, and an engine of some rows for which it drafts."""
    drafter = Recorder(script)
    return drafter, Engine(Rows(drafter, K, VOCAB, max_len, **bounds), texts, named)
