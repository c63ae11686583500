"""One side of a case: all its calls, by plain ``generate`` or by ours, and what came of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from caches_made import made_caches

import ngramspec
from fuzz import state
from fuzz.case import Case
from fuzz.drafters import drafter_of
from fuzz.drawn_families import VOCAB
from fuzz.inputs import arguments, next_turn
from fuzz.users import prepared
from fuzz.watchers import Log
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.stats import CHAINS
from ngramspec.stepwise import JointSteps, OpenGeneration, open_generation

BEYOND = [7, 8, 5, 6, 100_000, 9, 2_000_000]  # ids, two of which no model here knows


class NotAsked(Exception):
    """The arguments of the case cannot be made: this model does not take them."""


@dataclass
class Side:
    """What came of a case's calls.

    Attributes:
        outputs: what each returned.
        error: what the last one raised.
        log: what processors, criteria and streamers were shown.
        random: torch's random state, or the generator's, at the end.
        untouched: whether torch's own random state is as it was at the beginning.
        told: warnings and log lines of the calls.
        held: positions in the cache that the caller holds.
        layers: their kinds, sizes and shapes.
        bytes: of memory that they keep alive.
        on: the ids that plain generate goes on with from that cache; or how it failed.
        changed: names of arguments that were changed.
        left: what is on the model now.
        faults, accepted: of the drafter.
        cycles: caches of its calls that only a garbage collection frees.
        emitted: each row's tokens as on_step told them; None: nobody asked.
    """

    outputs: list[Any] = field(default_factory=list)
    error: Exception | None = None
    log: Log = field(default_factory=Log)
    random: torch.Tensor | None = None
    untouched: bool = True
    told: list[str] = field(default_factory=list)
    held: int | None = None
    layers: list[Any] = field(default_factory=list)
    bytes: int = 0
    on: Any = None
    changed: list[str] = field(default_factory=list)
    left: dict[str, Any] = field(default_factory=dict)
    faults: int = 0
    accepted: int = 0
    chains: dict[str, int] = field(default_factory=dict)
    cycles: int = 0
    emitted: dict[int, list[int]] | None = None

    @property
    def sequences(self) -> torch.Tensor:
        """Ids of the last call."""
        return ids_of(self.outputs[-1])


def ids_of(output: Any) -> torch.Tensor:
    """The ids in what ``generate`` returned."""
    return output if isinstance(output, torch.Tensor) else output.sequences


def plain(case: Case, model: Any) -> Side:
    """The case by plain ``generate``.

    With ``use_cache=None`` that has a cache and reads the whole text into it at every step; ours
    takes None for what is not said, which is True.
    """
    with prepared(case, model) as model:
        return _perform(_said(case), model, model.generate, Side())


def _said(case: Case) -> Case:
    if case.options.get("use_cache", True) is not None:
        return case
    return replace(case, options=case.options | {"use_cache": True})


def ours(case: Case, model: Any, texts: list[list[int]], vocab: int) -> Side:
    """The case by ngramspec.

    Args:
        texts: what plain ``generate`` gave, for drafters that know.
        vocab: tokens that drafters know.
    """
    side = Side()
    if "guidance_scale" in case.options:  # whose processor takes use_cache=None for False
        case = _said(case)
    speculator = _speculator(case, texts, vocab, side)
    generator = torch.Generator().manual_seed(case.seed) if case.entry == "generator" else None
    extra: dict[str, Any] = {} if generator is None else {"generator": generator}
    if case.reference:
        extra["reference_ids"] = BEYOND if case.reference == "beyond" else [*case.prompts]
    if case.entry == "hook":

        def call(**kwargs: Any) -> Any:
            return model.generate(**kwargs, custom_generate=speculator, **extra)

    elif case.entry in ("enabled", "overlapping"):

        def call(**kwargs: Any) -> Any:
            count = 1 + (case.entry == "overlapping")
            handles = [ngramspec.enable(model, speculator) for _ in range(count)]
            try:
                return model.generate(**kwargs, **extra)
            finally:
                for handle in handles:
                    handle.disable()

    elif case.entry == "stepwise":

        def call(**kwargs: Any) -> Any:
            return drained(case, model, speculator, kwargs | extra)

    else:

        def call(**kwargs: Any) -> Any:
            return ngramspec.generate(model, speculator=speculator, **kwargs, **extra)

    with prepared(case, model) as model, made_caches() as caches:
        _perform(case, model, call, side, generator)
    side.cycles = caches.freed_by_the_collector()
    stats = speculator.stats
    side.chains = {each for each in stats.limits if CHAINS in each}
    side.faults, side.accepted = stats.drafter_faults, stats.accepted + stats.prefill_accepted
    return side


def _speculator(case: Case, texts: list[list[int]], vocab: int, side: Side) -> Speculator:
    settings = dict(case.settings)
    steps = 0

    def on_step(event: Any) -> None:
        nonlocal steps
        steps += 1
        if side.emitted is not None:
            side.emitted.setdefault(event.row, []).extend(event.verdict.emitted)
        if case.swap and steps == 3:
            speculator.drafter = drafter_of(case.swap, texts, vocab, case.seed + 1)

    if settings.get("on_step") == "watch" and case.beams == 1:  # beams change rows
        side.emitted = {}
    if case.swap or "on_step" in settings:
        settings["on_step"] = on_step
    drafter = drafter_of(case.drafter, texts, vocab, case.seed)
    speculator = Speculator(drafter, **settings)
    return speculator


def _perform(
    case: Case,
    model: Any,
    call: Callable[..., Any],
    side: Side,
    generator: torch.Generator | None = None,
) -> Side:
    try:
        with mode_of("inputs", case):
            kwargs = arguments(case, model, side.log)
    except Exception as error:
        raise NotAsked(f"{type(error).__name__}: {error}") from error
    mask = kwargs.get("attention_mask")
    cache = cache_of(kwargs)
    side.log.model = model
    told = state.Told()
    torch.manual_seed(case.seed)
    begin = torch.get_rng_state()
    process = state.of_process()
    for turn in range(case.turns):
        before = state.of_arguments(kwargs)
        try:
            with mode_of("calls", case, turn), told.listening(), looking(case, side.log):
                output = call(**kwargs)
        except Exception as error:
            side.error = _without_tracebacks(error)
            break
        finally:
            side.changed += state.differences(before, state.of_arguments(kwargs))
        side.outputs.append(output)
        returned = None if isinstance(output, torch.Tensor) else cache_of(output)
        cache = cache if isinstance(output, torch.Tensor) else returned
        if turn + 1 < case.turns:
            if returned is None or model.config.is_encoder_decoder:
                break
            with mode_of("inputs", case, turn):
                kwargs = next_turn(case, output, {"attention_mask": mask}, side.log)
    if state.of_process() != process:
        side.changed.append("the process's random states or modes")
    now = torch.get_rng_state()
    side.untouched = torch.equal(now, begin)
    side.random = now if generator is None else generator.get_state()
    side.left = state.of_model(model)
    side.told = told.lines
    side.held, side.layers = state.length_of(cache), state.layers_of(cache)
    side.bytes = state.bytes_of(cache)
    if cache is not None and side.outputs and side.error is None:
        side.on = _continued(case, model, side.sequences, cache, mask)
    return side


def _without_tracebacks(error: Exception) -> Exception:
    """Clear the tracebacks of an error and its causes, whose frames hold the call's cache."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__
    return error


