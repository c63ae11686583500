"""Many prompts: a queue whose rows share forwards, and are refilled as soon as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Int32
from ngramspec.errors import UnsupportedError, check_bool, check_choice, check_int
from ngramspec.hf import GenerateArguments, checked, speculate
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.devices import device_of, is_transient
from ngramspec.hf_model.compat.resources import new_progress_bar
from ngramspec.hf_model.pool import CachePool, cache_maker, free_bytes, why_not_kept
from ngramspec.speculator import Speculator
from ngramspec.stepwise import Job, ModelRunner, OpenGeneration, open_generation
from ngramspec.stores import have_entries

CHUNK = 512  # tokens of a prompt that are read at once
MAX_ROWS = 64  # under rows="auto"
IDLE_SHARE = 0.1  # of the caches' memory that caches of ended prompts may use, for their beginnings
FREE_SHARE = 0.5  # of the free memory that caches may use if no limit is given
IN_A_PROMPT = "pass it in a prompt's dict"
REFUSED = {  # arguments of generate, and what to do instead
    **dict.fromkeys(("inputs", "input_ids", "attention_mask", "inputs_embeds"), IN_A_PROMPT),
    **dict.fromkeys(("position_ids", "token_type_ids"), IN_A_PROMPT),
    "past_key_values": "each row has its own cache",
    "streamer": "rows are generated side by side; read the outputs as they finish",
    "generator": "pass seed, which gives each prompt its own generator",
    "custom_generate": "pass speculator",
}


def generate_many(
    model: Any,
    prompts: Iterable[Any],
    *,
    rows: int | str = "auto",
    speculator: Speculator | None = None,
    tokenizer: Any = None,
    ordered: bool = False,
    seed: int | None = None,
    errors: str = "raise",
    reference_ids: Iterable[Any] | None = None,
    cache_bytes: int | None = None,
    progress_bar: bool = False,
    **kwargs: Any,
) -> Iterator[tuple[int, Any]]:
    """Generate for many prompts, several at a time; a row that ends is refilled at once.

    Rows share each forward and need no padding. A prompt is read between the steps of the others,
    and a beginning that it shares with a row's prompt is copied. Between two steps of a row, each
    other row reads at most one chunk of CHUNK tokens. What cannot share a forward, such as beam
    search, runs prompt by prompt, which is logged once.

    Args:
        model: a transformers model.
        prompts: are read only when a row is free. Each has token ids, as a list, an array or a
            tensor, (n,) or (1, n), or is what a tokenizer returns for one text (a dict with
            input_ids). With a tokenizer it can also be a string, or a chat: a list of messages.
        rows: maximum number of prompts that are generated at a time. "auto": chosen
            from the measured costs, and limited by the memory.
        speculator: how to speculate, in all rows; None: a new Speculator().
        tokenizer: the model's; also for stop_strings and tools.
        ordered: whether outputs come in the order of the prompts rather than as they finish.
        seed: prompt ``index`` is sampled as ``torch.manual_seed(seed + index)`` would, so its text
            depends on no other; with ``num_return_sequences=n``, sequence ``number`` has
            ``seed + n * index + number``. None: the seeds are drawn from torch's generator.
        errors: what an error in one prompt does. "raise": it ends the generation; "yield": the
            prompt's output is the exception.
        reference_ids: a text to draft from for each prompt, see Speculator.__call__; None: none.
            An entry may be None.
        cache_bytes: maximum memory of the rows' caches in bytes. One row always runs. None: half
            of the free memory under rows="auto", else no limit.
        progress_bar: whether to show a bar, unless transformers' bars are disabled.
        **kwargs: keyword arguments of ``model.generate``, and ``stores`` (an iterator, or a list of
            lists, has one entry for each prompt), ``extra_stores``, ``session`` and ``tools``, see
            ``ngramspec.generate``. Processors and criteria see one row at a time. All rows share
            them, so they must keep no state of a text.

    Yields:
        The prompt's index, and what ``generate`` returns for it alone. Rows that run out of memory
        begin again, with half as many at a time.

    Raises:
        TypeError: an argument or a prompt has a wrong type.
        ValueError: an argument or a prompt is invalid, or the argument belongs to one prompt.

    Example:
        ``for index, ids in ngramspec.generate_many(model, texts, tokenizer=tokenizer): ...``
    """
    if rows != "auto":
        rows = check_int("rows", rows, 1)
    check_choice("errors", errors, ("raise", "yield"))
    check_bool("ordered", ordered)
    check_bool("progress_bar", progress_bar)
    if seed is not None:
        seed = check_int("seed", seed, 0)
    if cache_bytes is not None:
        cache_bytes = check_int("cache_bytes", cache_bytes, 0)
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts must be an iterable of prompts, got {type(prompts).__name__}")
    for name in kwargs:
        if name in REFUSED and kwargs[name] is not None:
            raise ValueError(f"{name} cannot be passed to generate_many: {REFUSED[name]}")
    own = _own_entries({"reference_ids": reference_ids}, kwargs)
    fixed = None if rows == "auto" else int(rows)
    queue = _Queue(model, checked(speculator), tokenizer, kwargs, fixed, seed, cache_bytes)
    found = queue.run(iter(prompts), own)
    found = _raised(found) if errors == "raise" else found
    found = _in_order(found) if ordered else found
    return _shown(found, queue, prompts) if progress_bar else found


class _Prompt:
    """A prompt's place in the queue: its sequences, and the outputs of those that have ended."""

    def __init__(self, index: int, inputs: dict[str, Any], sequences: int) -> None:
        self.index, self.inputs = index, inputs
        self.outputs: list[Any] = [None] * sequences
        self.left = sequences


