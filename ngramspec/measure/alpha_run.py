"""Alpha of several drafters on one model: Tables 3 and 5 of Leviathan et al. 2023, here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from ngramspec import Speculator, build_drafter, generate
from ngramspec.drafters.base import Drafter
from ngramspec.measure.alpha import (
    Alpha,
    TargetText,
    inputs_of,
    play,
    sampling_arguments,
    summarize,
    target_text,
)
from ngramspec.measure.alpha_drafters import (
    CountModel,
    ModelDrafter,
    RandomModel,
    SmallModelDrafter,
)
from ngramspec.measure.change import Change, Recorder, decode
from ngramspec.theory.walltime import improvement, optimal_gamma

TRAINED = {"trained-unigram": 1, "trained-bigram": 2}
RANDOM, MODEL = "random", "draft-model"
ORDERS = (2, 3, 4, 8)
ALL = "all"  # the group of all texts together
MAX_REPORTED_GAMMA = 64  # limit of the optimal gamma in the rows


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        prompts: (group, token ids) of each.
        train: token ids of other prompts, whose outputs train the count models.
        new: tokens after each prompt, at most.
        leniences: each in (0, 1], the first one 1.
        change: whether to measure how far lenience moves the distribution.
        observed: whether to decode speculatively as well, and count.
        sampling: further arguments of ``generate``.
        seed: of the first prompt; the others' are those after it.
    """

    prompts: Sequence[tuple[str, Sequence[int]]]
    train: Sequence[Sequence[int]] = ()
    new: int = 128
    gamma: int = 4
    leniences: Sequence[float] = (1.0,)
    change: bool = False
    observed: bool = True
    sampling: dict[str, Any] = field(default_factory=dict)
    draft_model: Any = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """What decoding with the drafter counted: ``DecodeStats`` of all prompts, by lenience.

    Attributes:
        moved, perplexity, text_moved: of the generated texts, see Change; None if the change was
            not measured, and ``text_moved`` if drafts were sampled.
    """

    lenience: float
    verified: int
    alpha: float
    tokens_per_call: float
    moved: float | None = None
    perplexity: float | None = None
    text_moved: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One drafter at one temperature, on one group of texts.

    Attributes:
        group: the texts' group, or ALL.
        observed: of all groups together; empty for single ones.
    """

    drafter: str
    temperature: float
    group: str
    alpha: Alpha
    observed: tuple[Observed, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, with the speed that Theorem 3.8 predicts at c = 0 and its gamma."""
        rate = self.alpha.drafted * (self.alpha.alpha[0] if self.alpha.alpha else 0.0)
        best = int(optimal_gamma(rate, 0.02, most=MAX_REPORTED_GAMMA))
        return {
            **asdict(self),
            "effective_alpha": rate,  # as if an empty draft were a rejected one
            "improvement_gamma_3": float(improvement(rate, 3)),
            "optimal_gamma_c_0.02": best,
        }


def default_drafters(temperature: float, draft_temperatures: Sequence[float]) -> list[str]:
    """The drafters of Table 3 that exist for any model, and this package's own."""
    if temperature:
        counts = [
            f"ngram(order={order},sample=true,temperature={each:g})"
            for order in ORDERS
            for each in draft_temperatures
        ]
        counts.append("ngram(order=4)")
    else:
        counts = [f"ngram(order={order})" for order in ORDERS]
    return [RANDOM, *TRAINED, *counts, "copy", "auto"]


