"""From a Speculator's settings and a call of ``generate`` to a run of the decode loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.costs.batch import BatchStepCosts
from ngramspec.costs.joint import AnyCosts
from ngramspec.decoding.batch import Batch
from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.config import Config
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.generation import Generation, Pace
from ngramspec.decoding.group import Group
from ngramspec.decoding.observer import Observer, Section, no_section
from ngramspec.decoding.request import (
    GenerateCall,
    history_of,
    must_lockstep,
    read_reference,
    read_session,
    read_tools,
    samplers_by_row,
)
from ngramspec.decoding.step_costs import ASSUMED_NEW_TOKENS, step_costs
from ngramspec.draft_length.schedule import (
    GammaController,
    PrefillDraftLength,
    RowGamma,
    make_controller,
)
from ngramspec.drafters.base import Drafter, DraftModel
from ngramspec.drafters.stored import CallDrafter
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.abilities import Ability, obstacle
from ngramspec.hf_model.cache.recurrent_state import MAX_PRICED_PENDING_TOKENS
from ngramspec.hf_model.compat.classes import HISTORY_FREE, all_stock
from ngramspec.hf_model.compat.hf_private import pad_token
from ngramspec.hf_model.model import Target
from ngramspec.hf_model.support import check_beams_of
from ngramspec.rng import default_generator, seed_of
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.verification.rule import Rule
from ngramspec.verification.sampler import TokenSampler
from ngramspec.verification.stopping import StopRules

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a call takes from its Speculator when it begins.

    Attributes:
        config: the Speculator's arguments.
        drafter: returns the drafter to use; called at every step.
        rule: makes the verification rule from ``do_sample`` and a generator.
        prefill_length: how many draft tokens the prefill verifies under gamma="auto".
        on_step: called with every StepEvent, or None.
        observer: is notified of the loop's sections, or None.
        count: adds a run's counts and times to the Speculator's statistics.
        log_once: logs a warning once.
    """

    config: Config
    drafter: Callable[[], Drafter]
    rule: Callable[[bool, torch.Generator | None], Rule]
    prefill_length: PrefillDraftLength
    on_step: Callable[[StepEvent], None] | None
    observer: Observer | None
    count: Callable[[DecodeStats], None]
    log_once: Callable[[str], None]


def make_target(config: Config, ranks: Ranks | None, call: GenerateCall) -> Target:
    """The target of a call.

    Raises:
        UnsupportedError: the model or its cache does not support speculation.
    """
    target = Target(
        call.model,
        call.input_ids,
        call.generation_config,
        call.model_kwargs,
        width=config.fixed_width,
        compiled=config.compiled,
        gamma_max=config.gamma if isinstance(config.gamma, int) else config.longest,
        beams=call.beams,
    )
    check_beams_of(target.model, call.beams)
    synced = ranks is not None and ranks.synced
    if synced and target.cache.capacity is not None:
        raise UnsupportedError(
            "synced_gpus is not supported with a static cache, which has no room for further"
            " forwards; use a dynamic cache"
        )
    if synced and target.traits.recurrent:
        raise UnsupportedError(
            "synced_gpus is not supported with a recurrent state, whose last rollback needs a"
            " forward that other processes would not run"
        )
    return target


def make_run(
    settings: Settings, ranks: Ranks | None, target: Target, call: GenerateCall
) -> Generation:
    """The run that decodes a call.

    A TypeError or ValueError is raised if ``reference_ids``, given or in the config, is invalid.
    """
    config, stats, pace = settings.config, DecodeStats(), Pace()
    section = no_section if settings.observer is None else settings.observer.section
    sampler = _sampler(settings, target, call)
    if call.beams == 1 and _may_diverge(target, sampler):
        target.let_rows_diverge()
    if target.limits.unaligned is not None:
        settings.log_once(f"steps have no drafts: {target.limits.unaligned}")
    if target.pending is not None and config.planned_gamma == "auto":
        target.pending.most = MAX_PRICED_PENDING_TOKENS
    trees = _may_branch(config, target, stats, call.beams)
    costs = step_costs(config, target, sampler.stop.max_length, trees, settings.log_once)
    learned = costs if config.planned_gamma == "auto" else None
    drafting: dict[str, Any] = {
        "target": target,
        "make_runner": _runners(settings, ranks, target, call, costs, trees, stats, pace),
        "costs": learned,
        "prefill_length": settings.prefill_length,
        "ranks": ranks,
        "max_length": sampler.stop.max_length,
    }
    if call.beams > 1:
        from ngramspec.decoding.beams.setup import make_beams  # most calls have none

        nodes = config.tree if isinstance(config.tree, int) and trees else 0
        batch, batch_drafting = make_beams(call, sampler, section, nodes, drafting)
    else:
        groups = _groups(target, sampler, section)
        batch, batch_drafting = Batch(groups, sampler), BatchDrafting(groups, **drafting)
    return Generation(
        target=target,
        batch=batch,
        drafting=batch_drafting,
        sampler=sampler,
        step_costs=learned,
        prefill_length=settings.prefill_length,
        stats=stats,
        on_step=settings.on_step,
        section=section,
        ranks=ranks,
        pace=pace if settings.drafter().assistants else None,
    )


def _may_diverge(target: Target, sampler: TokenSampler) -> bool:
    """Whether each row may advance by its own number of tokens."""
    if target.prompt.shape[0] == 1 or obstacle(Ability.RAGGED, target.known()) is not None:
        return False
    return not must_lockstep(sampler, target)


