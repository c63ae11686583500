"""What the tests of the value engine share: texts, costs, and drafts verified against a text."""

from __future__ import annotations

import numpy as np

from ngramspec.draft import Draft
from ngramspec.drafters.base import check_draft
from ngramspec.measure.replay import accepted_path


def ids(tokens):
    return np.array(tokens, np.int32)


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


def play(engine, text, prompt, gamma, cost=None):
    """Verify drafts against ``text``; returns (steps, emitted, probabilities, outcomes, drafts)."""
    engine.extend(text[:prompt])
    at, steps, probabilities, outcomes, drafts = prompt, 0, [], [], []
    while at < len(text):
        tokens, confidence, source = engine.draft(gamma, cost)
        drafts.append((tokens.tolist(), confidence, source.tolist()))
        agree = 0
        while agree < len(tokens) and at + agree < len(text) and tokens[agree] == text[at + agree]:
            agree += 1
        for j in range(min(agree + 1, len(tokens))):
            probabilities.append(float(confidence[j]))
            outcomes.append(j < agree)
        engine.extend(text[at : at + agree + 1])
        at += agree + 1
        steps += 1
    return steps, len(text) - prompt, probabilities, outcomes, drafts


def play_trees(engine, text, prompt, gamma, cost=None):
    """Verify trees against ``text``; returns (steps, probabilities, outcomes, trees)."""
    engine.extend(text[:prompt])
    at, steps, probabilities, outcomes, trees = prompt, 0, [], [], []
    while at < len(text):
        tokens, parents, confidence, source = engine.draft_tree(gamma, cost)
        draft = check_draft(
            Draft(tokens, parents, confidence, None, source), gamma, 2**31, tree=True
        )
        trees.append(draft)
        path = list(accepted_path(tokens.tolist(), draft, [*text.tolist(), -1], at))
        for node, parent in enumerate(parents.tolist()):
            if parent in (-1, *path):
                probabilities.append(float(confidence[node]))
                outcomes.append(node in path)
        engine.extend(text[at : at + len(path) + 1])
        at += len(path) + 1
        steps += 1
    return steps, probabilities, outcomes, trees


def same(ours, theirs):
    """Of (tokens, parents of a tree, confidence, source), all to the last bit."""
    assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
