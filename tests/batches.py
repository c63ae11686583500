"""Prompts of different lengths in one batch, and a drafter that knows each row's text."""

from __future__ import annotations

import numpy as np
import torch
from doubles import draft_of
from families import VOCAB

from ngramspec import Drafter, DraftSession


def batch(rows=3, seed=0):
    """Left-padded prompts of different lengths with something to copy."""
    rng = np.random.default_rng(seed)
    prompts = [np.tile(rng.integers(3, VOCAB, 5), 4)[: 8 + 3 * row] for row in range(rows)]
    longest = max(len(each) for each in prompts)
    ids = torch.zeros(rows, longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, longest - len(prompt) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


class RowOracle(Drafter):
    """Knows each row's text; right with probability ``right`` at each token."""

    tiers = ("oracle",)

    def __init__(self, texts, right, seed=0):
        self.texts = {tuple(text[:4]): text for text in texts}
        self.right = right
        self.rng = np.random.default_rng(seed)

    def start(self, tokens):
        owner, text = self, self.texts[tuple(tokens[:4].tolist())]

        class Session(DraftSession):
            at = len(tokens)

            def propose(self, gamma, cost=None, *, tree=False):
                guess = np.array(text[self.at : self.at + gamma], np.int32)
                wrong = owner.rng.random(len(guess)) >= owner.right
                return draft_of(np.where(wrong, (guess + 1) % VOCAB, guess))

            def extend(self, tokens):
                self.at += len(tokens)

        return Session()


def row_texts(inputs, sequences):
    """Each row's tokens without the padding before its prompt."""
    starts = inputs["attention_mask"].argmax(dim=1).tolist()
    return [row[start:].tolist() for row, start in zip(sequences, starts, strict=True)]
