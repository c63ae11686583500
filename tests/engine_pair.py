"""What the tests of the value engine share: texts, costs, drafts verified against a text, twins."""

from __future__ import annotations

from typing import Any

import numpy as np
from native_strategies import int32 as ids

from ngramspec._native.store_ring import StoreRing, StoreStream
from ngramspec._native.store_source import StorePair
from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.draft import Draft
from ngramspec.drafters.base import check_draft
from ngramspec.stores import Corpus
from tests.twins.calibration import Calibration as CalibrationTwin
from tests.twins.store_corpus import CorpusIndex as CorpusTwin
from tests.twins.store_ring import StoreRing as RingTwin
from tests.twins.store_ring import StoreStream as StreamTwin
from tests.twins.value import ValueEngine as ValueTwin


def costs(gamma, slope):
    """A forward of n positions costs 1 + slope * (n - 1)."""
    return (1 + slope * (np.arange(gamma + 2) - 1)).astype(np.float32)


def noisy_repetition(seed, n, vocab=12, noise=0.1):
    """A text that copies itself with some tokens replaced."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, vocab, n // 3)
    text = np.concatenate([base] * 3)
    spoilt = rng.random(len(text)) < noise
    return np.where(spoilt, rng.integers(0, vocab, len(text)), text).astype(np.int32)


def play(engine, text, prompt, gamma, cost=None, *, tree=False):
    """Verify drafts against ``text``; returns (probabilities, outcomes, drafts).

    The first two are of the tokens that are judged: whose parent is accepted.
    """
    engine.extend(text[:prompt])
    at, probabilities, outcomes, drafts = prompt, [], [], []
    while at < len(text):
        if tree:
            tokens, parents, confidence, source = engine.draft_tree(gamma, cost)
        else:
            tokens, confidence, source = engine.draft(gamma, cost)
            parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
        draft = Draft(tokens, parents, confidence, None, source)
        drafts.append(check_draft(draft, gamma, 2**31, tree=True))
        path = draft.path_along(text[at:].tolist())
        for node, parent in enumerate(parents.tolist()):
            if parent in (-1, *path):
                probabilities.append(float(confidence[node]))
                outcomes.append(node in path)
        engine.extend(text[at : at + len(path) + 1])
        at += len(path) + 1
    return probabilities, outcomes, drafts


# Of requests without kin, of one kind, and of kin.
PROMPTS = tuple(ids(each) for each in ([], range(16), [*range(9), 5, 5]))


class Pair:
    """A value engine and its twin, called alike; ``documents`` and ``earlier`` are their store."""

    folders: Any = None  # pytest's ``tmp_path_factory``, for corpora

    def __init__(
        self,
        options=(True, True, True, 2),
        documents=(),
        earlier=(),
        *,
        recycles=False,
        headed=False,
        familiar=(None, None),
        calibrations=None,
    ):
        native, twin = calibrations or (Calibration(), CalibrationTwin())
        self.sources = self._stores(documents, earlier)
        self.store, self.recycles, self.headed = self.sources[0], recycles, headed
        more = recycles, headed
        self.native = ValueEngine(native, *options, self.store, *more, familiar[0])
        self.twin = ValueTwin(twin, *options, self.sources[1], *more, familiar[1])

    def _stores(self, documents, earlier):
        corpus = corpus_twin = None
        if documents:
            path = self.folders.mktemp("corpus") / "c.ngc"
            corpus = Corpus.build([ids(each) for each in documents], path).index
            corpus_twin = CorpusTwin([list(each) for each in documents])
        if not len(earlier):
            return corpus, corpus_twin
        streams = []
        for ring, stream in ((StoreRing(2000), StoreStream), (RingTwin(2000), StreamTwin)):
            writer = stream(ring)
            parts = np.array_split(ids(earlier), len(PROMPTS))
            for prompt, part in zip(PROMPTS, parts, strict=True):
                writer.begin(prompt)
                writer.append(part if stream is StoreStream else part.tolist())
                writer.finish()
            streams.append(stream(ring))
            streams[-1].begin(PROMPTS[1])
        if corpus is None:
            return tuple(streams)
        return StorePair(streams[0], corpus), PairTwin(streams[1], corpus_twin)

    def draft(self, gamma, slope=None, *, tree=False):
        cost = None if slope is None else costs(gamma, slope)
        ask = "draft_tree" if tree else "draft"
        ours, theirs = (getattr(each, ask)(gamma, cost) for each in (self.native, self.twin))
        assert [each.dtype for each in ours] == [each.dtype for each in theirs]
        assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
        return ours

    def check(self):
        self.native.check_integrity()
        assert len(self.native) == len(self.twin)

    def extend(self, tokens):
        self.native.extend(ids(tokens))
        self.twin.extend(ids(tokens))

    def rehearse(self, tokens):
        self.native.rehearse(ids(tokens))
        self.twin.rehearse(ids(tokens))

    def __getattr__(self, name):
        def call(*arguments):
            for each in (self.native, self.twin):
                getattr(each, name)(*arguments)

        return call


class PairTwin:
    """Two stores as one: the places of both, the longest first, then the nearest kin."""

    SECOND = 1 << 52

    def __init__(self, first, second):
        self.first, self.second = first, second

    def of(self, at):
        return (self.second, at - self.SECOND) if at >= self.SECOND else (self.first, at)

    def look(self, context, most):
        found = self.first.look(context, most)
        found += [(at + self.SECOND, *rest) for at, *rest in self.second.look(context, most)]
        return sorted(found, key=lambda each: (-each[1], -each[2]))[:most]

    def token(self, at):
        source, at = self.of(at)
        return source.token(at)

    def earlier(self, at):
        source, at = self.of(at)
        return source.earlier(at)


def relatives(seed, vocab=12):
    """A text, and documents that resemble parts of it."""
    text = noisy_repetition(seed, 240, vocab)
    rng = np.random.default_rng(seed)
    documents = []
    for begin in range(0, 240, 40):
        document = text[begin : begin + 60].copy()
        spoilt = rng.random(len(document)) < 0.1
        document[spoilt] = rng.integers(0, vocab, int(spoilt.sum()))
        documents.append(document.tolist())
    return text, documents


def rows(rng, tokens, vocab, k=8):
    """The target's candidates after a tree: a few ids with probabilities that fall."""
    k = min(k, vocab)
    found = np.stack([rng.permutation(vocab)[:k] for _ in tokens]).astype(np.int32)
    log_probs = -np.sort(rng.exponential(1.5, (len(tokens), k)), axis=1)
    parents = [-1, *(int(rng.integers(0, i)) for i in range(1, len(tokens)))]
    path = [0]
    while parents.count(path[-1]) and rng.random() < 0.7:
        path.append(parents.index(path[-1]))
    return ids(tokens), found, log_probs.astype(np.float32), tuple(path)


def head_rows(rng, said, vocab, k=8):
    """A head's rows along a path: often the path's next token, with falling probabilities."""
    k = min(k, vocab)
    found = np.stack([rng.permutation(vocab)[:k] for _ in said]).astype(np.int32)
    for row, token in zip(found, said, strict=True):
        if rng.random() < 0.7:
            row[row == token] = row[0]
            row[0] = token
    log_probs = -np.sort(rng.exponential(1.0, (len(said), k)), axis=1)
    return ids([0, *said[:-1]]), found, log_probs.astype(np.float32)
