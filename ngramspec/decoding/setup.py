"""One call of ``generate``: from its arguments to its decode loop, and to its return value."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ngramspec.costs.model import ForwardKind, model_of
from ngramspec.costs.policies import CostGamma, GammaController, PrefillDraftLength, make_controller
from ngramspec.costs.processors import GPU, cpu_kind
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.batch import Batch, LockstepBatch
from ngramspec.decoding.loop import DecodeLoop, decode
from ngramspec.decoding.observer import Observer, Section, no_section
from ngramspec.decoding.request import GenerateCall, history_of
from ngramspec.decoding.row import Row, report_fault
from ngramspec.drafters.base import Drafter, DraftModel, DraftSession
from ngramspec.drafters.call import CallStores, RowStores
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.devices import input_device
from ngramspec.hf_model.compat.names import pad_token, plain_method, untested
from ngramspec.hf_model.facts import (
    Ability,
    check_adapter,
    check_prompt,
    check_request,
    drops_out,
    why_unsupported,
)
from ngramspec.hf_model.target import Target
from ngramspec.options import Options
from ngramspec.stats import DecodeStats
from ngramspec.verification.sampler import StopRules, TokenSampler

ASSUMED_NEW_TOKENS = 4096  # planned for if no criterion limits the length

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.costs.saved import SavedCosts
    from ngramspec.decoding.distributed import Ranks
    from ngramspec.verification.rule import Rule

logger = logging.getLogger("ngramspec")

# Errors of code that calls another version of transformers than it was written for.
BROKEN = (AttributeError, ImportError, LookupError, NotImplementedError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a call takes from its Speculator when it begins.

    Attributes:
        unsupported: "error" or "plain".
        saved_costs: the content of the file ``options.costs``, if there is one.
        drafter: returns the drafter to use; called at every step.
        prefill_length: how many draft tokens the prefill verifies under gamma="auto".
        count: adds a run's counts and times to the Speculator's statistics.
    """

    options: Options
    unsupported: str = "error"
    saved_costs: SavedCosts | None = None
    drafter: Callable[[], Drafter]
    prefill_length: PrefillDraftLength
    observer: Observer | None
    count: Callable[[DecodeStats], None]
    log_once: Callable[[str], None]


