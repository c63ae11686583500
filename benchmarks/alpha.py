"""Alpha of any drafter: Tables 3 and 5 of Leviathan et al. 2023, by exact sums, on a model.

    python -m benchmarks alpha --model MODEL --prompts FILE --drafter copy --json OUT

At every position of a text that the target generated, p is the target's distribution, with the
request's processors applied (standardised sampling, section 2.2), and q that of the drafter. The
probability that the drafted token is accepted is sum min(p, q) (Theorem 3.5), and alpha is its mean
over the positions at which something was drafted (Corollary 3.6), with standard errors over the
prompts, next to the rate counted while decoding. The drafters are those of Table 3 that need no
second model, and this package's own. ``--lenience`` measures Table 5.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import write
from benchmarks.renderers import markdown
from benchmarks.texts import TYPES as KINDS
from benchmarks.texts import Text, content_prompts, library_prompts
from ngramspec import Speculator, build_drafter, generate
from ngramspec.cli.options import (
    CommandOptions,
    check_least,
    console,
    load_model,
    stages,
    usable,
)
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Float64, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.registry import Policy
from ngramspec.drafters.stochastic import proposal_of, sampled
from ngramspec.errors import check_real
from ngramspec.measure.calls import inputs_of
from ngramspec.measure.models import LoadedModel
from ngramspec.measure.tasks import read_prompts

TRAINED = {"trained-unigram": 1, "trained-bigram": 2}
RANDOM = "random"
ORDERS = (2, 3, 4, 8)
ALL = "all"  # the group of all texts together
RESAMPLES = 1000  # of the prompts, for a standard error
SETTINGS = ("dtype", "tokens", "gamma", "train", "lenience", "top_k", "top_p", "repetition_penalty")
SAMPLING = ("top_k", "top_p", "repetition_penalty")
TYPES, LIBRARY = "types", "library"


@dataclass(frozen=True, slots=True, eq=False)
class TargetText:
    """A text that the target generated, with its distribution at every position."""

    group: str
    prompt: Int32
    output: Int32
    probs: Float32
    temperature: float


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
    """Generate at most ``new`` tokens with the baseline, and keep the target's distributions.

    ``seed`` is that of torch's global generator, and ``sampling`` are further arguments of
    ``generate``, such as top_p; top_k is off without one.
    """
    torch.manual_seed(seed)
    out = model.generate(
        **inputs_of(model, prompt),
        max_new_tokens=new,
        output_scores=True,
        return_dict_in_generate=True,
        **sampling_arguments(temperature, sampling or {}),
    )
    sequence = out.sequences[0].cpu().numpy().astype(np.int32)
    before, output = sequence[: -len(out.scores)], sequence[-len(out.scores) :]
    if model.config.is_encoder_decoder:  # drafters read the encoder's input first
        before = np.concatenate((np.array(prompt, np.int32), before))
    probs = torch.softmax(torch.cat(out.scores).float(), dim=-1).cpu().numpy()
    return TargetText(group, before, output, probs, temperature)


def sampling_arguments(temperature: float, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``generate`` for a temperature, 0 for greedy, and the given ones."""
    if not temperature:
        kept = {name: value for name, value in given.items() if name not in ("top_k", "top_p")}
        return {"do_sample": False, **kept}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0, **given}


class CountModel:
    """A unigram or bigram model (order 1 or 2): the relative frequencies in some texts.

    An unknown context of a bigram falls back to the unigram. Without any token, a ValueError is
    raised. ``CountModel([range(vocab)], 1)`` draws random tokens (Leviathan et al., section 3.6).
    """

    def __init__(self, texts: Iterable[Sequence[int]], order: int) -> None:
        counts: Counter[int] = Counter()
        follow: dict[int, Counter[int]] = {}
        for text in texts:
            counts.update(text)
            for before, token in pairwise(text) if order == 2 else ():
                follow.setdefault(before, Counter())[token] += 1
        if not counts:
            raise ValueError("a count model needs a text to be trained on")
        self._unigram = _frequencies(counts)
        self._bigrams = {each: _frequencies(found) for each, found in follow.items()}

    def following(self, last: int | None) -> tuple[Int32, Float32]:
        """The ids that may follow a token, or None for the start, and their probabilities."""
        return self._unigram if last is None else self._bigrams.get(last, self._unigram)


