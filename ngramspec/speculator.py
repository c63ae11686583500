"""The Speculator: made once by the user and passed to ``generate``."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.decoding.config import SAVED, Config, Setting, config_of_state
from ngramspec.decoding.observer import Observer
from ngramspec.decoding.request import GenerateCall, head_of
from ngramspec.decoding.setup import Settings, decode_call
from ngramspec.draft_length.schedule import PrefillDraftLength
from ngramspec.drafters.base import Drafter
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.stores.choice import OpenStore, Store, described

if TYPE_CHECKING:
    from ngramspec.drafters.headed import HeadOfCalls
    from ngramspec.drafters.model import ModelDrafter

logger = logging.getLogger("ngramspec")

# Attributes that a copy does not share with the original.
NOT_COPIED = ("stats", "observer", "_prefill_length", "_lock", "_logged", "_heads")


class Speculator:
    """Speculative decoding without a draft model, as transformers' ``custom_generate``.

    A Speculator is reusable and thread-safe: each call keeps its own state, and ``stats`` sums up
    all calls. The arguments are also attributes. All but ``stores`` can be assigned: the value is
    checked, and calls that begin later use it. Copies and pickles have the current arguments, but
    no statistics and no learned state. A copy shares ``on_step``.

    Args:
        drafter: proposes the next tokens: a string for ``build_drafter``, or a Drafter.
        gamma: draft tokens per step (num_speculative_tokens). An integer is a fixed number.
            "heuristic": the number grows while whole drafts are accepted. "threshold": a chain ends
            before the first token whose confidence is below an adaptive threshold. "auto": the
            number that maximizes expected tokens per second, by costs measured during decoding.
            With "auto" the prefill also verifies a draft after the prompt, and drafters without
            estimates use "heuristic".
        gamma_max: maximum draft tokens per step, 1..4096.
        tree: "auto": drafts get branches where these are worth their cost; needs gamma="auto" and
            width="fit". None: drafts are chains. N, 1..4096: drafts are token trees of at most N
            nodes, and N replaces gamma_max. Drafts are chains if the target cannot verify trees.
            For N, ``stats.chains`` has the reason.
        verification: "exact": the output has the target's text (greedy) or distribution (sampled).
            "match": as "exact", and with the same seed the text is the baseline's for stochastic
            drafts, too, because draft probabilities are ignored. "typical": tokens that are
            probable enough under the target are accepted, which changes the distribution.
        lenience: l in (0, 1], for verification "exact". Below 1 a draft token is accepted if
            p(x) >= l max p (greedy), or with probability min(1, p / (l q)) (sampled). No token's
            probability exceeds p / l, and the output's distribution changes.
        epsilon: in (0, 1], for verification "typical". The threshold is
            min(epsilon, delta exp(-H)), where H is the target distribution's entropy in nats.
        delta: in (0, 1], for verification "typical"; see ``epsilon``.
        costs: a file written by ``ngramspec calibrate`` with initial costs for gamma="auto". None:
            assumed costs. Measured step times correct both. A file of another model, machine or
            version is ignored, and so is any file for batches and static caches (logged once).
        width: positions of each forward after the prefill. "fit": as many as the draft needs. N, a
            multiple of 8: forwards are padded to N positions, so that the text is independent of
            the drafter in bfloat16, too (sampled text: if drafts are deterministic or verification
            is "match"). N needs a batch of one, and a static cache or, on a CPU, a dynamic cache
            with eager attention.
        compiled: whether forwards after the prefill run as compiled graphs, which needs a static
            cache. None: where the baseline compiles (GPUs with static caches), with the call's
            ``compile_config``. True: on a CPU, too. False: never. With width="fit", compiled
            forwards are padded to a few widths. With CUDA graphs, calls must not overlap.
        policy: how a drafter built from a string chooses between sources; see ``build_drafter``.
        calibration: "shared": calls share what they learn about how often drafts are right, which
            holds no text. "request": no call's drafts depend on another call.
        unsupported: what to do with requests that do not support speculation. "error": raise an
            UnsupportedError. "plain": let transformers decode them, which is logged once.
        stores: draft sources besides a request's own text: corpora, paths, shared namespaces.
        on_step: called with a StepEvent after the prefill and after every step.

    Attributes:
        config: all arguments except drafter and on_step, in one frozen object.
        stats (DecodeStats): counts and times of all calls since the last ``reset``.
        observer (Observer | None): is notified of the decode loop's sections; not copied.

    Raises:
        TypeError: an argument has the wrong type; the message names it.
        ValueError: an argument is out of bounds, or two arguments exclude each other.

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
        """Make the state that is not copied: statistics, learned lengths, logged messages."""
        self.stats = DecodeStats()
        self.observer: Observer | None = None
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self._heads: HeadOfCalls | None = None
        self._config = config
        self._prefill_length = PrefillDraftLength(config.longest)

    @property
    def config(self) -> Config:
        """All arguments except drafter and on_step, in one frozen object."""
        return self._config

    def configure(self, config: Config) -> None:
        """Use another config in calls that begin later."""
        if config.longest != self._config.longest:
            self._prefill_length = PrefillDraftLength(config.longest)
        if config.calibration != self._config.calibration:
            self._drafter = config.drafter(self._drafter)
        self._config = config

    @property
    def drafter(self) -> Drafter:
        """The drafter in use. When it is assigned, running calls use the new one from their next
        step on, starting from their committed tokens. In float32 the text does not change."""
        return self._drafter

    @drafter.setter
    def drafter(self, drafter: str | Drafter) -> None:
        stores = self.stores if isinstance(drafter, str) else ()
        self._drafter = self._config.drafter(drafter, stores)

    @property
    def stores(self) -> tuple[OpenStore, ...]:
        """Draft sources in addition to each request's own text."""
        return self._drafter.stores

    def reset(self) -> None:
        """Set the statistics to zero."""
        with self._lock:
            self.stats.reset()

    def to_dict(self) -> dict[str, Any]:
        """The arguments except on_step as plain JSON values, for ``from_dict``.

        A ValueError says that the drafter has no spec, or that a store is in memory only.
        """
        if self._drafter.spec is None:
            name = type(self._drafter).__name__
            raise ValueError(f"drafter {name} has no spec; give it one, or build it from a string")
        stores = {"stores": described(self.stores)} if self.stores else {}
        return {"drafter": self._drafter.spec} | self._config.to_dict() | stores

    @classmethod
    def from_dict(cls, arguments: dict[str, Any]) -> Speculator:
        """Make a Speculator from the result of ``to_dict``."""
        return cls(**arguments)

    @classmethod
    def preset(cls, name: str, **arguments: Any) -> Speculator:
        """Make a Speculator that reproduces a published drafting method; else a ValueError.

        Args:
            name: "akunu" (n-grams of order 4, gamma 4, history 512), "prompt-lookup" (copies of 10
                tokens), "leviathan-bigram" (gamma 3), "token-recycling" (trees of 80 nodes) or
                "rest" (trees of 64 nodes from ``stores`` alone).
            arguments: override the preset's arguments, such as gamma, or add others.
        """
        from ngramspec.decoding.presets import preset_settings

        return cls(**(preset_settings(name) | arguments))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the arguments except on_step to ``ngramspec.json`` in a folder; return its path.

        The folder is created if it does not exist. In one written by ``ngramspec wrap``, the file
        replaces the one that the model uses. A ValueError says that the drafter has no spec.
        """
        from ngramspec.persistence import write_settings

        return write_settings(Path(folder), self.to_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, **arguments: Any) -> Speculator:
        """Make a Speculator from a local folder of ``save_pretrained`` or ``ngramspec wrap``.

        ``arguments`` override the file's, or add others, such as on_step. Nothing is downloaded.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is invalid; the message names it and the problem.
        """
        from ngramspec.persistence import FOLDER, find_settings, read_settings

        path = find_settings(Path(folder))
        wrapped = {"unsupported": "plain"} if path.parent.name == FOLDER else {}
        settings = read_settings(path)
        try:
            return cls.from_dict(wrapped | settings | arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle."""
        from ngramspec.persistence import check_pickles, pickled_drafter

        check_pickles("on_step", self.on_step, "set on_step to None, or to a module's function")
        return self._state() | {"_drafter": pickled_drafter(self._drafter)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        config, rest = config_of_state(state)
        vars(self).update(rest)
        self._drafter = config.drafter(rest["_drafter"])
        self._begin(config)

    def __deepcopy__(self, memo: dict[int, Any]) -> Speculator:
        from ngramspec.persistence import copied_drafter

        other = type(self).__new__(type(self))
        memo[id(self)] = other
        apart = {"_drafter": None, "on_step": None}  # callbacks may hold large objects
        state = copy.deepcopy(self._state() | apart, memo)
        drafter = copied_drafter(self._drafter, memo)
        other.__setstate__(state | {"_drafter": drafter, "on_step": self.on_step})
        return other

    def __copy__(self) -> Speculator:
        return copy.deepcopy(self)

    def _state(self) -> dict[str, Any]:
        """The attributes that a copy shares, with the config as a dictionary."""
        common = {name: value for name, value in vars(self).items() if name not in NOT_COPIED}
        return common | {"_config": self._config.to_dict() | {SAVED: self._config.saved_costs}}

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
        session: str | None = None,
        tools: Any = None,
        inputs_tensor: Any = None,
        generator: torch.Generator | None = None,
        synced_gpus: bool | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode a call that ``model.generate(custom_generate=self)`` has prepared.

        transformers does not pass streamer, tokenizer and synced_gpus to a callable, and rejects
        stop_strings. ``ngramspec.generate`` and ``enabled`` support all four.

        Args:
            model: a transformers model.
            input_ids: the prompt, int64 (batch, n).
            logits_processor: as in ``generate``.
            stopping_criteria: as in ``generate``.
            generation_config, streamer, synced_gpus: as in ``generate``.
            reference_ids: text that the output probably resembles: token ids, or several sequences
                of them. Drafters read it as if it preceded the prompt.
            stores: this call's stores, instead of the Speculator's.
            extra_stores: further stores of this call.
            session: the name of the call's conversation in each namespace, 1..1000 characters.
                A prompt's longest prefix that ends a recent request identifies it, too.
            tools: a ToolCalls, whose calls are predicted in drafts.
            inputs_tensor: the encoder's input, for encoder-decoder models.
            generator: random generator on the prompt's device; None: torch's global one.
            **model_kwargs: the forward's arguments, prepared by ``generate``.

        Returns:
            int64 (batch, prompt + generated), or a ModelOutput with return_dict_in_generate.

        Raises:
            UnsupportedError: the request does not support speculation, and unsupported="error".
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
            session=session,
            tools=tools,
            inputs_tensor=inputs_tensor,
            generator=generator,
            synced_gpus=synced_gpus,
            model_kwargs=model_kwargs,
        )
        return decode_call(self.settings(head_of(generation_config)), call)

    def _drafter_with(self, head: ModelDrafter) -> Drafter:
        from ngramspec.drafters.headed import HeadOfCalls  # most calls have none

        with self._lock:
            self._heads = self._heads or HeadOfCalls()
        return self._heads.drafter(self._drafter, head)

    def _count(self, stats: DecodeStats) -> None:
        """Add a run's counts and times to the statistics."""
        with self._lock:
            self.stats.add(stats)

    def log_once(self, message: str) -> None:
        """Log a warning, unless this Speculator has logged the same one before."""
        with self._lock:
            known = message in self._logged
            self._logged.add(message)
        if not known:
            logger.warning("%s", message)

    def settings(self, head: ModelDrafter | None = None) -> Settings:
        """The settings for a call that begins now; ``head`` drafts in addition to the drafter."""
        config, shared = self._config, self._config.calibration == "shared"
        current = partial(getattr, self, "_drafter")  # may be replaced between two steps
        return Settings(
            config=config,
            drafter=current if head is None else partial(self._drafter_with, head),
            prefill_length=self._prefill_length if shared else PrefillDraftLength(config.longest),
            on_step=self.on_step,
            observer=self.observer,
            count=self._count,
            log_once=self.log_once,
        )
