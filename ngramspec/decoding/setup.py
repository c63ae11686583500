"""From a request to its decode loop, and to the value that ``generate`` returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from ngramspec.costs.model import ForwardKind, model_of
from ngramspec.costs.policies import CostGamma, GammaController, make_controller
from ngramspec.costs.processors import GPU, cpu_kind
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.group import Group, LockstepGroup
from ngramspec.decoding.loop import DecodeLoop
from ngramspec.decoding.observer import no_section
from ngramspec.decoding.request import Request, text_before
from ngramspec.decoding.row import Row, report_fault
from ngramspec.decoding.stores import CallStores, RowStores
from ngramspec.draft import Float64
from ngramspec.drafters.base import Drafter, DraftModel, DraftSession
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.configs import pad_token, plain_method
from ngramspec.hf_model.compat.devices import input_device
from ngramspec.hf_model.compat.package import untested
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
from ngramspec.stats import CHAINS, NO_DRAFTS, TOGETHER, DecodeStats
from ngramspec.verification.sampler import StopRules, TokenSampler

MIN_LEAD = 8  # tokens that rows need to be ahead of each other, to advance separately; not tuned
ASSUMED_NEW_TOKENS = 4096  # planned for if no criterion limits the length

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks
    from ngramspec.verification.rule import Rule

logger = logging.getLogger("ngramspec")

# Errors of code that calls another version of transformers than it was written for.
BROKEN = (AttributeError, ImportError, LookupError, NotImplementedError, TypeError)


def loop_of(request: Request, ranks: Ranks | None = None) -> DecodeLoop:
    """Check a request, and make the loop that decodes it, before its prefill.

    Raises:
        UnsupportedError: the call, the model or its cache does not support speculation.
        TypeError: the reference text, session or tools have a wrong type.
        ValueError: the prompt, the reference text or the session is invalid.
    """
    options, stop = request.own_options(), StopRules(request.stopping_criteria or ())
    check_request(request.generation_config, request.model)
    if request.beams > 1:
        from ngramspec.decoding.beams.group import check_beams  # most calls have none

        check_beams(request, options)
    check_adapter(request.model)
    drafter = request.drafter()
    if drafter.assistants:
        from ngramspec.decoding.assistants import check_models  # most drafters have none

        check_models(request.model, drafter)
    reads_states = any(each.reads_states for each in drafter.assistants)
    target = _target(request, options, stop)
    if ranks is not None:
        ranks.check(target)
        if ranks.together and reads_states:
            raise UnsupportedError("MTP layers draft only where one process decodes")
    check_prompt(request.model, target.prompt_ids, request.model_kwargs)
    stats, rule = DecodeStats(), _rule(request, options)
    device = _device(request, target, rule)
    sampler = _sampler(request, stop, rule, device)
    if target.prompt.shape[0] > 1 and (request.beams == 1 or not target.outlives):
        reason = why_unsupported(Ability.RAGGED, target.facts)
        if not sampler.known_processors:
            reason = "a logits processor that may mix rows"
        elif target.lead is not None and target.lead < MIN_LEAD:
            reason = reason or "a static cache without free positions"
        elif target.facts.counting_hook is not None and target.outlives and target.inputs.hides:
            reason = reason or "a hook that may shorten the cache of a batch with padding"
        if reason is None:
            target.make_ragged()
        elif request.beams == 1 and target.no_drafts is None:
            _limit(request, stats, f"{TOGETHER}: {reason}")
    learns_costs = options.planned_gamma == "auto"
    if target.pending is not None and learns_costs:
        target.pending.price()
    if reads_states:
        target.read_states()
    costs = _step_costs(request, options, target, ahead=ranks is None)
    _warn(request, target)
    learned = costs if learns_costs else None
    observer = request.observer
    section = no_section if observer is None else observer.section
    return DecodeLoop(
        target=target,
        group=_group(
            request,
            _rows(request, options, target, costs, stats),
            sampler=sampler,
            target=target,
            connect=_connect(request, target, stop, stats, ranks),
            costs=learned,
            section=section,
        ),
        sampler=sampler,
        costs=learned,
        prefill_length=request.prefill_length,
        stats=stats,
        on_step=options.on_step,
        section=section,
        ranks=ranks,
        device=device,
    )


def _target(request: Request, options: Options, stop: StopRules) -> Target:
    config = request.generation_config
    if (stop.max_length or 0) > config.max_length:  # of a caller's criterion
        config = copy(config)
        config.max_length = stop.max_length
    return Target(
        request.model,
        request.input_ids,
        config,
        request.model_kwargs,
        width=options.fixed_width,
        compiled=options.compiled,
        gamma_max=_longest_draft(request, options),
        beams=request.beams,
    )


def _longest_draft(request: Request, options: Options) -> int:
    if request.drafter().spec == "none":
        return 0
    return options.gamma if isinstance(options.gamma, int) else options.longest


def _limit(request: Request, stats: DecodeStats, limit: str) -> None:
    """Count what limits a run, and log it once."""
    stats.limits[limit] = 1
    request.log_once(limit)


def _warn(request: Request, target: Target) -> None:
    """Log once what changes the text, or rules drafts out."""
    hook = target.facts.counting_hook
    if drops_out(request.model):
        request.log_once(
            "the model is in training mode, where dropout changes every forward and so the text,"
            " with and without speculation; call model.eval()"
        )
    widths = target.to_compile()
    if widths:
        shown = " and ".join(map(str, widths))
        request.log_once(
            f"compiling forwards of {shown} positions, which may take minutes; later calls with a"
            " static cache of the same size do not wait for it"
        )
    if target.no_drafts is not None:
        request.log_once(f"{NO_DRAFTS}: {target.no_drafts}")
    elif hook is not None:
        request.log_once(
            f"{hook} has a forward hook or a replaced forward; if that depends on the number of"
            " positions of a forward, speculation changes the text"
        )


def _rule(request: Request, options: Options) -> Rule | None:
    """How tokens are chosen; None: by the argmax."""
    if options.exact and not request.samples:
        return None
    from ngramspec.verification.rule import Rule  # many calls are greedy

    return Rule(
        request.samples,
        options.verification,
        options.lenience,
        options.epsilon,
        options.delta,
        request.generator,
    )


def _device(request: Request, target: Target, rule: Rule | None) -> torch.device:
    """Where tokens are chosen: as in ``generate`` where the prompt is, unless by an argmax."""
    returned = request.generation_config.return_dict_in_generate or request.beams > 1
    chosen = request.logits_processor or returned or rule is not None
    return request.input_ids.device if chosen else target.device


def _sampler(
    request: Request, stop: StopRules, rule: Rule | None, device: torch.device
) -> TokenSampler:
    config, observer = request.generation_config, request.observer
    keep = config.return_dict_in_generate
    observed = observer is not None and observer.one_transfer
    known = True
    if request.logits_processor:
        from ngramspec.hf_model.compat.processors import all_by_row  # many calls have none

        known = all_by_row(request.logits_processor)
    return TokenSampler(
        processors=request.logits_processor,
        stop=stop,
        rule=rule,
        pad=pad_token(config) if stop.pads else None,
        streamer=request.streamer,
        scores=[] if keep and config.output_scores else None,
        logits=[] if keep and config.output_logits else None,
        one_transfer=observed or prefers_one_transfer(device),
        known_processors=known,
        beams=request.beams,
    )


def _group(request: Request, rows: list[Row], *, target: Target, **shared: Any) -> Group:
    """The rows of the call: as beams, each by itself if rows may diverge, or in lock-step."""
    kind: Callable[..., Group] = LockstepGroup
    shared |= {"prompt": request.input_ids, "ids": target.prompt_ids}
    if request.beams > 1:
        from ngramspec.decoding.beams.group import BeamGroup  # most calls have none
        from ngramspec.decoding.beams.search import BeamSearch

        config, criteria = request.generation_config, request.stopping_criteria
        kind = BeamGroup
        shared["search"] = BeamSearch(request.input_ids, config, criteria or ())
    elif target.inputs.ragged:
        from ngramspec.decoding.ragged import RaggedGroup  # most calls have one row

        kind = RaggedGroup
    return kind(rows, target=target, **shared)


def _rows(
    request: Request, options: Options, target: Target, costs: StepCosts, stats: DecodeStats
) -> list[Row]:
    """The rows of the batch, not connected."""
    tree, reason = options.tree, why_unsupported(Ability.TREES, target.facts)
    if request.beams > 1:
        reason = "beam search"
    if reason is not None and isinstance(tree, int):
        _limit(request, stats, f"{CHAINS}: {reason}")
    if reason is not None or (tree == "auto" and options.planned_gamma != "auto"):
        tree = None
    temperature, seed = None, 0
    if request.samples:
        temperature = float(request.generation_config.temperature or 1.0)
        seed = _seed(request)

    def begin(at: int, row: Row, session: DraftSession) -> None:
        def opened(drafter: Any) -> DraftModel:
            from ngramspec.decoding.assistants import open_model  # most drafters have none

            return open_model(target, drafter, row.vocab, at, costs)

        session.begin_models(opened)
        if temperature is not None:
            session.begin_sampling(temperature, (seed, at, row.count))

    fault = partial(report_fault, stats)
    return [
        Row(fault, _controller(options, target, costs), tree=tree, begin=partial(begin, at))
        for at in range(target.prompt.shape[0])
    ]


def _seed(request: Request) -> int:
    """Of the numbers that drafters sample: the state of the call's random generator."""
    from ngramspec.verification.rejection import default_generator  # many calls are greedy

    generator = request.generator or default_generator(request.input_ids.device)
    state = generator.get_state().numpy().tobytes()
    return int.from_bytes(blake2b(state, digest_size=16).digest(), "little")