def _groups(target: Target, sampler: TokenSampler, section: Section) -> list[Group]:
    """The rows of the call: one group for each row if rows may diverge, else one group."""
    prompt, rows = target.prompt, range(target.prompt.shape[0])
    if not target.inputs.ragged:
        return [Group(tuple(rows), prompt, sampler, section)]
    own = zip(rows, samplers_by_row(sampler, len(rows)), strict=True)
    return [Group((row,), prompt[[row]], each, section) for row, each in own]


def _may_branch(config: Config, target: Target, stats: DecodeStats, beams: int) -> bool:
    """Whether drafts may be trees. Under ``tree=N``, a reason against it is counted."""
    known = target.known(by_row=target.inputs.ragged or beams > 1)
    reason = obstacle(Ability.TREES, known)
    if isinstance(config.tree, int) and reason is not None:
        stats.count_chains(reason)
    priced = config.tree == "auto" and config.planned_gamma == "auto" and beams == 1
    return reason is None and (isinstance(config.tree, int) or priced)


def _runners(
    settings: Settings,
    ranks: Ranks | None,
    target: Target,
    call: GenerateCall,
    costs: AnyCosts,
    trees: bool,
    stats: DecodeStats,
    pace: Pace,
) -> Callable[[int, int], DraftRunner]:
    """The function that makes a row's DraftRunner; see ``BatchDrafting``."""
    config, temperature, seed = settings.config, None, 0
    reference = read_reference(call.generation_config, call.reference_ids)
    history = history_of(target, reference, call.inputs_tensor)
    session = read_session(call.generation_config, call.session)
    drafter = CallDrafter(
        settings.drafter,
        call.stores,
        call.extra_stores,
        settings.log_once,
        session,
        read_tools(call.generation_config, call.tools),
    )
    open_model = _model_opener(target, settings.drafter(), pace)
    if call.generation_config.do_sample:
        temperature = float(call.generation_config.temperature or 1.0)
        seed = seed_of(call.generator or default_generator(target.prompt.device))
        rows = target.prompt.shape[0]
        if rows > 1:  # greedy answers to one prompt are equal and draft nothing from each other
            tokens = StopRules(call.stopping_criteria or ()).max_length or ASSUMED_NEW_TOKENS
            drafter.join_equal([history(row) for row in range(rows)], tokens)

    follower: Drafter | None = None
    if ranks is not None and not ranks.drafts:
        from ngramspec.decoding.distributed import Follower

        follower = Follower()
    beams = call.beams > 1

    def make(row: int, vocab: int) -> DraftRunner:
        of_row = drafter.row(vocab, row)
        current: Callable[[], Drafter] = of_row if follower is None else lambda: follower
        if call.logits_processor and not beams:  # a beam's text moves between rows
            from ngramspec.decoding.forced import with_forced

            rows = target.prompt.shape[0]
            current = with_forced(current, call.logits_processor, row, rows, vocab)
        alone = follower is None and not beams  # a beam's text is not an output yet
        return DraftRunner(
            current,
            _controller(config, costs),
            history(row),
            vocab,
            stats,
            tree=trees,
            always=isinstance(config.tree, int),
            temperature=temperature,
            seed=(seed, row),
            load=lambda drafter: open_model(drafter, vocab, row),
            shared=of_row if alone else None,
            reference=reference,
        )

    return make


def _model_opener(
    target: Target, drafter: Drafter, pace: Pace
) -> Callable[[Any, int, int], DraftModel]:
    """The function that opens drafters' models; the target keeps the states they need."""

    def load(drafter: Any, vocab: int, row: int) -> DraftModel:
        from ngramspec.decoding.assistants import Assistants  # most drafters have none

        return Assistants(target.model, drafter, target.states).open(drafter, vocab, row, pace)

    if any(each.reads_states for each in drafter.assistants):
        target.read_states()
    return load


def _controller(config: Config, costs: AnyCosts) -> GammaController:
    """The controller of a row's draft length."""
    if isinstance(costs, BatchStepCosts) and config.planned_gamma == "auto":
        return RowGamma(config.longest, costs)
    surcharge = None if isinstance(config.tree, int) else costs.surcharge
    return make_controller(config.planned_gamma, config.longest, costs.cost, surcharge)


def _sampler(settings: Settings, target: Target, call: GenerateCall) -> TokenSampler:
    """The sampler of the call's tokens."""
    config = call.generation_config
    keep = config.return_dict_in_generate
    stop = StopRules(call.stopping_criteria or ())
    observed = settings.observer is not None and settings.observer.one_transfer
    one_transfer = observed or prefers_one_transfer(target.prompt.device)
    return TokenSampler(
        processors=call.logits_processor,
        stop=stop,
        rule=settings.rule(bool(config.do_sample), call.generator),
        pad=pad_token(config) if stop.pads else None,
        streamer=call.streamer,
        scores=[] if keep and config.output_scores else None,
        logits=[] if keep and config.output_logits else None,
        one_transfer=one_transfer,
        history_free=all_stock(call.logits_processor, HISTORY_FREE),
        beams=call.beams,
    )


def prefers_one_transfer(device: torch.device) -> bool:
    """Whether a transfer from the device costs more than sampling at unused positions."""
    return device.type != "cpu"