class CallSetup:
    """Checks a call, and makes the loop that decodes it.

    Raises:
        UnsupportedError: the call, the model or its cache does not support speculation.
    """

    def __init__(self, caller: Caller, call: GenerateCall, ranks: Ranks | None = None) -> None:
        self.caller, self.call, self.ranks = caller, call, ranks
        asked = call.draft_length()
        self.options = caller.options if asked is None else caller.options.with_chains_of(asked)
        self.stats = DecodeStats()
        self.learns_costs = self.options.planned_gamma == "auto"
        check_request(call.generation_config, call.model)
        if call.beams > 1:
            from ngramspec.decoding.beams.batch import check_beams  # most calls have none

            check_beams(call, self.options)
        check_adapter(call.model)
        self.drafter = caller.drafter()
        if self.drafter.assistants:
            from ngramspec.decoding.assistants import check_models  # most drafters have none

            check_models(call.model, self.drafter)
        options, config = self.options, call.generation_config
        if (self._stop.max_length or 0) > config.max_length:  # of a caller's criterion
            config = copy(config)
            config.max_length = self._stop.max_length
        self.target = Target(
            call.model,
            call.input_ids,
            config,
            call.model_kwargs,
            width=options.fixed_width,
            compiled=options.compiled,
            gamma_max=options.gamma if isinstance(options.gamma, int) else options.longest,
            beams=call.beams,
        )
        if ranks is not None:
            ranks.check(self.target)
            if ranks.together and any(each.reads_states for each in self.drafter.assistants):
                raise UnsupportedError("MTP layers draft only where one process decodes")

    def loop(self) -> DecodeLoop:
        """The loop that decodes the call, before its prefill.

        Raises:
            TypeError: the reference text, session or tools have a wrong type.
            ValueError: the prompt, the reference text or the session is invalid.
        """
        caller, options, call, target = self.caller, self.options, self.call, self.target
        check_prompt(call.model, target.prompt_ids, call.model_kwargs)
        if drops_out(call.model):
            caller.log_once(
                "the model is in training mode, where dropout changes every forward and so the"
                " text, with and without speculation; call model.eval()"
            )
        section = no_section if caller.observer is None else caller.observer.section
        sampler = self._sampler()
        if target.prompt.shape[0] > 1 and why_unsupported(Ability.RAGGED, target.facts) is None:
            from ngramspec.decoding.ragged import must_lockstep  # most calls have one row

            if not must_lockstep(sampler, target):
                target.make_ragged()
        if target.no_drafts is not None:
            caller.log_once(f"steps have no drafts: {target.no_drafts}")
        elif target.facts.counting_hook is not None:
            caller.log_once(
                f"{target.facts.counting_hook} has a forward hook or a replaced forward; if that"
                " depends on the number of positions of a forward, speculation changes the text"
            )
        if target.pending is not None and self.learns_costs:
            target.pending.price()
        if any(each.reads_states for each in self.drafter.assistants):
            target.read_states()
        trees = self._may_branch()
        costs = self._step_costs()
        learned = costs if self.learns_costs else None
        rows = [self._row(costs, trees, at) for at in range(target.prompt.shape[0])]
        return DecodeLoop(
            target=target,
            batch=self._batch(rows, sampler, section, learned),
            sampler=sampler,
            costs=learned,
            prefill_length=caller.prefill_length,
            stats=self.stats,
            on_step=options.on_step,
            section=section,
            ranks=self.ranks,
            device=self._device,
        )

    def _batch(
        self, rows: list[Row], sampler: TokenSampler, section: Section, costs: StepCosts | None
    ) -> Batch:
        """The rows of the call: as beams, each by itself if rows may diverge, or in lock-step."""
        target = self.target
        kind: Callable[..., Batch] = LockstepBatch
        options: dict[str, Any] = {"prompt": self.call.input_ids, "ids": target.prompt_ids}
        if self.call.beams > 1:
            from ngramspec.decoding.beams.batch import BeamBatch  # most calls have none
            from ngramspec.decoding.beams.search import BeamSearch

            config, criteria = self.call.generation_config, self.call.stopping_criteria
            kind = BeamBatch
            options["search"] = BeamSearch(self.call.input_ids, config, criteria or ())
        elif target.inputs.ragged:
            from ngramspec.decoding.ragged import RaggedBatch  # most calls have one row

            kind = RaggedBatch
        return kind(rows, sampler, target, self._connect(), costs=costs, section=section, **options)

    def _sampler(self) -> TokenSampler:
        call, config, observer = self.call, self.call.generation_config, self.caller.observer
        keep, stop = config.return_dict_in_generate, self._stop
        observed = observer is not None and observer.one_transfer
        known = True
        if call.logits_processor:
            from ngramspec.hf_model.compat.processors import all_by_row  # many calls have none

            known = all_by_row(call.logits_processor)
        return TokenSampler(
            processors=call.logits_processor,
            stop=stop,
            rule=self._rule,
            pad=pad_token(config) if stop.pads else None,
            streamer=call.streamer,
            scores=[] if keep and config.output_scores else None,
            logits=[] if keep and config.output_logits else None,
            one_transfer=observed or prefers_one_transfer(self._device),
            known_processors=known,
            beams=call.beams,
        )

    @cached_property
    def _device(self) -> torch.device:
        """Where tokens are chosen: as in ``generate`` where the prompt is, unless by an argmax."""
        call, config = self.call, self.call.generation_config
        returned = config.return_dict_in_generate or call.beams > 1
        chosen = call.logits_processor or returned or self._rule is not None
        return call.input_ids.device if chosen else self.target.device

    @cached_property
    def _stop(self) -> StopRules:
        return StopRules(self.call.stopping_criteria or ())

    @cached_property
    def _seed(self) -> int:
        """Of the numbers that drafters sample: the state of the call's random generator."""
        from ngramspec.verification.rejection import default_generator  # many calls are greedy

        generator = self.call.generator or default_generator(self.call.input_ids.device)
        state = generator.get_state().numpy().tobytes()
        return int.from_bytes(blake2b(state, digest_size=16).digest(), "little")

    @cached_property
    def _rule(self) -> Rule | None:
        """How tokens are chosen; None: by the argmax."""
        options, call = self.options, self.call
        if options.exact and not call.generation_config.do_sample:
            return None
        from ngramspec.verification.rule import Rule  # many calls are greedy

        return Rule(
            bool(call.generation_config.do_sample),
            options.verification,
            options.lenience,
            options.epsilon,
            options.delta,
            call.generator,
        )

    def _may_branch(self) -> bool:
        """Whether drafts may be trees. Under ``tree=N``, a reason against it is counted."""
        tree = self.options.tree
        reason = why_unsupported(Ability.TREES, self.target.facts)
        if self.call.beams > 1:
            reason = "beam search"
        if isinstance(tree, int) and reason is not None:
            self.stats.chains[reason] = 1
        priced = tree == "auto" and self.learns_costs
        return reason is None and (isinstance(tree, int) or priced)

    def _row(self, costs: StepCosts, trees: bool, at: int) -> Row:
        """The row of the batch with the index ``at``."""
        call, temperature, seed = self.call, None, 0
        if call.generation_config.do_sample:
            temperature = float(call.generation_config.temperature or 1.0)
            seed = self._seed

        def begin(row: Row, session: DraftSession) -> None:
            def opened(drafter: Any) -> DraftModel:
                from ngramspec.decoding.assistants import open_model  # most drafters have none

                return open_model(self.target, drafter, row.vocab, at, costs)

            session.begin_models(opened)
            if temperature is not None:
                session.begin_sampling(temperature, (seed, at, row.count))

        fault = partial(report_fault, self.stats)
        tree = self.options.tree if trees else None
        return Row(fault, self._controller(costs), tree=tree, begin=begin)

    def _connect(self) -> Callable[[Sequence[Row], int], None]:
        """The function that lets rows draft for a vocabulary of some size; see ``Batch``."""
        call, target = self.call, self.target
        given = call.reference()
        reference: ReferenceCounter | None = None
        if len(given):
            from ngramspec.decoding.reference import ReferenceCounter

            reference = ReferenceCounter(given, self.stats)
        history = history_of(target, given, call.inputs_tensor)
        stores = CallStores(
            self.caller.drafter,
            call.stores,
            call.extra_stores,
            self.caller.log_once,
            call.conversation(),
            call.tool_calls(),
        )
        rows = target.prompt.shape[0]
        if call.generation_config.do_sample and rows > 1:  # greedy answers would be equal
            tokens = self._stop.max_length or ASSUMED_NEW_TOKENS
            stores.join_equal([history(row) for row in range(rows)], tokens)
        drafts = self.ranks is None or self.ranks.drafts
        writes = drafts and call.beams == 1  # texts of beams move between rows, and are no outputs
        current = self.caller.drafter
        if not drafts:
            from ngramspec.decoding.distributed import follower

            current = follower

        def connect(connected: Sequence[Row], vocab: int) -> None:
            for at, row in enumerate(connected):
                own = stores.row(vocab, at)
                row.connect(
                    current,
                    vocab,
                    history(at),
                    prepared=self._prepared(own, at) if drafts else None,
                    stored=own if writes else None,
                    reference=reference,
                )

        return connect

    def _prepared(self, stores: RowStores, at: int) -> Callable[[Drafter], Drafter]:
        """What makes a row's own drafter: it adds its stores, and the tokens that a grammar forces.

        Beams have none of these tokens, because a grammar's state does not move with their texts.
        """
        call = self.call
        if call.logits_processor and call.beams == 1:
            from ngramspec.decoding.forced import forced_by, with_forced

            forced = forced_by(call.logits_processor, at, self.target.prompt.shape[0])
            if forced is not None:
                return partial(with_forced, forced, stores.given_to)
        return stores.given_to

    def _step_costs(self) -> StepCosts:
        """The costs of the call's forwards, measured under gamma="auto"."""
        target, saved = self.target, self.caller.saved_costs
        kind = ForwardKind(
            machine=cpu_kind() if target.device.type == "cpu" else GPU,
            dtype=str(target.model.dtype).removeprefix("torch."),
            attention=target.facts.attention,
            static=target.facts.static,
            compiled=bool(target.widths),
        )
        rows = target.prompt.shape[0]
        if saved is not None:
            differences = saved.differences(target.model, kind.attention, target.device)
            if rows > 1 or kind.static:
                differences.append("they were measured on single sequences with a dynamic cache")
            if differences:
                saved = None
                self.caller.log_once(f"not using the saved costs: {'; '.join(differences)}")
        pending = 0 if target.pending is None else target.pending.max_tokens
        return StepCosts(
            model_of(target.model, kind, saved),
            self.options.longest + 1 + pending,
            rows=rows,
            pads=not target.facts.recurrent,  # a rejected position would undo a recurrent state
            sizes=target.widths,
        )

    def _controller(self, costs: StepCosts) -> GammaController:
        """The controller of a row's draft length."""
        options = self.options
        if self.target.inputs.ragged and self.learns_costs:
            return CostGamma(options.longest, costs.required_tokens, drafting=costs.share)
        surcharge = None if isinstance(options.tree, int) else costs.surcharge
        return make_controller(
            options.planned_gamma, options.longest, costs.required_tokens, surcharge
        )


