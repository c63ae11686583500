"""Heads over the target's hidden states (Medusa, Cai et al. 2024) as a drafter of one's own.

Nothing of it is in the package: the evidence is all that a head needs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import ids

import ngramspec
from ngramspec import Draft, Drafter, DraftSession, EvidenceRequest, Speculator

VOCAB, HEADS = 97, 3


class Heads:
    """Head j maps a state to the token j + 2 places after it: one hidden layer, fitted exactly."""

    def __init__(self, states, tokens):
        """States float32 (n, d) of a text's positions, and its tokens (n,)."""
        rng = np.random.default_rng(0)
        self.inner = rng.normal(size=(states.shape[1], 300)) / np.sqrt(states.shape[1])
        features = self.features(states)
        self.outer = []
        for ahead in range(2, 2 + HEADS):
            wanted = np.eye(VOCAB)[tokens[ahead:]]
            fitted = np.linalg.lstsq(features[:-ahead], wanted, rcond=1e-6)[0]
            self.outer.append(fitted)

    def features(self, states):
        return np.maximum(states @ self.inner, 0)

    def __call__(self, state):
        features = self.features(state)
        return [int((features @ each).argmax()) for each in self.outer]


class HeadSession(DraftSession):
    def __init__(self, heads):
        self.heads, self.state = heads, None

    def propose(self, gamma, cost=None, *, tree=False):
        return Draft(ids(*([] if self.state is None else self.heads(self.state)[:gamma])))

    def observe(self, draft, accepted, verified=None, evidence=None):
        self.state = evidence.hidden[evidence.accepted[-1]]

    def extend(self, tokens):
        pass


class HeadDrafter(Drafter):
    source_names = ("heads",)
    evidence = EvidenceRequest(hidden=True)

    def __init__(self, heads):
        self.heads = heads

    def start(self, tokens):
        return HeadSession(self.heads)


@pytest.mark.long
@pytest.mark.parametrize("sampled", [False, True])
def test_trained_heads_draft_what_the_target_says_next(tiny, sampled):
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    text = tiny.generate(prompt, max_new_tokens=150, do_sample=False)
    with torch.no_grad():
        states = tiny(text, output_hidden_states=True).hidden_states[-1][0]
    heads = Heads(states.numpy(), text[0].numpy())
    speculator = Speculator(HeadDrafter(heads), gamma=HEADS)
    arguments = {"do_sample": sampled, **({"temperature": 0.2} if sampled else {})}
    torch.manual_seed(0)
    plain = tiny.generate(prompt, max_new_tokens=150, **arguments)
    torch.manual_seed(0)
    out = ngramspec.generate(
        tiny, input_ids=prompt, max_new_tokens=150, speculator=speculator, **arguments
    )
    assert out.tolist() == plain.tolist()
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.alpha > (0.1 if sampled else 0.9)
