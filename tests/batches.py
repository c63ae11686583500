"""Prompts of different lengths in one batch, and a drafter that knows each row's text."""

from __future__ import annotations

import numpy as np
import torch
from doubles import bushy, draft_of, half_right
from families import VOCAB

from ngramspec import Draft, Drafter, DraftSession
from ngramspec.draft import EMPTY_DRAFT


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

    source_names = ("oracle",)

    def __init__(self, texts, right, seed=0):
        self.texts = {tuple(text[:4]): text for text in texts}
        self.right = right
        self.rng = np.random.default_rng(seed)

    def start(self, tokens):
        text = self.texts[tuple(tokens[:4].tolist())]
        return half_right(text, VOCAB, self.rng, self.right).start(tokens)


class RowTrees(Drafter):
    """Knows each row's text, and drafts ``bushy`` trees of it.

    Args:
        texts: of the rows.
        seed: of the trees.
        right: see ``bushy``.
        kinds: of the drafts, by turns: "tree", "chain" and "nothing".
        confidence: of every node, or None.
    """

    source_names = ("trees",)
    branches = True

    def __init__(self, texts, *, seed=0, right=0.7, kinds=("tree",), confidence=None):
        self.texts = {tuple(text[:4]): text for text in texts}
        self.seed, self.right, self.kinds, self.confidence = seed, right, kinds, confidence

    def start(self, tokens):
        owner, text = self, self.texts[tuple(tokens[:4].tolist())]
        trees = bushy(text, VOCAB, self.seed + text[0], self.right)

        class Session(DraftSession):
            at = len(tokens)
            turn = text[0]

            def propose(self, gamma, cost=None, *, tree=False):
                self.turn += 1
                kind = owner.kinds[self.turn % len(owner.kinds)]
                if kind == "nothing":
                    return EMPTY_DRAFT
                if kind == "chain" or not tree:
                    draft = draft_of(text[self.at : self.at + min(gamma, 3)])
                else:
                    draft = trees.guess(self.at, gamma)
                if owner.confidence is None:
                    return draft
                sure = np.full(len(draft), owner.confidence, np.float32)
                return Draft(draft.tokens, draft.parents, sure)

            def extend(self, tokens):
                self.at += len(tokens)

        return Session()


def row_texts(inputs, sequences, *, encoded=False):
    """Each row's tokens without the padding before its prompt.

    Args:
        inputs: the prompts, as ``batch`` makes them.
        sequences: generated from them.
        encoded: whether the prompts are an encoder's; each then comes before the decoder's tokens.
    """
    starts = inputs["attention_mask"].argmax(dim=1).tolist()
    if encoded:
        sequences = torch.cat((inputs["input_ids"], sequences), dim=1)
    return [row[start:].tolist() for row, start in zip(sequences, starts, strict=True)]
