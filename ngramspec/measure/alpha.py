"""Measuring alpha: how often a drafter's tokens are accepted, by exact sums and not by counting.

At every position of a text that the target generated, p is the target's distribution, with the
request's processors applied (standardised sampling, Leviathan et al. 2023, section 2.2), and q that
of the drafter. The probability that the drafted token is accepted is sum min(p, q) (Theorem 3.5),
and alpha is its mean over the positions at which something was drafted (Corollary 3.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Draft, Float32, Int32
from ngramspec.drafters.base import Drafter
from ngramspec.hf_model.compat.names import is_encoder_decoder
from ngramspec.measure.configurations import inputs_of
from ngramspec.theory import acceptance as closed
from ngramspec.theory.arrays import Float64

RESAMPLES = 1000  # of the prompts, for a standard error


@dataclass(frozen=True, slots=True, eq=False)
class TargetText:
    """A text that the target generated, with its distribution at every position.

    Attributes:
        group: what kind of text it is.
        prompt: int32 (m,), what drafters read before the output: of an encoder-decoder the
            encoder's input and the decoder's first token.
        output: int32 (n,), what the target generated.
        probs: float32 (n, vocab), p before each token of the output, processors included; at
            temperature 0 before it is standardised to the most probable token.
        temperature: of the generation, 0 for greedy.
    """

    group: str
    prompt: Int32
    output: Int32
    probs: Float32
    temperature: float


@dataclass(slots=True)
class Played:
    """The acceptance of a drafter's tokens on one text, with one entry for each verified token.

    Attributes:
        leniences: number of leniences that were measured.
        positions: of the text, without the first, which the prompt's forward emits.
        depth: of the verified tokens in their drafts, from 0 on.
        chances: of the verified tokens, P(accepted) at each lenience.
        match: of the verified tokens, P(it equals the target's own choice), sum p q.
        moved: total variation between p and the emitted token's distribution, at every position,
            by lenience.
        surprise: the expected -log p of the emitted token, at every position, by lenience, in nats.
    """

    leniences: int = 1
    positions: int = 0
    depth: list[int] = field(default_factory=list)
    chances: list[list[float]] = field(default_factory=list)
    match: list[float] = field(default_factory=list)
    moved: list[list[float]] = field(default_factory=list)
    surprise: list[list[float]] = field(default_factory=list)


def target_text(
    model: Any,
    prompt: Sequence[int],
    *,
    new: int,
    temperature: float,
    group: str = "",
    seed: int = 0,
    sampling: dict[str, Any] | None = None,
) -> TargetText:
    """Generate a text with the baseline, and keep the target's distributions.

    Args:
        model: a causal language model of transformers, or an encoder-decoder.
        prompt: token ids; of an encoder-decoder those that the encoder reads.
        new: tokens at most.
        temperature: 0 for greedy.
        group: see TargetText.
        seed: of torch's global generator.
        sampling: further arguments of ``generate``, such as top_p; top_k is off without one.
    """
    torch.manual_seed(seed)
    out = model.generate(
        **inputs_of(model, prompt),
        max_new_tokens=new,
        output_scores=True,
        return_dict_in_generate=True,
        **sampling_arguments(temperature, sampling),
    )
    sequence = out.sequences[0].cpu().numpy().astype(np.int32)
    before, output = sequence[: -len(out.scores)], sequence[-len(out.scores) :]
    if is_encoder_decoder(model):  # drafters read the encoder's input first
        before = np.concatenate((np.array(prompt, np.int32), before))
    probs = torch.softmax(torch.cat(out.scores).float(), dim=-1).cpu().numpy()
    return TargetText(group, before, output, probs, temperature)


def sampling_arguments(temperature: float, sampling: dict[str, Any] | None) -> dict[str, Any]:
    """Arguments of ``generate`` for a temperature, 0 for greedy, and the given ones."""
    given = sampling or {}
    if not temperature:
        kept = {name: value for name, value in given.items() if name not in ("top_k", "top_p")}
        return {"do_sample": False, **kept}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0, **given}


def play(
    drafter: Drafter,
    generated: TargetText,
    gamma: int,
    *,
    leniences: Sequence[float] = (1.0,),
    change: bool = False,
    seed: int = 0,
) -> Played:
    """Draft at every position of a text, and sum the probabilities of acceptance.

    A token at depth d is verified if those before it in the draft are the target's own. Stochastic
    drafts state their q; of others it is one-hot.

    Args:
        drafter: drafts the text's tokens.
        generated: a prompt and its text.
        gamma: most tokens in a draft, >= 1.
        leniences: each in (0, 1].
        change: also how far a lenient first token moves the distribution, which takes time in
            proportion to the vocabulary.
        seed: of the draws of drafts.
    """
    played = Played(len(leniences))
    text = generated.output
    session = drafter.start(np.concatenate((generated.prompt, text[:1])))
    if generated.temperature:
        session.begin_sampling(generated.temperature, (seed,))
    for at in range(1, len(text)):
        draft = session.propose(min(gamma, len(text) - at))
        tokens = draft.tokens.tolist()
        played.positions += 1
        accepted = 0
        for depth, token in enumerate(tokens):
            chances, match = _acceptance(draft, depth, generated, at + depth, leniences)
            played.depth.append(depth)
            played.chances.append(chances)
            played.match.append(match)
            if token != text[at + depth]:
                break
            accepted += 1
        if change:
            _measure_change(played, draft, generated, at, leniences)
        if tokens:
            session.observe(draft, range(accepted), min(accepted + 1, len(tokens)))
        session.extend(text[at : at + 1])
    session.close()
    return played


def _proposed(draft: Draft, node: int) -> tuple[Int32, Float32]:
    """q of a node, sparse: ids and probabilities."""
    if draft.proposal is not None:
        return draft.proposal.of(node)
    return draft.tokens[node : node + 1], np.ones(1, np.float32)


def _acceptance(
    draft: Draft, node: int, generated: TargetText, at: int, leniences: Sequence[float]
) -> tuple[list[float], float]:
    """P(a node is accepted) at each lenience, and P(it equals the target's choice)."""
    p = generated.probs[at]
    ids, q = _proposed(draft, node)
    if not generated.temperature:  # q is standardised to its most probable token, as p is
        drafted, highest = ids[q.argmax()], p.max()
        chances = [float(p[drafted] >= lenience * highest) for lenience in leniences]
        return chances, float(drafted == p.argmax())
    mine = p[ids]
    chances = [float(np.minimum(mine / each, q).sum(dtype=np.float64)) for each in leniences]
    return chances, float((mine.astype(np.float64) * q).sum())


def dense_proposal(draft: Draft, node: int, vocab: int) -> Float64:
    """q of a node, float64 (vocab,), summing to 1."""
    ids, q = _proposed(draft, node)
    dense = np.zeros(vocab)
    dense[ids] = q.astype(np.float64) / q.sum(dtype=np.float64)
    return dense


def _measure_change(
    played: Played, draft: Draft, generated: TargetText, at: int, leniences: Sequence[float]
) -> None:
    """The effect of the first drafted token on the emitted one; none without a draft."""
    p = generated.probs[at].astype(np.float64)
    p /= p.sum()
    target = p if generated.temperature else np.eye(1, len(p), int(p.argmax()))[0]
    moved, surprise = [], []
    for lenience in leniences:
        emitted = target
        if len(draft):
            q = dense_proposal(draft, 0, len(p))
            if generated.temperature:
                emitted = closed.output(p, q, lenience)
            elif p[q.argmax()] >= lenience * p.max():
                emitted = np.eye(1, len(p), int(q.argmax()))[0]
        moved.append(float(np.abs(emitted - target).sum() / 2))
        some = emitted > 0
        surprise.append(float(-(emitted[some] * np.log(np.maximum(p[some], 1e-300))).sum()))
    played.moved.append(moved)
    played.surprise.append(surprise)


@dataclass(frozen=True, slots=True)
class Alpha:
    """Acceptance of one drafter over several texts.

    Attributes:
        positions: at which the drafter was asked for a draft.
        drafted: share of them with a draft.
        verified: verified tokens, at all depths.
        alpha: the mean of sum min(p / l, q) over the verified first tokens, by lenience.
        error: its standard error, by bootstrap over the texts, by lenience.
        match: the mean of sum p q over them.
        by_depth: (alpha, its standard error, verified) at each depth, lenience as the first one.
        moved: mean total variation between p and the emitted token's distribution, by lenience;
            empty if not measured.
        perplexity: of emitted tokens under the target, by lenience; empty if not measured.
    """

    positions: int
    drafted: float
    verified: int
    alpha: tuple[float, ...]
    error: tuple[float, ...]
    match: float
    by_depth: tuple[tuple[float, float, int], ...]
    moved: tuple[float, ...]
    perplexity: tuple[float, ...]


def summarize(played: Sequence[Played]) -> Alpha:
    """Means over the positions of all texts, with standard errors over the texts."""
    positions = sum(each.positions for each in played)
    depths = 1 + max((depth for each in played for depth in each.depth), default=-1)
    first = [_at_depth(each, 0) for each in played]  # each (tokens, leniences)
    leniences = first[0].shape[1] if first else 0
    found = [mean_and_error([each[:, k] for each in first]) for k in range(leniences)]
    match = [m for each in played for m, d in zip(each.match, each.depth, strict=True) if not d]
    by_depth = []
    for depth in range(depths):
        values = [_at_depth(each, depth)[:, 0] for each in played]
        by_depth.append((*mean_and_error(values), sum(map(len, values))))
    moved = np.array([row for each in played for row in each.moved])
    surprise = np.array([row for each in played for row in each.surprise])
    return Alpha(
        positions=positions,
        drafted=len(match) / positions if positions else 0.0,
        verified=sum(len(each.depth) for each in played),
        alpha=tuple(mean for mean, _ in found),
        error=tuple(error for _, error in found),
        match=float(np.mean(match)) if match else 0.0,
        by_depth=tuple(by_depth),
        moved=tuple(moved.mean(axis=0).tolist()) if moved.size else (),
        perplexity=tuple(np.exp(surprise.mean(axis=0)).tolist()) if surprise.size else (),
    )


def _at_depth(played: Played, depth: int) -> Float64:
    """float64 (tokens, leniences): the chances of the tokens at a depth."""
    chances = np.array(played.chances, np.float64).reshape(-1, played.leniences)
    return np.asarray(chances[np.array(played.depth, np.int64) == depth])


def mean_and_error(texts: Sequence[Float64]) -> tuple[float, float]:
    """The mean over the positions of all texts, and its standard error by bootstrap over the texts.

    Positions of one text depend on each other. So whole texts are resampled with replacement, and
    the error is the standard deviation of the mean over 1000 resamples. Both are 0 without any
    position; the error is 0 with a single text.
    """
    sums = np.array([each.sum() for each in texts])
    counts = np.array([len(each) for each in texts], np.float64)
    if not counts.sum():
        return 0.0, 0.0
    which = np.random.default_rng(0).integers(0, len(texts), (RESAMPLES, len(texts)))
    totals = counts[which].sum(axis=1)
    some = totals > 0
    means = sums[which].sum(axis=1)[some] / totals[some]
    return float(sums.sum() / counts.sum()), float(means.std())
