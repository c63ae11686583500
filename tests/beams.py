"""What beam search tests share: a drafter that knows the beams, and the comparison."""

from __future__ import annotations

import numpy as np
import torch
from doubles import draft_of

from ngramspec import Drafter, DraftSession


def without_padding(text):
    """A list of tokens without the zeros before the first other one."""
    return text[next((at for at, token in enumerate(text) if token), len(text)) :]


class BeamOracle(Drafter):
    """Knows the beams of a search that ran before; right with probability ``right`` at each token.

    ``watch`` is a logits processor, with which the search that it learns from runs.
    """

    source_names = ("oracle",)
    branches = True

    def __init__(self, right=1.0, seed=0):
        self.right = right
        self.rng = np.random.default_rng(seed)
        self.texts = {}  # a beam's tokens -> the last tokens of the beams that continued it

    def watch(self, input_ids, scores):
        for text in input_ids.tolist():
            own = without_padding(text)
            if own:
                self.texts.setdefault(tuple(own[:-1]), []).append(own[-1])
        return scores

    def start(self, tokens):
        owner = self

        class Session(DraftSession):
            text = without_padding(tokens.tolist())

            def propose(self, gamma, cost=None, *, tree=False):
                return owner.draft(self.text, gamma)

            def extend(self, tokens):
                self.text += tokens.tolist()

        return Session()

    def draft(self, text, gamma):
        """The continuation of a text that reaches farthest of those that are known."""
        for start in range(len(text)):  # an encoder's input comes before the decoder's text
            tokens = self.farthest(tuple(text[start:]), gamma)
            if tokens:
                break
        wrong = self.rng.random(len(tokens)) >= self.right
        guess = np.array(tokens, np.int32)
        return draft_of(np.where(wrong, 3 + (guess + 1) % 50, guess))

    def farthest(self, text, gamma):
        if not gamma or text not in self.texts:
            return []
        known = dict.fromkeys(self.texts[text])
        tails = [[token, *self.farthest((*text, token), gamma - 1)] for token in known]
        return max(tails, key=len)


class Watching:
    """A logits processor or stopping criterion that keeps what it sees.

    Args:
        stop_at: as a criterion, the length at which sequences end.
        fail_at: the length at which it raises.
    """

    def __init__(self, stop_at=None, fail_at=None):
        self.stop_at, self.fail_at = stop_at, fail_at
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.tolist())
        if input_ids.shape[1] == self.fail_at:
            raise RuntimeError(f"fails at {self.fail_at}")
        if scores is not None:
            return scores
        done = input_ids.shape[1] == self.stop_at
        return torch.full((len(input_ids),), done, dtype=torch.bool)


def assert_same(plain, ours):
    """Two beam searches returned the same: scores of sequences within 1e-4, of tokens 1e-3."""
    assert type(plain) is type(ours)
    assert torch.equal(plain.sequences, ours.sequences)
    assert torch.equal(plain.beam_indices, ours.beam_indices)
    near = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(plain.sequences_scores, ours.sequences_scores, **near)
    for name in ("scores", "logits"):
        pairs = zip(getattr(plain, name), getattr(ours, name), strict=True)
        for first, second in pairs:
            torch.testing.assert_close(first, second, atol=1e-3, rtol=1e-3)