def _frequencies(counts: Counter[int]) -> tuple[Int32, Float32]:
    ids = np.array(sorted(counts), np.int32)
    values = np.array([counts[int(each)] for each in ids], np.float64)
    return ids, (values / values.sum()).astype(np.float32)


class CountDrafter(Drafter):
    """Draws each token from a model, or its most probable one in requests without sampling."""

    def __init__(self, model: CountModel, name: str) -> None:
        self.model = model
        self.source_names = (name,)

    def start(self, tokens: Int32) -> DraftSession:
        return _CountSession(self.model, tokens)


class _CountSession(DraftSession):
    """Drafts at the request's temperature; at 0 until ``begin_sampling``."""

    def __init__(self, model: CountModel, tokens: Int32) -> None:
        self.model = model
        self._last = int(tokens[-1]) if len(tokens) else None
        self._temperature = 0.0
        self._rng = np.random.default_rng(0)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self._temperature = temperature
        self._rng = np.random.default_rng(seed)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if gamma < 1:
            return EMPTY_DRAFT
        last, tokens, proposals = self._last, [], []
        for _ in range(gamma):
            ids, probs = self.model.following(last)
            if self._temperature:
                heated = (probs.astype(np.float64) / probs.max()) ** (1 / self._temperature)
                probs = (heated / heated.sum()).astype(np.float32)
                ids, probs = ids[probs > 0], probs[probs > 0]
                last = sampled(ids, probs, self._rng)[0]
            else:
                last = int(ids[probs.argmax()])
            tokens.append(last)
            proposals.append((ids, probs))
        proposal = proposal_of(proposals) if self._temperature else None
        return Draft(np.array(tokens, np.int32), proposal=proposal)

    def extend(self, tokens: Int32) -> None:
        if len(tokens):
            self._last = int(tokens[-1])


@dataclass(slots=True)
class Played:
    """The acceptance of a drafter's first tokens on one text, with an entry for each draft."""

    leniences: int = 1
    positions: int = 0
    chances: list[list[float]] = field(default_factory=list)
    match: list[float] = field(default_factory=list)


def play(
    drafter: Drafter,
    generated: TargetText,
    gamma: int,
    *,
    leniences: Sequence[float] = (1.0,),
    seed: int = 0,
) -> Played:
    """Draft at most ``gamma`` tokens at every position of a text, and sum P(the first is accepted).

    Stochastic drafts, drawn by ``seed``, state their q; of others it is one-hot.
    """
    played = Played(len(leniences))
    text = generated.output
    session = drafter.start(np.concatenate((generated.prompt, text[:1])))
    if generated.temperature:
        session.begin_sampling(generated.temperature, (seed,))
    for at in range(1, len(text)):
        draft = session.propose(min(gamma, len(text) - at))
        tokens = draft.tokens
        played.positions += 1
        if len(tokens):
            chances, match = _acceptance(draft, generated, at, leniences)
            played.chances.append(chances)
            played.match.append(match)
            accepted = int((tokens == text[at : at + len(tokens)]).cumprod().sum())
            session.observe(draft, range(accepted), min(accepted + 1, len(tokens)))
        session.extend(text[at : at + 1])
    session.close()
    return played


def _acceptance(
    draft: Draft, generated: TargetText, at: int, leniences: Sequence[float]
) -> tuple[list[float], float]:
    """P(a draft's first token is accepted) at each lenience, and P(it is the target's choice)."""
    p = generated.probs[at]
    ids, q = draft.tokens[:1], np.ones(1, np.float32)
    if draft.proposal is not None:
        ids, q = draft.proposal.of(0)
    if not generated.temperature:  # q is standardised to its most probable token, as p is
        drafted, highest = ids[q.argmax()], p.max()
        chances = [float(p[drafted] >= lenience * highest) for lenience in leniences]
        return chances, float(drafted == p.argmax())
    mine = p[ids]
    chances = [float(np.minimum(mine / each, q).sum(dtype=np.float64)) for each in leniences]
    return chances, float((mine.astype(np.float64) * q).sum())