def mode_of(what: str, case: Case, turn: int = 0) -> AbstractContextManager[Any]:
    """The inference mode of a turn's "calls" or "inputs", or the absence of one."""
    inside = case.mode in (what, "both") or (case.mode == "turns" and what == "calls" and turn > 0)
    return torch.inference_mode() if inside else nullcontext()


@contextmanager
def looking(case: Case, log: Log) -> Iterator[None]:
    """Look at the model inside each of the block's forwards, where tokens are embedded."""
    original = torch.nn.functional.embedding

    def embedding(*args: Any, **kwargs: Any) -> torch.Tensor:
        log.look()
        return original(*args, **kwargs)

    with mock.patch.object(torch.nn.functional, "embedding", embedding if case.looks else original):
        yield


def _continued(case: Case, model: Any, ids: torch.Tensor, cache: Any, mask: Any) -> Any:
    """What plain ``generate`` says next, from a cache that was returned or given."""
    if model.config.is_encoder_decoder or case.inputs not in ("ids", "positions"):
        return None
    more = torch.cat((ids, torch.full_like(ids[:, :2], 6)), dim=1)
    whole = torch.ones_like(more)
    if mask is not None and len(mask) == len(more):
        whole[:, : mask.shape[1]] = mask
    try:
        return model.generate(
            more, attention_mask=whole, **cache_argument(cache), max_new_tokens=4, do_sample=False
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# Open generations: their steps in several modes, alone or joint


def drained(case: Case, model: Any, speculator: Speculator, kwargs: dict[str, Any]) -> torch.Tensor:
    """The ids of a generation that is stepped to its end, (1, length).

    Args:
        case: whose ``steps`` say in which inference mode each step is called.
        model, speculator: of the call.
        kwargs: of ``open_generation``.
    """
    opened_inside = torch.is_inference_mode_enabled()
    rng = random.Random(f"steps {case.seed}")
    run = open_generation(model, speculator=speculator, **kwargs)
    other = _other(model, not opened_inside) if case.steps == "joint" else None
    joint = None
    try:
        while not run.finished:
            inside = {"": opened_inside, "outside": False, "inside": True}.get(case.steps)
            inside = rng.random() < 0.5 if inside is None else inside
            with torch.inference_mode(inside), torch.no_grad():
                if other is None or other.finished or run.why_alone or other.why_alone:
                    run.step()
                    continue
                joint = joint or JointSteps(model)
                if joint.why_not is not None:
                    run.step()
                    continue
                added, beside = joint.step([run, other])
            if isinstance(added, Exception):
                raise added
            if isinstance(beside, Exception):
                raise AssertionError("the other generation failed") from beside
    finally:
        with torch.inference_mode(not opened_inside), torch.no_grad():
            run.close()
            if other is not None:
                other.close()
    return run._loop.group.sequences()


def _other(model: Any, inside: bool) -> OpenGeneration | None:
    """Another generation of the model, after its prefill; None: it has none."""
    ids = torch.tensor([[9, 8, 7, 6, 9, 8, 7, 6, 5]]) % VOCAB
    with torch.inference_mode(inside), torch.no_grad():
        try:
            run = open_generation(
                model, ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
            )
            run.step()
        except (UnsupportedError, ValueError):
            return None
    return run