def prefers_one_transfer(device: torch.device) -> bool:
    """Whether a transfer from the device costs more than sampling at unused positions."""
    return device.type != "cpu"


def version_fault() -> str | None:
    """Why calls under the installed transformers run as the baseline; None: they need not.

    The first call under an untested version checks it; see ``baseline.py``.
    """
    version = untested()
    if version is None:
        return None
    from ngramspec.decoding.baseline import fault_of

    return fault_of(version, _speculate)


def decode_call(caller: Caller, call: GenerateCall) -> Any:
    """Decode with speculation, or handle an unsupported request as ``unsupported`` says.

    The result and the errors are those of ``Speculator.__call__``.
    """
    fault = version_fault()
    if fault is None:
        return _speculate(caller, call)
    from ngramspec.decoding.baseline import decode_plainly

    return decode_plainly(call, fault, synced_gpus=bool(call.synced_gpus))


def ranks_for(call: GenerateCall) -> Ranks | None:
    """The processes that decode a call together; None: only this one."""
    if not call.synced_gpus and not (dist.is_available() and dist.is_initialized()):
        return None
    from ngramspec.decoding.distributed import ranks_of  # most calls have one process

    device = input_device(call.model, call.input_ids.device)
    return ranks_of(call.model, device, call.synced_gpus)