def measure(
    model: Any,
    plan: Plan,
    temperature: float,
    drafters: Sequence[str],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Iterator[Row]:
    """A row for each drafter and group; with several groups, ALL comes first.

    Args:
        temperature: of the target, also for the outputs that train count models.
        drafters: specs for build_drafter, "trained-unigram", "trained-bigram", "random",
            "draft-model".

    Raises:
        ValueError: a drafter is unknown, or the plan lacks what it needs.
    """
    makers = _makers(model, plan, temperature, drafters, on_stage)
    texts = []
    for number, (group, ids) in enumerate(plan.prompts):
        on_stage(f"T={temperature:g}: text {number + 1} of {len(plan.prompts)}")
        generated = target_text(
            model,
            ids,
            new=plan.new,
            temperature=temperature,
            group=group,
            seed=plan.seed + number,
            sampling=plan.sampling,
        )
        texts += [generated] if len(generated.output) > 1 else []
    for name, make in makers.items():
        on_stage(f"T={temperature:g}: {name}")
        yield from _rows(model, plan, temperature, name, make, texts)


def _rows(
    model: Any,
    plan: Plan,
    temperature: float,
    name: str,
    make: Callable[[], Drafter],
    texts: Sequence[TargetText],
) -> Iterator[Row]:
    drafter = make()  # what it learns of acceptance it learns over all texts
    played = [
        play(
            drafter,
            generated,
            plan.gamma,
            leniences=plan.leniences,
            change=plan.change,
            seed=plan.seed + number,
        )
        for number, generated in enumerate(texts)
    ]
    seen = tuple(observe(model, plan, temperature, make)) if plan.observed else ()
    yield Row(name, temperature, ALL, summarize(played), seen)
    groups = dict.fromkeys(generated.group for generated in texts)
    for group in groups if len(groups) > 1 else ():
        pairs = zip(played, texts, strict=True)
        mine = [each for each, generated in pairs if generated.group == group]
        yield Row(name, temperature, group, summarize(mine))


def observe(
    model: Any, plan: Plan, temperature: float, make: Callable[[], Drafter]
) -> Iterator[Observed]:
    """Decode speculatively, with chains, at each lenience, and count."""
    for lenience in plan.leniences:
        drafter = Recorder(make()) if plan.change else make()
        speculator = Speculator(drafter, plan.gamma, tree=None, lenience=lenience)
        change = Change()
        for number, (_, ids) in enumerate(plan.prompts):
            torch.manual_seed(plan.seed + number)
            arguments = sampling_arguments(temperature, plan.sampling)
            arguments["max_new_tokens"] = plan.new
            if plan.change:
                decode(model, ids, speculator, change, **arguments)
            else:
                generate(model, **inputs_of(model, ids), speculator=speculator, **arguments)
        stats = speculator.stats
        of_texts = (change.mean_moved, change.perplexity, change.text_moved) if plan.change else ()
        yield Observed(lenience, stats.verified, stats.alpha, stats.tokens_per_call, *of_texts)


def _makers(
    model: Any,
    plan: Plan,
    temperature: float,
    names: Sequence[str],
    on_stage: Callable[[str], None],
) -> dict[str, Callable[[], Drafter]]:
    """A factory of each drafter."""
    makers: dict[str, Callable[[], Drafter]] = {}
    outputs: list[list[int]] = []
    for name in names:
        if name in TRAINED:
            if not outputs:
                on_stage(f"T={temperature:g}: texts to train on")
                outputs = _train_texts(model, plan, temperature)
            counts = CountModel(outputs, TRAINED[name])
            makers[name] = partial(ModelDrafter, counts, name)
        elif name == RANDOM:
            uniform = RandomModel(model.config.get_text_config().vocab_size)
            makers[name] = partial(ModelDrafter, uniform, RANDOM)
        elif name == MODEL:
            if plan.draft_model is None:
                raise ValueError(f"{MODEL} needs a model")
            makers[name] = partial(SmallModelDrafter, plan.draft_model)
        else:
            policy = "value" if name == "auto" or "+" in name else "priority"
            build_drafter(name, policy=policy)
            makers[name] = partial(build_drafter, name, policy=policy)
    return makers


def _train_texts(model: Any, plan: Plan, temperature: float) -> list[list[int]]:
    """The target's outputs for the plan's training prompts; a ValueError if there are none."""
    if not plan.train:
        raise ValueError("trained drafters need prompts to train on")
    found = []
    for number, ids in enumerate(plan.train):
        torch.manual_seed(plan.seed - 1 - number)
        out = generate(
            model,
            **inputs_of(model, ids),
            max_new_tokens=plan.new,
            speculator=Speculator(tree=None),
            **sampling_arguments(temperature, plan.sampling),
        )
        begin = 1 if model.config.is_encoder_decoder else len(ids)
        found.append(out[0, begin:].tolist())
    return found