@dataclass(frozen=True, slots=True)
class Alpha:
    """Acceptance of one drafter over several texts."""

    positions: int
    drafted: float
    alpha: tuple[float, ...]
    error: tuple[float, ...]
    match: float


def summarize(played: Sequence[Played]) -> Alpha:
    """Means over the positions of all texts, with standard errors over the texts."""
    positions = sum(each.positions for each in played)
    chances = [np.array(each.chances, np.float64).reshape(-1, each.leniences) for each in played]
    leniences = played[0].leniences if played else 1
    found = [mean_and_error([each[:, k] for each in chances]) for k in range(leniences)]
    match = [value for each in played for value in each.match]
    return Alpha(
        positions=positions,
        drafted=len(match) / positions if positions else 0.0,
        alpha=tuple(mean for mean, _ in found),
        error=tuple(error for _, error in found),
        match=float(np.mean(match)) if match else 0.0,
    )


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    prompts: Sequence[tuple[str, Sequence[int]]]  # (group, token ids) of each
    train: Sequence[Sequence[int]] = ()  # other prompts, whose outputs train the count models
    new: int = 128  # most tokens after each prompt
    gamma: int = 4
    leniences: Sequence[float] = (1.0,)  # each in (0, 1], the first one 1
    observed: bool = True  # whether to decode speculatively as well, and count
    sampling: dict[str, Any] = field(default_factory=dict)  # further arguments of ``generate``


@dataclass(frozen=True, slots=True)
class Observed:
    """What decoding with the drafter counted: ``DecodeStats`` of all prompts, by lenience."""

    lenience: float
    verified: int
    alpha: float
    tokens_per_call: float


@dataclass(frozen=True, slots=True)
class Row:
    """One drafter at one temperature, on one group of texts or ALL; only ALL has ``observed``."""

    drafter: str
    temperature: float
    group: str
    alpha: Alpha
    observed: tuple[Observed, ...] = ()


def default_drafters(temperature: float) -> list[str]:
    """The drafters of Table 3 that exist for any model, and this package's own."""
    sample = ",sample=true" if temperature else ""
    counts = [f"ngram(order={order}{sample})" for order in ORDERS]
    return [RANDOM, *TRAINED, *counts, *(["ngram(order=4)"] if sample else []), "copy", "auto"]