def _connect(
    request: Request, target: Target, stop: StopRules, stats: DecodeStats, ranks: Ranks | None
) -> Callable[[Sequence[Row], int], None]:
    """The function that lets rows draft for a vocabulary of some size; see ``Group``."""
    given, mask = request.reference(), target.prompt_mask
    reference: ReferenceCounter | None = None
    if len(given):
        from ngramspec.stats import ReferenceCounter

        reference = ReferenceCounter(given, stats)
    before = text_before(target, given, request.inputs_tensor)
    stores = CallStores(
        request.drafter,
        request.stores,
        request.extra_stores,
        request.log_once,
        request.conversation(),
        request.tool_calls(),
        len(target.prompt),
        request.prompts,
    )
    drafts = ranks is None or ranks.drafts
    writes = drafts and request.beams == 1  # texts of beams move between rows, and are no outputs
    current = request.drafter
    if not drafts:
        from ngramspec.decoding.distributed import follower

        current = follower

    def connect(rows: Sequence[Row], vocab: int) -> None:
        for at, row in enumerate(rows):
            row.begin(vocab, before(at), None if mask is None else mask[at], len(given))
        if request.samples and len(rows) > 1:  # greedy answers would be equal
            tokens = stop.max_length or ASSUMED_NEW_TOKENS
            stores.join_equal([row.prompt for row in rows], tokens)
        for at, row in enumerate(rows):
            own = stores.row(vocab, at)
            row.connect(
                current,
                prepared=_prepared(request, own, at, len(rows)) if drafts else None,
                stored=own if writes else None,
                reference=reference,
            )

    return connect


