"""Alpha of several drafters on one model: Tables 3 and 5 of Leviathan et al. 2023, here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from ngramspec import Speculator, build_drafter, generate
from ngramspec.drafters.base import Drafter
from ngramspec.hf_model.compat.names import is_encoder_decoder, vocab_size
from ngramspec.measure.alpha import (
    Alpha,
    Played,
    TargetText,
    play,
    sampling_arguments,
    summarize,
    target_text,
)
from ngramspec.measure.alpha_drafters import CountModel, ModelDrafter, SmallModelDrafter
from ngramspec.measure.change import Change, Recorder, decode
from ngramspec.measure.configurations import inputs_of
from ngramspec.theory.walltime import improvement, optimal_gamma

TRAINED = {"trained-unigram": 1, "trained-bigram": 2}
RANDOM, MODEL = "random", "draft-model"
ORDERS = (2, 3, 4, 8)
ALL = "all"  # the group of all texts together
MAX_REPORTED_GAMMA = 64  # limit of the optimal gamma in the rows


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
    draft_model: Any = None

    @property
    def change(self) -> bool:
        """Whether to measure how far lenience moves the distribution."""
        return len(self.leniences) > 1


@dataclass(frozen=True, slots=True)
class Observed:
    """What decoding with the drafter counted: ``DecodeStats`` of all prompts, by lenience.

    The last three are those of Change. They are None if the change was not measured.
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
    """One drafter at one temperature, on one group of texts or ALL; only ALL has ``observed``."""

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

    Drafters are specs of build_drafter, "trained-unigram", "trained-bigram", "random" and
    "draft-model". A ValueError names an unknown drafter, or what the plan is missing.
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
        replayed = partial(play, drafter, leniences=plan.leniences, change=plan.change)
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
        plan = self.plan
        for lenience in plan.leniences:
            drafter = Recorder(make()) if plan.change else make()
            speculator = Speculator(drafter, plan.gamma, tree=None, lenience=lenience)
            change = Change()
            for number, (_, ids) in enumerate(plan.prompts):
                torch.manual_seed(number)
                arguments = sampling_arguments(self.temperature, plan.sampling)
                arguments["max_new_tokens"] = plan.new
                if plan.change:
                    decode(self.model, ids, speculator, change, **arguments)
                else:
                    inputs = inputs_of(self.model, ids)
                    generate(self.model, **inputs, speculator=speculator, **arguments)
            of_texts = (change.mean_moved, change.perplexity, change.text_moved)
            stats = speculator.stats
            counts = (stats.verified, stats.alpha, stats.tokens_per_call)
            yield Observed(lenience, *counts, *(of_texts if plan.change else ()))

    def maker(self, name: str) -> Callable[[], Drafter]:
        """What makes a drafter; a ValueError if it is unknown, or the plan lacks what it needs."""
        if name in TRAINED:
            counts = CountModel(self.train_texts(), TRAINED[name])
            return partial(ModelDrafter, counts, name)
        if name == RANDOM:
            every = range(vocab_size(self.model))
            return partial(ModelDrafter, CountModel([every], 1), RANDOM)
        if name == MODEL:
            if self.plan.draft_model is None:
                raise ValueError(f"{MODEL} needs a model")
            return partial(SmallModelDrafter, self.plan.draft_model)
        policy = "value" if name == "auto" or "+" in name else "priority"
        build_drafter(name, policy=policy)
        return partial(build_drafter, name, policy=policy)

    def train_texts(self) -> list[list[int]]:
        """The target's outputs for the plan's training prompts, generated once."""
        if self.outputs:
            return self.outputs
        self.on_stage(f"T={self.temperature:g}: texts to train on")
        if not self.plan.train:
            raise ValueError("trained drafters need prompts to train on")
        for number, ids in enumerate(self.plan.train):
            torch.manual_seed(-1 - number)
            out = generate(
                self.model,
                **inputs_of(self.model, ids),
                max_new_tokens=self.plan.new,
                speculator=Speculator(tree=None),
                **sampling_arguments(self.temperature, self.plan.sampling),
            )
            begin = 1 if is_encoder_decoder(self.model) else len(ids)
            self.outputs.append(out[0, begin:].tolist())
        return self.outputs