def measure(
    model: Any,
    plan: Plan,
    temperature: float,
    drafters: Sequence[str],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Iterator[Row]:
    """A row for each drafter and group; with several groups, ALL comes first.

    Drafters are specs of build_drafter, "trained-unigram", "trained-bigram" and "random". A
    ValueError names an unknown drafter, or what the plan is missing.
    """
    measurement = _Measurement(model, plan, temperature, on_stage)
    makers = {name: measurement.maker(name) for name in drafters}
    texts = list(measurement.texts())
    for name, make in makers.items():
        on_stage(f"T={temperature:g}: {name}")
        yield from measurement.rows(name, make, texts)


@dataclass(slots=True)
class _Measurement:
    """A plan at one temperature; ``outputs`` are the texts that train count models, if needed."""

    model: Any
    plan: Plan
    temperature: float
    on_stage: Callable[[str], None]
    outputs: list[list[int]] = field(default_factory=list)

    def texts(self) -> Iterator[TargetText]:
        """The target's texts of two tokens or more."""
        for number, (group, ids) in enumerate(self.plan.prompts):
            self.on_stage(f"T={self.temperature:g}: text {number + 1} of {len(self.plan.prompts)}")
            generated = target_text(
                self.model,
                ids,
                new=self.plan.new,
                temperature=self.temperature,
                group=group,
                seed=number,
                sampling=self.plan.sampling,
            )
            if len(generated.output) > 1:
                yield generated

    def rows(
        self, name: str, make: Callable[[], Drafter], texts: Sequence[TargetText]
    ) -> Iterator[Row]:
        """A drafter's row of all texts, and one of each group if there are several."""
        plan, drafter = self.plan, make()  # what it learns of acceptance it learns over all texts
        replayed = partial(play, drafter, leniences=plan.leniences)
        played = [replayed(each, plan.gamma, seed=number) for number, each in enumerate(texts)]
        seen = tuple(self.observe(make)) if plan.observed else ()
        yield Row(name, self.temperature, ALL, summarize(played), seen)
        groups: dict[str, list[Played]] = {}
        for each, generated in zip(played, texts, strict=True):
            groups.setdefault(generated.group, []).append(each)
        for group, mine in groups.items() if len(groups) > 1 else ():
            yield Row(name, self.temperature, group, summarize(mine))

    def observe(self, make: Callable[[], Drafter]) -> Iterator[Observed]:
        """Decode speculatively, with chains, at each lenience, and count."""
        for lenience in self.plan.leniences:
            speculator = Speculator(make(), self.plan.gamma, tree=None, lenience=lenience)
            for number, (_, ids) in enumerate(self.plan.prompts):
                self.generate(ids, number, speculator)
            stats = speculator.stats
            yield Observed(lenience, stats.verified, stats.alpha, stats.tokens_per_call)

    def generate(self, ids: Sequence[int], seed: int, speculator: Speculator) -> list[int]:
        """The ids that the target generates speculatively after a prompt."""
        torch.manual_seed(seed)
        given = sampling_arguments(self.temperature, self.plan.sampling)
        given |= {"max_new_tokens": self.plan.new, **inputs_of(self.model, ids)}
        out = generate(self.model, speculator=speculator, **given)
        begin = 1 if self.model.config.is_encoder_decoder else len(ids)
        new: list[int] = out[0, begin:].tolist()
        return new

    def maker(self, name: str) -> Callable[[], Drafter]:
        """What makes a drafter; a ValueError if it is unknown, or the plan lacks what it needs."""
        if name in TRAINED:
            return partial(CountDrafter, CountModel(self.train_texts(), TRAINED[name]), name)
        if name == RANDOM:
            every = range(self.model.config.get_text_config().vocab_size)
            return partial(CountDrafter, CountModel([every], 1), RANDOM)
        policy: Policy = "value" if name == "auto" or "+" in name else "priority"
        build_drafter(name, policy=policy)
        return partial(build_drafter, name, policy=policy)

    def train_texts(self) -> list[list[int]]:
        """The target's outputs for the plan's training prompts, generated once."""
        if not self.plan.train:
            raise ValueError("trained drafters need prompts to train on")
        if not self.outputs:
            self.on_stage(f"T={self.temperature:g}: texts to train on")
            for number, ids in enumerate(self.plan.train):
                self.outputs.append(self.generate(ids, -1 - number, Speculator(tree=None)))
        return self.outputs


def add_arguments(options: CommandOptions) -> None:
    options.model(dtype="float32")
    options.repeated(
        "--drafter",
        "SPEC",
        "such as copy, 'ngram(order=3,sample=true)', trained-unigram, trained-bigram, random;"
        " may be repeated (default: all of these)",
    )
    options.text(
        "--prompts",
        "FILE",
        "JSON lines as 'ngramspec record' reads them; 'types': natural text, code, structured"
        " data and repeated text; 'library' (default): tasks about passages of Python's library",
        default=LIBRARY,
    )
    options.count("--count", 10, "prompts, of 'types' of each type")
    options.count("--train", 10, "further prompts whose outputs train unigram and bigram")
    options.count("--tokens", 128, "new tokens of each")
    options.count("--gamma", 4, "tokens drafted in a step")
    options.numbers("--temperatures", [0.0, 1.0], "of the target, 0 for greedy", float, "T")
    help = "values below 1 to measure too, such as 0.5 0.3 0.1"
    options.numbers("--lenience", [], help, float, "L")
    options.text("--top-k", "N", "of the target (default: off)", type=int)
    options.text("--top-p", "P", "of the target (default: off)", type=float)
    options.text("--repetition-penalty", "X", "default: off", type=float)
    options.flag("--no-observed", "do not decode speculatively")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")  # parsing the library's sources causes some
    check(arguments)
    screen = console()
    loaded = load_model(arguments)
    with usable():
        plan = make_plan(arguments, loaded)
    rows: list[Row] = []
    with stages(screen) as on_stage, usable():
        for temperature in arguments.temperatures:
            names = arguments.drafter or default_drafters(temperature)
            rows += measure(loaded.model, plan, temperature, names, on_stage)
    print(overview(rows))
    settings = {"model": loaded.name, **{name: getattr(arguments, name) for name in SETTINGS}}
    write(arguments, {"settings": settings, "rows": [asdict(row) for row in rows]})
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Check the numbers; a UsageError names one that is out of bounds."""
    check_least(arguments, count=1, train=0, tokens=2, gamma=1)
    bounds = {
        "--temperatures": ([each for each in arguments.temperatures if each], math.inf),
        "--lenience": (arguments.lenience, 1.0),
    }
    with usable():
        for option, (values, highest) in bounds.items():
            for value in values:
                check_real(option, value, 0.0, highest)


def make_plan(arguments: argparse.Namespace, loaded: LoadedModel) -> Plan:
    """The encoded prompts and all other settings of the measurement."""
    encode = partial(loaded.encode, chat=arguments.prompts != TYPES)
    prompts, train = given_prompts(arguments, encode)
    given = {name: getattr(arguments, name) for name in SAMPLING}
    return Plan(
        prompts=prompts,
        train=[ids for _, ids in train],
        new=arguments.tokens,
        gamma=arguments.gamma,
        leniences=[1.0, *(each for each in arguments.lenience if each < 1.0)],
        observed=not arguments.no_observed,
        sampling={name: value for name, value in given.items() if value is not None},
    )


Encoded = list[tuple[str, Sequence[int]]]  # the group and the token ids of each prompt


def given_prompts(
    arguments: argparse.Namespace, encode: Callable[[str], list[int]]
) -> tuple[Encoded, Encoded]:
    """The prompts to measure, and those to train on."""

    def encoded(prompts: Iterable[Text]) -> Encoded:
        return [(each.group, encode(each.text)) for each in prompts]

    count, train = arguments.count, arguments.train
    if arguments.prompts == TYPES:
        each = count + -(-train // len(KINDS))  # prompts of each type, one type after another
        found = [*enumerate(content_prompts(each))]
        chosen = encoded(prompt for at, prompt in found if at % each < count)
        return chosen, encoded(prompt for at, prompt in found if at % each >= count)
    if arguments.prompts == LIBRARY:
        prompts = encoded(library_prompts(count + train))
        return prompts[:count], prompts[count:]
    with usable("--prompts"):
        own = read_prompts(Path(arguments.prompts), encode)[:count]
    return [(each.task, each.ids) for each in own], encoded(library_prompts(train))


def overview(rows: Sequence[Row]) -> str:
    """Table 3: a row for each drafter, temperature and group."""
    names = ("positions", "drafted", "alpha", "± s.e.", "match", "observed", "tokens per forward")
    cells: list[Sequence[str]] = []
    for row in rows:
        alpha = row.alpha
        seen = [f"{each:.3f}" for o in row.observed[:1] for each in (o.alpha, o.tokens_per_call)]
        figures = (f"{each:.4f}" for each in (alpha.alpha[0], alpha.error[0], alpha.match))
        counts = (f"{alpha.positions:,}", f"{alpha.drafted:.3f}")
        cells.append((row.drafter, f"{row.temperature:g}", row.group, *counts, *figures, *seen))
    return markdown(("drafter", "T", "texts", *names), cells)
