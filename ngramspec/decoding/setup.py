"""From a Speculator's settings and a call of ``generate`` to its decode loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.costs.call import CallCosts
from ngramspec.decoding.batch import Batch
from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.config import Config
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.group import Group
from ngramspec.decoding.loop import DecodeLoop
from ngramspec.decoding.observer import Observer, Section, no_section
from ngramspec.decoding.pace import Pace
from ngramspec.decoding.recorder import StepRecorder
from ngramspec.decoding.request import GenerateCall, history_of, must_lockstep, samplers_by_row
from ngramspec.decoding.step_costs import ASSUMED_NEW_TOKENS, step_costs
from ngramspec.draft_length.schedule import (
    CostGamma,
    GammaController,
    PrefillDraftLength,
    make_controller,
)
from ngramspec.drafters.base import Drafter, DraftModel
from ngramspec.drafters.call_stores import CallStores
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.abilities import Ability, why_unsupported
from ngramspec.hf_model.cache.linear import MAX_PRICED_PENDING_TOKENS
from ngramspec.hf_model.compat.names import HISTORY_FREE, all_stock, pad_token
from ngramspec.hf_model.support import (
    check_adapter,
    check_beams_of,
    check_prompt,
    check_request,
    drops_out,
)
from ngramspec.hf_model.target import Target
from ngramspec.rng import default_generator, seed_of
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.verification.sampler import TokenSampler
from ngramspec.verification.stopping import StopRules

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a call takes from its Speculator when it begins.

    Attributes:
        drafter: returns the drafter to use; called at every step.
        prefill_length: how many draft tokens the prefill verifies under gamma="auto".
        count: adds a run's counts and times to the Speculator's statistics.
    """

    config: Config
    drafter: Callable[[], Drafter]
    prefill_length: PrefillDraftLength
    on_step: Callable[[StepEvent], None] | None
    observer: Observer | None
    count: Callable[[DecodeStats], None]
    log_once: Callable[[str], None]