class _Sequence(Job):
    """One sequence of a prompt.

    Attributes:
        error: what ended it; None: nothing, or a stopping rule.
        output: what ``generate`` returns for it, once it has ended.
    """

    def __init__(
        self, prompt: _Prompt, number: int, ids: Int32, *, reads: bool, given: Any
    ) -> None:
        super().__init__(ids)
        self.place, self.number, self.reads, self._given = prompt, number, reads, given
        self.error: Exception | None = None
        self.output: Any = None
        self.count = 0

    def open(self, runner: ModelRunner, cache: Any) -> OpenGeneration:
        return open_generation(
            runner.model, **({} if cache is None else cache_argument(cache)), **self._given()
        )

    def take(self, runner: ModelRunner, tokens: list[int]) -> None:
        generation = self.generation
        assert generation is not None
        self.count += len(tokens)
        if generation.finished:
            self.release(runner, finish=True)
            self.output = generation.output()

    def fail(self, runner: ModelRunner, error: Exception | None) -> None:
        self.error = error
        self.release(runner, finish=False, keep=False)


class _Queue:
    """The prompts that wait, and the rows that are generated.

    Attributes:
        tokens: number of generated tokens of the sequences that have ended.
    """

    def __init__(
        self,
        model: Any,
        speculator: Speculator,
        tokenizer: Any,
        kwargs: dict[str, Any],
        fixed_rows: int | None,
        seed: int | None,
        cache_bytes: int | None,
    ) -> None:
        self._model, self._speculator, self._tokenizer = model, speculator, tokenizer
        self._kwargs, self._seed, self._cache_bytes = kwargs, seed, cache_bytes
        self.tokens = 0
        self._auto = fixed_rows is None
        self._most = fixed_rows or MAX_ROWS  # lower after an out-of-memory error
        self._worthwhile = 1  # rows, as far as was measured
        self._row_bytes = 0  # maximum of a row that was read; 0: none was
        setting = GenerateArguments(model.generate, model, (), dict(kwargs)).setting
        self._sequences = int(setting("num_return_sequences") or 1)
        self._samples = bool(setting("do_sample"))
        self._whole = bool(setting("return_dict_in_generate"))
        eos, pad = setting("eos_token_id"), setting("pad_token_id")
        ends = eos if isinstance(eos, list | tuple) else [eos]
        self._filler = ends[0] if pad is None else pad
        # generate hides this token where a prompt has no mask.
        self._hidden = None if pad in ends else pad
        made = ("cache_implementation", "cache_config", "prefill_chunk_size")
        self._reads = not self._whole and all(setting(name) is None for name in made)
        self._reads = self._reads and setting("use_cache") is not False
        self._alone = self._why_alone(setting)

    def _why_alone(self, setting: Any) -> str | None:
        """Why all prompts run one by one, or None."""
        if (setting("num_beams") or 1) > 1:
            return "beam search"
        if self._sequences > 1 and (self._whole or not self._samples):
            return "several returned sequences that are not sampled, or are returned as a dict"
        return None

    def run(self, prompts: Iterator[Any], own: Mapping[str, Iterator[Any]]) -> Iterator[Any]:
        """Yield each prompt's index and output, or the error that ended it, as they finish.

        ``own``: arguments of ``generate`` that have an entry for each prompt.
        """
        active: list[_Sequence] = []
        waiting = deque[_Sequence]()
        numbers, more, runner = count(), True, None
        stepped = set[_Sequence]()  # those that have run since the last joint step
        rows = 1
        try:
            while True:
                while (more or waiting) and len(active) < rows:
                    if not waiting:
                        try:
                            prompt = next(prompts)
                        except StopIteration:
                            more = False
                            break
                        index = next(numbers)
                        entries = _entries(own, index)
                        try:
                            inputs = self._inputs(prompt, index) | entries
                            if runner is None and self._alone is None:
                                runner = self._runner()
                            if self._alone is not None:
                                yield index, self._run_alone(index, inputs, self._alone)
                                continue
                        except Exception as error:
                            yield index, error
                            continue
                        place = _Prompt(index, inputs, self._sequences)
                        waiting.extend(self._job(place, at) for at in range(self._sequences))
                    job = waiting.popleft()
                    job.wait_for(active)
                    active.append(job)
                if not active:
                    return
                assert runner is not None
                turn, reading = self._turn(runner, active, stepped)
                runner.turn(turn, reading=reading)
                ended = [job for job in active if job.ended]
                active = [job for job in active if not job.ended]
                if ended or reading or len(turn) == 1:
                    self._measure(runner, active)
                    rows = self._rows(runner)
                again = [job for job in ended if job.error is not None and is_transient(job.error)]
                if again and len(ended) + len(active) > 1:
                    self._most = rows = max((len(ended) + len(active)) // 2, 1)
                    again.sort(key=lambda job: (job.place.index, job.number))
                    waiting.extendleft(self._job(job.place, job.number) for job in reversed(again))
                    ended = [job for job in ended if job not in again]
                for job in ended:
                    yield from self._left(job)
                del turn, ended, again
        finally:
            for job in active:
                assert runner is not None
                with suppress(Exception):  # so that all are released
                    job.release(runner, finish=False, keep=False)

    def _runner(self) -> ModelRunner | None:
        """What runs the rows' turns; None: they cannot share forwards, see ``_alone``."""
        model = self._model
        pool = CachePool(cache_maker(model), 0, 0, why_not_kept(model))
        runner = ModelRunner(model, pool, CHUNK)
        self._alone = runner.steps.why_not
        return runner

    def _measure(self, runner: ModelRunner, active: Sequence[_Sequence]) -> None:
        """Note the memory of rows whose prompt is read, and limit the memory of idle caches."""
        held = sum(each.lease.bytes for each in active if each.lease is not None)
        runner.pool.max_bytes = runner.pool.max_bytes_of_user = int(IDLE_SHARE * held)
        for job in active:
            if job.lease is None or job.generation is None:
                continue
            if self._auto and self._cache_bytes is None:
                free = free_bytes(self._model)
                self._cache_bytes = None if free is None else int(FREE_SHARE * free)
            longest = job.generation.target.facts.longest  # positions, with all new tokens
            own = job.lease.bytes * longest // max(job.lease.cache.get_seq_length(), 1)
            self._row_bytes = max(self._row_bytes, own)

    def _rows(self, runner: ModelRunner) -> int:
        """How many rows there should be now."""
        most = self._most
        if self._cache_bytes is not None and self._row_bytes:
            most = max(min(most, self._cache_bytes // self._row_bytes), 1)
        if not self._auto:
            return most
        # Prompts that wait for a row cost more than a row too many.
        self._worthwhile = max(self._worthwhile, runner.steps.worthwhile_rows(most))
        return min(self._worthwhile, most)

    def _turn(
        self, runner: ModelRunner, active: Sequence[_Sequence], stepped: set[_Sequence]
    ) -> tuple[list[_Sequence], list[_Sequence]]:
        """The jobs of the next turn, and those of which it can read pieces.

        Each that reads or steps alone has a turn, then there is one joint step.
        """
        joins = [job for job in active if job.joins]
        pieces = bool(joins) and all(
            job.generation.allows_pieces for job in joins if job.generation
        )
        reading = [job for job in active if pieces and job.joins_by_pieces(runner)]
        for job in active:
            if job.ready and job not in stepped and not (job.joins or job in reading):
                stepped.add(job)
                return [job], []
        stepped.clear()
        return joins or [next(job for job in active if job.ready)], reading

    def _job(self, prompt: _Prompt, number: int) -> _Sequence:
        inputs, ids = prompt.inputs, prompt.inputs["input_ids"]
        mask = inputs.get("attention_mask")
        others = [name for name, value in inputs.items() if value is not None]
        plain = {*others} <= {"input_ids", "attention_mask", "reference_ids", "stores"}
        seen = bool((mask == 1).all()) if mask is not None else self._hidden not in ids.tolist()[0]
        given = partial(self._arguments, prompt.index, inputs, number, rows=1)
        tokens = ids[0].cpu().numpy().astype(np.int32)
        return _Sequence(prompt, number, tokens, reads=self._reads and plain and seen, given=given)

    def _arguments(
        self, index: int, inputs: dict[str, Any], number: int = 0, *, rows: int | None = None
    ) -> dict[str, Any]:
        """The arguments of a sequence's ``generate``; ``rows``: how many it returns."""
        own = inputs | {"tokenizer": self._tokenizer}
        kwargs = self._kwargs | {name: value for name, value in own.items() if value is not None}
        if inputs.get("attention_mask") is None and self._hidden is None:
            kwargs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if rows is not None:
            kwargs |= {"num_return_sequences": rows, "speculator": self._speculator}
        if rows is not None and self._samples:
            seed = self._seed_of(self._sequences * index + number)
            kwargs["generator"] = torch.Generator(device_of(self._model)).manual_seed(seed)
        return kwargs

    def _seed_of(self, place: int) -> int:
        if self._seed is not None:
            return self._seed + place
        return int(torch.randint(1 << 62, (), device="cpu").item())

    def _run_alone(self, index: int, inputs: dict[str, Any], reason: str) -> Any:
        """The output of a prompt, by one call of ``generate``."""
        self._speculator.log_once(f"prompts are generated one by one: {reason}")
        kwargs = self._arguments(index, inputs)
        if self._seed is None:
            return speculate(self._model, self._model.generate, self._speculator, (), kwargs)
        device = device_of(self._model)
        with torch.random.fork_rng([] if device.type == "cpu" else [device]):
            torch.manual_seed(self._seed_of(self._sequences * index))
            return speculate(self._model, self._model.generate, self._speculator, (), kwargs)

    def _left(self, job: _Sequence) -> Iterator[tuple[int, Any]]:
        """Yield the output of a prompt whose last sequence has ended."""
        prompt, error = job.place, job.error
        if isinstance(error, UnsupportedError) and not job.count:
            error = error.with_traceback(None)
            try:
                prompt.left = 0
                yield prompt.index, self._run_alone(prompt.index, prompt.inputs, str(error))
            except Exception as raised:
                yield prompt.index, raised
            return
        self.tokens += job.count
        prompt.outputs[job.number] = job.output if error is None else error.with_traceback(None)
        prompt.left -= 1
        if prompt.left:
            return
        failed = next((each for each in prompt.outputs if isinstance(each, Exception)), None)
        if failed is not None or self._sequences == 1:
            yield prompt.index, failed if failed is not None else prompt.outputs[0]
            return
        texts = [each[0] for each in prompt.outputs]
        pad = torch.nn.utils.rnn.pad_sequence
        yield prompt.index, pad(texts, batch_first=True, padding_value=self._filler or 0)

    def _inputs(self, prompt: Any, index: int) -> dict[str, Any]:
        """A prompt as arguments of ``generate``; ``input_ids`` is int64 (1, n)."""
        chat = isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping)
        if isinstance(prompt, str) or chat:
            if self._tokenizer is None:
                raise TypeError(f"prompts[{index}] is text, which needs tokenizer=")
            if chat:
                prompt = self._tokenizer.apply_chat_template(
                    list(prompt), add_generation_prompt=True, return_dict=True
                )
            else:
                prompt = self._tokenizer(prompt)
        inputs = dict(prompt) if isinstance(prompt, Mapping) else {"input_ids": prompt}
        if "input_ids" not in inputs:
            raise TypeError(f"prompts[{index}] must have input_ids, got {', '.join(inputs)}")
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            if inputs.get(name) is not None:
                inputs[name] = self._row(inputs[name], f"{name} of prompts[{index}]")
        return inputs

    def _row(self, given: Any, name: str) -> torch.Tensor:
        """Integers (n,) or (1, n) as int64 (1, n) on the model's device."""
        try:
            ids = given if isinstance(given, torch.Tensor) else torch.from_numpy(np.asarray(given))
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be integers, got {type(given).__name__}") from error
        if ids.numel() and (ids.is_floating_point() or ids.is_complex()):
            raise TypeError(f"{name} must be integers, got {ids.dtype}")
        if ids.ndim not in (1, 2) or (ids.ndim == 2 and len(ids) != 1) or not ids.numel():
            raise ValueError(f"{name} must have one row of at least one, got {tuple(ids.shape)}")
        return ids.reshape(1, -1).long().to(device_of(self._model))


def _own_entries(given: dict[str, Any], kwargs: dict[str, Any]) -> dict[str, Iterator[Any]]:
    """The arguments that have an entry for each prompt; ``stores`` is taken from ``kwargs``."""
    stores = kwargs.get("stores")
    if have_entries(stores) or isinstance(stores, Iterator):
        given["stores"] = kwargs.pop("stores")
    return {name: iter(each) for name, each in given.items() if each is not None}


def _entries(own: Mapping[str, Iterator[Any]], index: int) -> dict[str, Any]:
    """The next prompt's entry of each argument."""
    entries = {}
    for name, each in own.items():
        try:
            entries[name] = next(each)
        except StopIteration:
            raise ValueError(f"{name} has only {index} entries") from None
    return entries


def _raised(found: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Raise an output that is an error."""
    for index, output in found:
        if isinstance(output, Exception):
            output.add_note(f"in prompts[{index}] of ngramspec.generate_many")
            raise output
        yield index, output


def _in_order(found: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Keep outputs until those of earlier prompts have come."""
    kept, following = dict[int, Any](), 0
    for index, output in found:
        kept[index] = output
        while following in kept:
            yield following, kept.pop(following)
            following += 1


def _shown(
    found: Iterator[tuple[int, Any]], queue: _Queue, prompts: Iterable[Any]
) -> Iterator[tuple[int, Any]]:
    """Show a progress bar with the tokens a second."""
    began = perf_counter()
    total = len(prompts) if isinstance(prompts, Sized) else None
    with new_progress_bar(total, " prompts") as bar:
        for each in found:
            bar.update()
            bar.set_postfix_str(f"{queue.tokens / (perf_counter() - began):.0f} tokens/s")
            yield each