def _prepared(
    request: Request, stores: RowStores, at: int, rows: int
) -> Callable[[Drafter], Drafter]:
    """What makes a row's own drafter: it adds its stores, and the tokens that a grammar forces.

    Beams have none of these tokens, because a grammar's state does not move with their texts.
    """
    if request.logits_processor and request.beams == 1:
        from ngramspec.decoding.forced import forced_by, with_forced

        forced = forced_by(request.logits_processor, at, rows)
        if forced is not None:
            return partial(with_forced, forced, stores.given_to)
    return stores.given_to


def _step_costs(request: Request, options: Options, target: Target, *, ahead: bool) -> StepCosts:
    """The costs of the call's forwards, measured under gamma="auto"."""
    saved = request.saved_costs
    kind = ForwardKind(
        machine=cpu_kind() if target.device.type == "cpu" else GPU,
        dtype=str(target.model.dtype).removeprefix("torch."),
        attention=target.facts.attention,
        static=target.facts.static,
        compiled=target.compiled,
    )
    rows = target.prompt.shape[0]
    if saved is not None:
        differences = saved.differences(target.model, kind.attention, target.device)
        if rows > 1 or kind.static:
            differences.append("they were measured on single sequences with a dynamic cache")
        if differences:
            saved = None
            request.log_once(f"not using the saved costs: {'; '.join(differences)}")
    pending = 0 if target.pending is None else target.pending.max_tokens
    model = model_of(target.model, kind, saved)

    def times(n: int) -> Float64:
        return np.exp(model.logs(rows, rows * np.arange(1, n + 1)))

    target.choose_widths(times, ahead=ahead)
    return StepCosts(
        model,
        options.longest + 1 + pending,
        rows=rows,
        pads=not target.facts.recurrent,  # a rejected position would undo a recurrent state
        sizes=target.widths,
    )