class CallSetup:
    """Checks a call, and makes the loop that decodes it.

    Raises:
        UnsupportedError: the call, the model or its cache does not support speculation.
    """

    def __init__(self, settings: Settings, call: GenerateCall, ranks: Ranks | None = None) -> None:
        self.settings, self.config, self.call, self.ranks = settings, settings.config, call, ranks
        self.stats, self.pace = DecodeStats(), Pace()
        self.learns_costs = self.config.planned_gamma == "auto"
        check_request(call.generation_config)
        self._check_beams()
        check_adapter(call.model)
        self.drafter = settings.drafter()
        if self.drafter.assistants:
            from ngramspec.decoding.assistants import check_models  # most drafters have none

            check_models(call.model, self.drafter)
        self.target = self._target()

    def _check_beams(self) -> None:
        beams = self.call.beams
        if beams == 1:
            return
        if self.call.streamer is not None:
            raise UnsupportedError(
                f"streamer cannot be used with num_beams={beams}, which selects no token before the"
                " end; pass streamer=None or num_beams=1"
            )
        if not self.config.rule(False, None).exact:
            raise UnsupportedError(
                f"num_beams={beams} is not supported with lenience below 1 or"
                " verification='typical'; pass num_beams=1, or remove them"
            )

    def _target(self) -> Target:
        call, config = self.call, self.config
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
        synced = self.ranks is not None and self.ranks.synced
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

    def loop(self) -> DecodeLoop:
        """The loop that decodes the call, before its prefill.

        Raises:
            TypeError: the reference text, session or tools have a wrong type.
            ValueError: the prompt, the reference text or the session is invalid.
        """
        settings, config, call, target = self.settings, self.config, self.call, self.target
        check_prompt(call.model, call.input_ids, call.model_kwargs)
        if drops_out(call.model):
            settings.log_once(
                "the model is in training mode, where dropout changes every forward and so the"
                " text, with and without speculation; call model.eval()"
            )
        section = no_section if settings.observer is None else settings.observer.section
        sampler = self._sampler()
        if self._may_diverge(sampler):
            target.make_ragged()
        if target.limits.no_drafts is not None:
            settings.log_once(f"steps have no drafts: {target.limits.no_drafts}")
        if target.pending is not None and self.learns_costs:
            target.pending.most = MAX_PRICED_PENDING_TOKENS
        if any(each.reads_states for each in self.drafter.assistants):
            target.read_states()
        trees = self._may_branch()
        costs = step_costs(config, target, sampler.stop.max_length, trees, settings.log_once)
        learned = costs if self.learns_costs else None
        drafting: dict[str, Any] = {
            "target": target,
            "make_runner": self._runners(costs, trees),
            "costs": learned,
            "prefill_length": settings.prefill_length,
            "ranks": self.ranks,
            "max_length": sampler.stop.max_length,
        }
        if call.beams > 1:
            from ngramspec.decoding.beams.batch import make_beams  # most calls have none

            nodes = config.tree if isinstance(config.tree, int) and trees else 0
            batch, batch_drafting = make_beams(call, sampler, section, nodes, drafting)
        else:
            groups = self._groups(sampler, section)
            batch, batch_drafting = Batch(groups, sampler), BatchDrafting(groups, **drafting)
        recorder = StepRecorder(
            target=target,
            drafting=batch_drafting,
            costs=learned,
            prefill_length=settings.prefill_length,
            stats=self.stats,
            on_step=settings.on_step,
            pace=self.pace if self.drafter.assistants else None,
        )
        return DecodeLoop(
            target=target,
            batch=batch,
            drafting=batch_drafting,
            sampler=sampler,
            recorder=recorder,
            section=section,
            ranks=self.ranks,
        )

    def _sampler(self) -> TokenSampler:
        call, config, observer = self.call, self.call.generation_config, self.settings.observer
        keep = config.return_dict_in_generate
        stop = StopRules(call.stopping_criteria or ())
        observed = observer is not None and observer.one_transfer
        return TokenSampler(
            processors=call.logits_processor,
            stop=stop,
            rule=self.config.rule(bool(config.do_sample), call.generator),
            pad=pad_token(config) if stop.pads else None,
            streamer=call.streamer,
            scores=[] if keep and config.output_scores else None,
            logits=[] if keep and config.output_logits else None,
            one_transfer=observed or prefers_one_transfer(self.target.prompt.device),
            history_free=all_stock(call.logits_processor, HISTORY_FREE),
            beams=call.beams,
        )

    def _may_diverge(self, sampler: TokenSampler) -> bool:
        """Whether each row may advance by its own number of tokens."""
        target = self.target
        if target.prompt.shape[0] == 1 or must_lockstep(sampler, target):
            return False
        return why_unsupported(Ability.RAGGED, target.facts()) is None

    def _groups(self, sampler: TokenSampler, section: Section) -> list[Group]:
        """The rows of the call: one group for each row if rows may diverge, else one group."""
        prompt, rows = self.target.prompt, range(self.target.prompt.shape[0])
        if not self.target.inputs.ragged:
            return [Group(tuple(rows), prompt, sampler, section)]
        own = zip(rows, samplers_by_row(sampler, len(rows)), strict=True)
        return [Group((row,), prompt[[row]], each, section) for row, each in own]

    def _may_branch(self) -> bool:
        """Whether drafts may be trees. Under ``tree=N``, a reason against it is counted."""
        one, tree = self.call.beams == 1, self.config.tree
        known = self.target.facts(ragged=self.target.inputs.ragged or not one)
        reason = why_unsupported(Ability.TREES, known)
        if isinstance(tree, int) and reason is not None:
            self.stats.chains[reason] = 1
        priced = tree == "auto" and self.learns_costs and one
        return reason is None and (isinstance(tree, int) or priced)

    def _runners(self, costs: CallCosts, trees: bool) -> Callable[[int, int], DraftRunner]:
        """The function that makes a row's DraftRunner; see ``BatchDrafting``."""
        config, call, target, temperature, seed = self.config, self.call, self.target, None, 0
        rows, beams = target.prompt.shape[0], call.beams > 1
        reference = call.reference()
        history = history_of(target, reference, call.inputs_tensor)
        stores = CallStores(
            self.settings.drafter,
            call.stores,
            call.extra_stores,
            self.settings.log_once,
            call.conversation(),
            call.tool_calls(),
        )
        if call.generation_config.do_sample:
            temperature = float(call.generation_config.temperature or 1.0)
            seed = seed_of(call.generator or default_generator(target.prompt.device))
            if rows > 1:  # greedy answers to one prompt are equal and draft nothing from each other
                tokens = StopRules(call.stopping_criteria or ()).max_length or ASSUMED_NEW_TOKENS
                stores.join_equal([history(row) for row in range(rows)], tokens)
        follower: Drafter | None = None
        if self.ranks is not None and not self.ranks.drafts:
            from ngramspec.decoding.distributed import Follower

            follower = Follower()

        def make(row: int, vocab: int) -> DraftRunner:
            of_row = stores.row(vocab, row)
            current: Callable[[], Drafter] = (
                of_row.drafter if follower is None else lambda: follower
            )
            if call.logits_processor and not beams:  # a beam's text moves between rows
                from ngramspec.decoding.forced import forced_by
                from ngramspec.drafters.forced import ForcedBefore

                forced = forced_by(call.logits_processor, row, rows, vocab)
                current = current if forced is None else ForcedBefore(current, forced)
            alone = follower is None and not beams  # a beam's text is not an output yet
            return DraftRunner(
                current,
                self._controller(costs),
                history(row),
                vocab,
                self.stats,
                tree=trees,
                always=isinstance(config.tree, int),
                temperature=temperature,
                seed=(seed, row),
                load=lambda drafter: self._open_model(drafter, vocab, row),
                shared=of_row if alone else None,
                reference=reference,
            )

        return make

    def _open_model(self, drafter: Any, vocab: int, row: int) -> DraftModel:
        """Open a drafter's model for a row's session."""
        from ngramspec.decoding.assistants import open_model  # most drafters have none

        return open_model(self.target, drafter, vocab, row, self.pace)

    def _controller(self, costs: CallCosts) -> GammaController:
        """The controller of a row's draft length."""
        config = self.config
        if self.target.inputs.ragged and self.learns_costs:
            return CostGamma(config.longest, costs.cost, drafting_cost=costs.cost_alone)
        surcharge = None if isinstance(config.tree, int) else costs.surcharge
        return make_controller(config.planned_gamma, config.longest, costs.cost, surcharge)


def prefers_one_transfer(device: torch.device) -> bool:
    """Whether a transfer from the device costs more than sampling at unused positions."""
    return device.type != "cpu"
