"""The configured object: what a user makes once and passes to ``generate``."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ngramspec.decoding.call import decode_call
from ngramspec.decoding.config import Config, Setting, config_of_state, state_of_config
from ngramspec.decoding.observer import NO_OBSERVER, Observer
from ngramspec.decoding.request import GenerateCall
from ngramspec.decoding.setup import Settings
from ngramspec.draft_length.schedule import PrefillDraftLength
from ngramspec.drafters.base import Drafter
from ngramspec.persistence import (
    FOLDER,
    check_pickles,
    copied_drafter,
    find_settings,
    pickled_drafter,
    read_settings,
    write_settings,
)
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.stores.choice import OpenStore, Store, described

logger = logging.getLogger("ngramspec")

# Attributes that a copy makes anew.
OWN = ("stats", "observer", "_prefill_length", "_lock", "_logged")


class Speculator:
    """Speculative decoding without a draft model, as transformers' ``custom_generate``.

    Reusable and thread-safe: each call keeps its own state, and ``stats`` adds up all calls.
    Every argument can be read as an attribute. Assigning one checks the value; calls that begin
    later use it. Copies and pickles have the arguments as they are at that moment, and nothing that
    was learned or counted. A copy has the same ``on_step``. A Drafter object is copied, or where
    that fails built again from its ``spec``.

    Args:
        drafter: what guesses the next tokens: a string for build_drafter, or a Drafter.
        gamma: tokens proposed in a step: an integer, "heuristic" (grows while whole drafts are
            accepted), "threshold" (chains end before the first token whose confidence is below a
            threshold, which adapts), or "auto": the number with the most expected tokens per cost,
            measured while forwards run; the heuristic for drafters without estimates. Under "auto"
            the prefill verifies a draft after the prompt as well.
        gamma_max: most tokens proposed in a step, 1..4096.
        tree: "auto": drafts have branches where these are worth their cost, under gamma="auto" and
            width="fit", if the target can verify trees. None: drafts are chains. N, 1..4096: drafts
            are token trees of at most N nodes, where the drafter knows several continuations; N
            replaces gamma_max. Where the target cannot verify trees (sliding-window attention,
            other attention than sdpa and eager, encoder-decoders, rows of a batch that advance
            together), drafts are chains; for N, ``stats.chains`` says why.
        verification: "exact" keeps the target's text, or distribution; "match" does so without
            looking at a stochastic draft's own probabilities, for the text of plain sampling with
            the same seed; "typical" accepts what the target finds likely enough, which changes
            the distribution.
        lenience: l in (0, 1], of verification "exact". Below 1 a drafted token is accepted where
            p(x) >= l max p (greedy) or with probability min(1, p / (l q)) (sampled): no token's
            probability exceeds p / l, and the text's distribution changes.
        epsilon: of verification "typical", in (0, 1]: the threshold is min(epsilon, delta exp(-H)),
            H the entropy of the target's distribution in nats.
        delta: of verification "typical", in (0, 1]; see epsilon.
        costs: a file of ``ngramspec calibrate``, with which gamma="auto" begins; None: assumed
            costs. The times of steps correct either, and what this process has measured before
            counts more. A file of another model, machine or version is not used, nor is any file
            used for batches and static caches; that is logged once.
        width: "fit": a forward is as wide as its draft. N, a multiple of 8: every forward after
            the prefill is padded to N positions, so that in bfloat16 too no token of greedy text
            depends on the drafter (of sampled text: if drafts are not stochastic, or with
            verification "match"). Drafts have at most N - 1 tokens. For batches of one on a
            static cache, or on a dynamic one with eager attention on a CPU; other requests are
            refused.
        compiled: whether the forwards after the prefill run as compiled graphs, which needs a
            static cache. None: where plain ``generate`` would compile (GPUs, static caches),
            with the call's ``compile_config``; True: on a CPU too; False: never. Under "fit",
            forwards are then padded to a few widths; each is compiled when it is first used. With
            CUDA graphs, calls of one model must not overlap, as in plain ``generate``.
        policy: how a drafter built from a string chooses between its tiers; see build_drafter.
        calibration: "shared": calls learn together how often drafts are right, which holds no text;
            "request": each for itself, so that no call's drafts depend on another's.
        unsupported: what to do with a request that cannot be speculated: "error" raises an
            UnsupportedError, "plain" has transformers decode it, which is logged once.
        stores: what to draft from beside each request's text: corpora, paths, shared namespaces.
        on_step: called with a StepEvent after the prefill and after every step.

    Attributes:
        config: the arguments but drafter and on_step, in one frozen object.
        stats (DecodeStats): counts and times of all calls since the last ``reset``.
        observer (Observer | None): is told of the sections of the decode loop, to measure them. It
            is not copied.

    Raises:
        TypeError: an argument has the wrong type; the message says which.
        ValueError: an argument is out of its bounds, or two of them exclude each other.

    Examples:
        >>> Speculator("copy+ngram", gamma=8).to_dict()["gamma"]
        8
    """

    gamma = Setting[int | str]()
    gamma_max = Setting[int]()
    tree = Setting[int | str | None]()
    verification = Setting[str]()
    lenience = Setting[float]()
    epsilon = Setting[float]()
    delta = Setting[float]()
    costs = Setting[str | None]()
    width = Setting[int | str]()
    compiled = Setting[bool | None]()
    policy = Setting[str]()
    calibration = Setting[str]()
    unsupported = Setting[str]()

    def __init__(
        self,
        drafter: str | Drafter = "auto",
        gamma: int | str = "auto",
        *,
        gamma_max: int = 64,
        tree: int | str | None = "auto",
        verification: str = "exact",
        lenience: float = 1.0,
        epsilon: float = 0.09,
        delta: float = 0.3,
        costs: str | Path | None = None,
        width: int | str = "fit",
        compiled: bool | None = None,
        policy: str = "value",
        calibration: str = "shared",
        unsupported: str = "error",
        stores: Sequence[Store] = (),
        on_step: Callable[[StepEvent], None] | None = None,
    ) -> None:
        config = Config(
            gamma=gamma,
            gamma_max=gamma_max,
            tree=tree,
            verification=verification,
            lenience=lenience,
            epsilon=epsilon,
            delta=delta,
            costs=None if costs is None else str(costs),
            width=width,
            compiled=compiled,
            policy=policy,
            calibration=calibration,
            unsupported=unsupported,
        )
        self._drafter = config.drafter(drafter, stores)
        if on_step is not None and not callable(on_step):
            raise TypeError(f"on_step must be callable or None, got {type(on_step).__name__}")
        self.on_step = on_step
        self._begin(config)

    def _begin(self, config: Config) -> None:
        """Make what this object alone has: what it counts, learns and has logged. See OWN."""
        self.stats = DecodeStats()
        self.observer: Observer | None = None
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self._config = config
        self._prefill_length = PrefillDraftLength(config.longest)

    @property
    def config(self) -> Config:
        """The arguments but drafter and on_step, in one frozen object."""
        return self._config

    def configure(self, config: Config) -> None:
        """Use another config in calls that begin from now on."""
        if config.longest != self._config.longest:
            self._prefill_length = PrefillDraftLength(config.longest)
        if config.calibration != self._config.calibration:
            self._drafter = config.drafter(self._drafter)
        self._config = config

    @property
    def drafter(self) -> Drafter:
        """The drafter in use. Setting it takes effect at the next step of every running call, which
        starts the new one from its committed tokens; in float32 the text stays the same."""
        return self._drafter

    @drafter.setter
    def drafter(self, drafter: str | Drafter) -> None:
        stores = self.stores if isinstance(drafter, str) else ()
        self._drafter = self._config.drafter(drafter, stores)

    @property
    def stores(self) -> tuple[OpenStore, ...]:
        """What the drafter drafts from beside each request's own text."""
        return self._drafter.stores

    def reset(self) -> None:
        """Set the statistics to zero."""
        with self._lock:
            self.stats.reset()

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make an equal Speculator, as plain JSON values; without on_step.

        Raises:
            ValueError: the drafter is an object that no string describes, or a store in memory.
        """
        if self._drafter.spec is None:
            name = type(self._drafter).__name__
            raise ValueError(f"drafter {name} has no spec; give it one, or build it from a string")
        stores = {"stores": described(self.stores)} if self.stores else {}
        return {"drafter": self._drafter.spec} | self._config.to_dict() | stores

    @classmethod
    def from_dict(cls, arguments: dict[str, Any]) -> Speculator:
        """The Speculator that ``to_dict`` described; an unknown key is a TypeError."""
        return cls(**arguments)

    @classmethod
    def preset(cls, name: str, **arguments: Any) -> Speculator:
        """The Speculator that reproduces a published way of drafting.

        Args:
            name: "akunu" (n-grams of order 4, gamma 4, history 512), "prompt-lookup" (copies of 10
                tokens) or "leviathan-bigram" (gamma 3).
            arguments: what to use in place of the preset's, such as gamma or on_step.

        Raises:
            ValueError: there is no such preset.
        """
        from ngramspec.decoding.presets import preset_settings

        return cls(**(preset_settings(name) | arguments))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the arguments, without on_step, into a folder; it is made if it is not there.

        They go to ``ngramspec.json``; in a folder that ``ngramspec wrap`` wrote to the one in
        ``custom_generate``, so that its model speculates by them.

        Args:
            folder: on this machine.

        Returns:
            the file.

        Raises:
            ValueError: the drafter is an object that no string describes.
            OSError: the file cannot be written.
        """
        return write_settings(Path(folder), self.to_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, **arguments: Any) -> Speculator:
        """The Speculator that ``save_pretrained`` or ``ngramspec wrap`` wrote into a folder.

        Args:
            folder: on this machine, or the file itself; nothing is downloaded.
            **arguments: what to use in place of the file's, such as on_step.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it cannot be used; the message names it and says what is wrong.
        """
        path = find_settings(Path(folder))
        wrapped = {"unsupported": "plain"} if path.parent.name == FOLDER else {}
        settings = read_settings(path)
        try:
            return cls.from_dict(wrapped | settings | arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled."""
        check_pickles("on_step", self.on_step, "set on_step to None, or to a module's function")
        return self._state() | {"_drafter": pickled_drafter(self._drafter)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        config, rest = config_of_state(state)
        vars(self).update(rest)
        self._drafter = config.drafter(rest["_drafter"])
        self._begin(config)

    def __deepcopy__(self, memo: dict[int, Any]) -> Speculator:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        apart = {"_drafter": None, "on_step": None}  # a callback may belong to something large
        state = copy.deepcopy(self._state() | apart, memo)
        drafter = copied_drafter(self._drafter, memo)
        other.__setstate__(state | {"_drafter": drafter, "on_step": self.on_step})
        return other

    def __copy__(self) -> Speculator:
        return copy.deepcopy(self)

    def _state(self) -> dict[str, Any]:
        """What a copy has in common with this object, the config as a dictionary."""
        common = {name: value for name, value in vars(self).items() if name not in OWN}
        return common | {"_config": state_of_config(self._config)}

    def __repr__(self) -> str:
        arguments = [repr(self._drafter.spec or self._drafter)]
        arguments += [f"stores={list(self.stores)!r}"] if self.stores else []
        arguments += [f"{name}={value!r}" for name, value in self._config.changed().items()]
        return f"Speculator({', '.join(arguments)})"

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        streamer: Any = None,
        reference_ids: Any = None,
        stores: Any = None,
        extra_stores: Any = None,
        inputs_tensor: Any = None,
        generator: torch.Generator | None = None,
        synced_gpus: bool | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode, as ``model.generate(custom_generate=self)`` calls it with all prepared.

        transformers passes no streamer, tokenizer or synced_gpus to a custom_generate callable, and
        checks stop_strings before; ``ngramspec.generate`` and ``enabled`` bring all four.

        Args:
            model: a transformers model.
            input_ids: the prompt, int64 (batch, n).
            logits_processor: as in ``generate``.
            stopping_criteria: as in ``generate``.
            generation_config: as in ``generate``.
            streamer: as in ``generate``.
            reference_ids: text that the output will likely resemble: token ids, or several
                sequences of them. The drafters read it as if it stood before the prompt.
            stores: stores of this call, in place of the Speculator's own.
            extra_stores: stores of this call beside those.
            inputs_tensor: what the encoder of an encoder-decoder model read.
            generator: what to sample with, of the prompt's device; None: torch's global one.
            synced_gpus: as in ``generate``.
            **model_kwargs: what ``generate`` prepared for the model's forward.

        Returns:
            int64 (batch, prompt + generated), or what return_dict_in_generate asks for.

        Raises:
            UnsupportedError: the request cannot be speculated, and unsupported="error".
            ValueError: the prompt is empty or has ids outside the vocabulary.
        """
        call = GenerateCall(
            model=model,
            input_ids=input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            streamer=streamer,
            reference_ids=reference_ids,
            stores=stores,
            extra_stores=extra_stores,
            inputs_tensor=inputs_tensor,
            generator=generator,
            synced_gpus=synced_gpus,
            model_kwargs=model_kwargs,
        )
        return decode_call(self.settings(), call)

    def _count(self, stats: DecodeStats) -> None:
        """Add a run's counts and times to the statistics."""
        with self._lock:
            self.stats.add(stats)

    def log_once(self, message: str) -> None:
        """Log a warning, the same one only once for this Speculator."""
        with self._lock:
            known = message in self._logged
            self._logged.add(message)
        if not known:
            logger.warning("%s", message)

    def settings(self) -> Settings:
        """What a call takes from this object when it begins."""
        config, shared = self._config, self._config.calibration == "shared"
        return Settings(
            config=config,
            drafter=lambda: self._drafter,
            rule=config.rule,
            prefill_length=self._prefill_length if shared else PrefillDraftLength(config.longest),
            on_step=self.on_step,
            observer=self.observer or NO_OBSERVER,
            count=self._count,
            log_once=self.log_once,
        )