def _controller(options: Options, target: Target, costs: StepCosts) -> GammaController:
    """The controller of a row's draft length."""
    required = costs.required_tokens
    if target.inputs.ragged and options.planned_gamma == "auto":
        return CostGamma(options.longest, required, drafting=costs.share)
    surcharge = None if isinstance(options.tree, int) else costs.surcharge
    return make_controller(options.planned_gamma, options.longest, required, surcharge)


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


def decode(request: Request) -> Any:
    """Decode with speculation, or handle an unsupported request as ``unsupported`` says.

    The result and the errors are those of ``Speculator.__call__``.
    """
    fault = version_fault()
    if fault is None:
        return _speculate(request)
    from ngramspec.decoding.baseline import decode_plainly

    return decode_plainly(request, fault, synced_gpus=bool(request.synced_gpus))


def warmed_up(request: Request) -> tuple[int, ...]:
    """Run a request's prompt, and compile all widths; return them. Nothing is generated."""
    loop = loop_of(request)
    try:
        loop.target.prefill()
        loop.target.compile_missing()
        return loop.target.widths if loop.target.compiled else ()
    finally:
        loop.close()


def ranks_for(request: Request) -> Ranks | None:
    """The processes that decode a call together; None: only this one."""
    if not request.synced_gpus and not (dist.is_available() and dist.is_initialized()):
        return None
    from ngramspec.decoding.distributed import ranks_of  # most calls have one process

    device = input_device(request.model, request.input_ids.device)
    return ranks_of(request.model, device, request.synced_gpus)


def _speculate(request: Request) -> Any:
    """Decode with speculation. Until the prefill has run, a failure may become a plain call."""
    ranks = loop = None
    try:
        ranks = ranks_for(request)
        loop = loop_of(request, ranks)
        try:
            sequences = loop.run()
        finally:
            if loop.target.no_drafts is not None:
                loop.stats.limits[f"{NO_DRAFTS}: {loop.target.no_drafts}"] = 1
            request.count(loop.stats)
    except (UnsupportedError, *BROKEN) as error:
        from ngramspec.decoding.baseline import decode_plainly, why_plain

        reason = why_plain(request, error)
        if reason is None or (loop is not None and loop.prefilled):
            raise
        if plain_method(request.generation_config) is None:
            raise
        synced = ranks is not None and ranks.synced
        return decode_plainly(request, reason, synced_gpus=synced, log=request.log_once)
    notice, length = loop.target.facts.padding_notice, request.input_ids.shape[1]
    if notice is not None and bool(
        (sequences[:, length:-1] == notice.token).any()
    ):  # as it may be inside of a draft
        notice.give()
    return output_of(request, loop, sequences)


def output_of(request: Request, loop: DecodeLoop, sequences: torch.Tensor) -> Any:
    """What ``generate`` returns, after a loop has ended with these sequences."""
    target, sampler, stats = loop.target, loop.sampler, loop.stats
    ranking = loop.group.ranking(scores=sampler.scores is not None)
    output = target.output(sequences, sampler.scores, sampler.logits, ranking)
    logger.info(
        "%d tokens in %d target calls after the prefill: %.2f per call",
        stats.emitted,
        stats.target_calls,
        stats.tokens_per_call,
    )
    if request.generation_config.return_dict_in_generate:
        output.stats = stats
    return output
