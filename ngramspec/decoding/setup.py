"""From a Speculator's settings and a call of ``generate`` to a run of the decode loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.decoding.distributed import Follower, Ranks
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.loop import Generation
from ngramspec.decoding.request import (
    HISTORY_FREE,
    all_in,
    by_row,
    history_of,
    must_lockstep,
    read_request,
)
from ngramspec.draft_length.cost_curve import ForwardKind
from ngramspec.draft_length.cost_file import SavedCosts
from ngramspec.draft_length.schedule import PrefillDraftLength, make_controller
from ngramspec.draft_length.step_cost import StepCostTracker
from ngramspec.drafters.base import Drafter
from ngramspec.errors import UnsupportedError
from ngramspec.rng import default_generator, seed_of
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.target.hf_private import pad_token
from ngramspec.target.model import Target
from ngramspec.target.obstacles import allows_ragged, why_no_tree
from ngramspec.verification.rule import Rule
from ngramspec.verification.sampler import Record, TokenSampler
from ngramspec.verification.stopping import StopRules

ENDLESS = 4096  # tokens that may be generated where nothing says how many


@dataclass(frozen=True, slots=True)
class Settings:
    """A Speculator's arguments as they are when a call begins.

    Attributes:
        drafter: returns the drafter to use, asked at every step.
        gamma: an integer, "heuristic" or "auto".
        most: most tokens in a draft.
        tree: "auto", None, or an integer: drafts are trees where they pay, never, or always.
        rule: makes the rule of verification; called with whether to sample, and with what.
        saved: costs measured ahead, or None.
        width: of every forward after the prefill, or None: as wide as the draft.
        compiled: whether forwards are compiled; None: where plain ``generate`` would.
        on_step: called with every StepEvent, or None.
        ahead: how many tokens of a draft the prefill checks, under gamma="auto".
        log: logs a warning once.
    """

    drafter: Callable[[], Drafter]
    gamma: int | str
    most: int
    tree: int | str | None
    rule: Callable[[bool, torch.Generator | None], Rule]
    saved: SavedCosts | None
    width: int | None
    compiled: bool | None
    on_step: Callable[[StepEvent], None] | None
    ahead: PrefillDraftLength
    log: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """What a call of ``generate`` brings beside the model and its inputs.

    Attributes:
        config: the prepared GenerationConfig.
        processors: its logits processors, or None.
        criteria: its stopping criteria, or None.
        streamer: gets every token, or None.
        reference_ids: text that drafters read before the prompt, or None.
        encoded: what the encoder of an encoder-decoder model read.
        generator: what to sample with, or None: torch's global one.
    """

    config: Any
    processors: Any
    criteria: Any
    streamer: Any
    reference_ids: Any
    encoded: Any
    generator: torch.Generator | None


def make_target(
    settings: Settings,
    ranks: Ranks,
    model: Any,
    input_ids: torch.Tensor,
    config: Any,
    model_kwargs: dict[str, Any],
) -> Target:
    """The target of a call.

    Raises:
        UnsupportedError: the model or its cache cannot be speculated with.
    """
    target = Target(
        model,
        input_ids,
        config,
        model_kwargs,
        width=settings.width,
        compiled=settings.compiled,
        gamma_max=settings.gamma if isinstance(settings.gamma, int) else settings.most,
    )
    if ranks.synced and target.cache.capacity is not None:
        raise UnsupportedError(
            "a static cache has no room for the forwards of synced_gpus; use a dynamic one"
        )
    return target


def make_run(settings: Settings, ranks: Ranks, target: Target, asked: GenerateCall) -> Generation:
    """The run that decodes what was asked for.

    Raises:
        TypeError, ValueError: ``reference_ids`` or the config's own entry is wrong.
    """
    config, rows = asked.config, target.prompt.shape[0]
    request = read_request(config, asked.reference_ids)
    choosing = _choosing(settings, target, asked)
    ragged = rows > 1 and allows_ragged(target.traits, target.call)
    if ragged and not must_lockstep(choosing, target):
        target.let_rows_diverge()
    if target.limits.unaligned is not None:
        settings.log(f"drafting nothing: {target.limits.unaligned}")
    history = history_of(target, request, asked.encoded)
    stats = DecodeStats()
    gamma = settings.gamma
    if settings.width is not None and not isinstance(gamma, int):
        gamma = min(settings.most, settings.width - 1)  # a longer draft costs no more
    asked_for, priced = isinstance(settings.tree, int), gamma == "auto"
    obstacle = why_no_tree(target.traits, target.call)
    trees = obstacle is None and (asked_for or (settings.tree == "auto" and priced))
    if asked_for and obstacle is not None:
        stats.chains[obstacle] = 1
    pace = _step_costs(settings, target, choosing.stop.max_length, trees)
    temperature = float(config.temperature or 1.0) if config.do_sample else None
    seed = 0
    if config.do_sample:
        seed = seed_of(asked.generator or default_generator(target.prompt.device))

    def drafting(row: int, vocab: int) -> DraftRunner:
        follower = None if ranks.drafts else Follower()
        return DraftRunner(
            lambda: follower or settings.drafter(),
            make_controller(gamma, settings.most, pace.cost),
            history(row),
            vocab,
            stats,
            tree=trees,
            always=asked_for,
            temperature=temperature,
            seed=(seed, row),
            unplaced=target.traits.unplaced,
        )

    return Generation(
        target=target,
        drafting=drafting,
        choosing=choosing,
        by_row=by_row(choosing, rows) if target.inputs.ragged else None,
        pace=pace if gamma == "auto" else None,
        ahead=settings.ahead,
        stats=stats,
        on_step=settings.on_step,
        ranks=ranks,
    )


def _choosing(settings: Settings, target: Target, asked: GenerateCall) -> TokenSampler:
    """How the call's tokens are chosen."""
    config = asked.config
    keep = config.return_dict_in_generate
    stop = StopRules(asked.criteria or ())
    far = prefers_one_transfer(target.prompt.device)
    return TokenSampler(
        processors=asked.processors,
        stop=stop,
        rule=settings.rule(bool(config.do_sample), asked.generator),
        pad=pad_token(config) if stop.pads else None,
        streamer=asked.streamer,
        record=Record(
            [] if keep and config.output_scores else None,
            [] if keep and config.output_logits else None,
        ),
        far=far,
        ahead=far and all_in(asked.processors, HISTORY_FREE),
    )


def prefers_one_transfer(device: torch.device) -> bool:
    """Whether a transfer from the device costs more than choosing for positions in vain."""
    return device.type != "cpu"


def _step_costs(
    settings: Settings, target: Target, max_length: int | None, trees: bool
) -> StepCostTracker:
    """What the call's forwards cost; measured under gamma="auto"."""
    rows, length = target.prompt.shape
    tokens = ENDLESS if max_length is None else max_length - length
    kind = ForwardKind(
        machine="cpu" if target.prompt.device.type == "cpu" else "gpu",
        dtype=str(target.model.dtype).removeprefix("torch."),
        rows=rows,
        attention=target.traits.attention,
        static=target.cache.capacity is not None,
        compiled=bool(target.widths.sizes),
        tree=trees,
    )
    saved = settings.saved
    if saved is not None:
        differences = saved.differences(target.model)
        if rows > 1 or kind.static:
            differences.append("they are of one sequence, in a cache that grows")
        if differences:
            settings.log(f"not using the saved costs: {'; '.join(differences)}")
            saved = None
    limit, sizes = settings.most + 1, target.widths.sizes
    return StepCostTracker(target.model, kind, limit, tokens, saved, sizes)