def _speculate(caller: Caller, call: GenerateCall) -> Any:
    """Decode with speculation. Until the prefill has run, a failure may become a plain call."""
    ranks = loop = None
    try:
        ranks = ranks_for(call)
        setup = CallSetup(caller, call, ranks)
        loop = setup.loop()
        try:
            sequences = decode(loop)
        finally:
            caller.count(setup.stats)
    except (UnsupportedError, *BROKEN) as error:
        from ngramspec.decoding.baseline import decode_plainly, why_plain

        reason = why_plain(caller, error)
        if reason is None or (loop is not None and loop.prefilled):
            raise
        if plain_method(call.generation_config) is None:
            raise
        synced = ranks is not None and ranks.synced
        return decode_plainly(call, reason, synced_gpus=synced, log=caller.log_once)
    notice, fed = setup.target.facts.padding_notice, sequences[:, setup.target.prompt.shape[1] : -1]
    if notice is not None and bool((fed == notice.token).any()):  # as it may be inside of a draft
        notice.give()
    sampler = loop.sampler
    ranking = loop.batch.ranking(scores=sampler.scores is not None)
    output = setup.target.output(sequences, sampler.scores, sampler.logits, ranking)
    logger.info(
        "%d tokens in %d target calls after the prefill: %.2f per call",
        setup.stats.emitted,
        setup.stats.target_calls,
        setup.stats.tokens_per_call,
    )
    if call.generation_config.return_dict_in_generate:
        output.stats = setup.stats
    if call.streamer is not None:
        call.streamer.end()
    return output
