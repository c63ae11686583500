"""The Speculator: made once by the user and passed to ``generate``."""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeVar

from ngramspec.costs.policies import PrefillDraftLength
from ngramspec.decoding.observer import Observer
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.registry import Calibrated, Policy
from ngramspec.errors import check_choice
from ngramspec.options import (
    NAMES,
    PRESETS,
    GammaRule,
    Options,
    Unsupported,
    Verification,
    find_options,
    options_file,
)
from ngramspec.stats import PLAIN, DecodeStats, StepEvent
from ngramspec.stores import OpenStore, Store, open_stores

if TYPE_CHECKING:
    import torch

    from ngramspec.costs.saved import SavedCosts
    from ngramspec.decoding.request import Request
    from ngramspec.drafters.headed import HeadOfCalls
    from ngramspec.drafters.model import ModelDrafter

logger = logging.getLogger("ngramspec")
T = TypeVar("T")

GAMMA_NAMES = ("num_speculative_tokens", "num_assistant_tokens", "prompt_lookup_num_tokens")
# Attributes that a copy does not share with the original.
LOCKS = ("_lock", "_assigning")
NOT_COPIED = (*LOCKS, "_options", "stats", "observer", "_prefill_length", "_logged", "_heads")


class Setting(Generic[T]):
    """An option as an attribute: an assigned value is checked, and later calls use it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, speculator: Speculator, owner: type) -> T:
        found: T = getattr(speculator.options, self._name)
        return found

    def __set__(self, speculator: Speculator, value: T) -> None:
        speculator.assign(self._name, value)


class Speculator:
    """Speculative decoding without a draft model, as transformers' ``custom_generate``.

    A Speculator is reusable and thread-safe: each call keeps its own state, and ``stats`` sums up
    all calls. The arguments are also attributes, which can be assigned: the value is checked, and
    calls that begin later use it. Copies and pickles have the current arguments, but no statistics
    and no learned state. A copy shares ``on_step``.

    Args:
        drafter: the draft sources: a string for build_drafter, or a Drafter.
        gamma: draft tokens per step (num_speculative_tokens). An integer is a fixed number, at most
            gamma_max. "heuristic": the number grows while whole drafts are accepted. "threshold": a
            chain ends before the first token whose confidence is below an adaptive threshold.
            "auto": the number that maximizes expected tokens per second, by costs measured during
            decoding. With "auto" the prefill also verifies a draft after the prompt, and drafters
            without estimates use "heuristic".
        gamma_max: the maximum number of draft tokens per step. Integers lie in 1..4096.
        tree: "auto": drafts get branches where these are worth their cost; needs gamma="auto" and
            width="fit". None: drafts are chains. N: drafts are token trees of at most N nodes, and
            N replaces gamma_max. Drafts are chains if the target cannot verify trees. For N,
            stats.limits has the reason. Integers lie in 1..4096.
        verification: "exact": the output has the target's text (greedy) or distribution (sampled).
            "match": also, stochastic drafts give plain generate's text for the same seed, because
            draft probabilities are ignored. "typical": tokens that are probable enough under the
            target are accepted, which changes the distribution.
        lenience: l, for verification "exact". Below 1 a draft token is accepted if p(x) >= l max p
            (greedy), or with probability min(1, p / (l q)) (sampled). No token's probability
            exceeds p / l, and the output's distribution changes. It is > 0 and <= 1.
        epsilon: for verification "typical". The threshold is min(epsilon, delta exp(-H)), where H
            is the target distribution's entropy in nats. It is > 0 and <= 1.
        delta: for verification "typical"; see epsilon. It is > 0 and <= 1.
        costs: a file written by ngramspec calibrate with initial costs for gamma="auto". None:
            assumed costs. Measured step times correct both. A file of another model, machine or
            version is ignored, and so is any file for batches and static caches (logged once).
        width: positions of each forward after the prefill. "fit": as many as the draft needs. N, a
            multiple of 8: forwards are padded to N positions, so that the text is independent of
            the drafts in bfloat16, too (sampled text: if drafts are deterministic or verification
            is "match"). N needs a batch of one, and a static cache or, on a CPU, a dynamic cache
            with eager attention. Integers lie in 8..4096.
        compiled: whether forwards after the prefill run as compiled graphs, which needs a static
            cache. None: where the baseline compiles (GPUs with static caches), with the call's
            compile_config. True: on a CPU, too. False: never. With width="fit", forwards over
            static caches are padded to at most four widths. With CUDA graphs, calls must not
            overlap.
        policy: how several sources are combined. "value": the most probable token at each position,
            from any source. "priority": the sources in their order. See build_drafter.
        calibration: "shared": calls share the learned estimates of how often drafts are right,
            without any text. "request": no call's drafts depend on another call.
        unsupported: what to do with requests that do not support speculation. "error": raise an
            UnsupportedError. "plain": let transformers decode them, which is logged once. None:
            "plain" for enable and wrapped folders, else "error".
        stores: draft sources besides a request's own text: corpora, paths, shared namespaces.
        on_step: called with a StepEvent after the prefill and after every step.

    Attributes:
        options: all arguments in one frozen object.
        stats (DecodeStats): counts and times of all calls since the last ``reset``.
        observer (Observer | None): is notified of the decode loop's sections; not copied.

    Raises:
        TypeError: an argument has the wrong type; the message names it.
        ValueError: an argument is out of bounds, or two arguments exclude each other.
        OSError: the file ``costs`` cannot be read.

    Examples:
        >>> Speculator("copy+ngram", gamma=8).to_dict()["gamma"]
        8
    """

    stats: DecodeStats
    observer: Observer | None
    _saved_costs: SavedCosts | None = None  # the file ``costs`` when it was read; a copy keeps it

    gamma = Setting[int | GammaRule]()
    gamma_max = Setting[int]()
    tree = Setting[int | Literal["auto"] | None]()
    verification = Setting[Verification]()
    lenience = Setting[float]()
    epsilon = Setting[float]()
    delta = Setting[float]()
    costs = Setting[str | Path | None]()
    width = Setting[int | Literal["fit"]]()
    compiled = Setting[bool | None]()
    policy = Setting[Policy]()
    calibration = Setting[Calibrated]()
    unsupported = Setting[Unsupported | None]()
    on_step = Setting[Callable[[StepEvent], None] | None]()

    def __init__(
        self,
        drafter: str | Drafter = "auto",
        gamma: int | GammaRule = "auto",
        *,
        gamma_max: int = 64,
        tree: int | Literal["auto"] | None = "auto",
        verification: Verification = "exact",
        lenience: float = 1.0,
        epsilon: float = 0.09,
        delta: float = 0.3,
        costs: str | Path | None = None,
        width: int | Literal["fit"] = "fit",
        compiled: bool | None = None,
        policy: Policy = "value",
        calibration: Calibrated = "shared",
        unsupported: Unsupported | None = None,
        stores: Sequence[Store] = (),
        on_step: Callable[[StepEvent], None] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise TypeError(_unknown_argument(unknown))
        self._begin(
            Options(
                drafter,
                gamma,
                gamma_max=gamma_max,
                tree=tree,
                verification=verification,
                lenience=lenience,
                epsilon=epsilon,
                delta=delta,
                costs=costs,
                width=width,
                compiled=compiled,
                policy=policy,
                calibration=calibration,
                unsupported=unsupported,
                stores=stores,
                on_step=on_step,
            )
        )
        self._saved_costs = _saved_costs(self.options)

    def _begin(self, options: Options) -> None:
        """Make the state that is not copied: statistics, learned lengths, logged messages."""
        self._options = options
        self.stats = DecodeStats()
        self.observer = None
        self._lock = threading.Lock()
        self._assigning = threading.RLock()  # held while users' factories run, unlike _lock
        self._logged: set[str] = set()
        self._heads: HeadOfCalls | None = None
        self._prefill_length = PrefillDraftLength(options.longest)

    def assign(self, name: str, value: object) -> None:
        """Use another value of an option in calls that begin later."""
        changes: dict[str, Any] = {name: value}
        if name == "drafter" and isinstance(value, Drafter):
            changes["stores"] = ()  # it has its own
        with self._assigning:
            if name == "policy" and self.drafter.spec is not None:  # it is built again
                changes["drafter"] = self.drafter.spec
            options = replace(self.options, **changes)
            if name == "costs":
                self._saved_costs = _saved_costs(options)
            if options.longest != self.options.longest:
                self._prefill_length = PrefillDraftLength(options.longest)
            before, self._options = self._options, options
            if options.drafter is not before.drafter:  # it and its stores are freed
                self._heads = None

    @property
    def options(self) -> Options:
        """All arguments in one frozen object."""
        return self._options

    @property
    def drafter(self) -> Drafter:
        """The drafter in use. When it is assigned, running calls use the new one from their next
        step on, starting from their committed tokens. In float32 the text does not change."""
        drafter = self.options.drafter
        assert isinstance(drafter, Drafter)
        return drafter

    @drafter.setter
    def drafter(self, drafter: str | Drafter) -> None:
        self.assign("drafter", drafter)

    @property
    def stores(self) -> tuple[OpenStore, ...]:
        """Draft sources in addition to each request's own text."""
        return self.drafter.stores

    @stores.setter
    def stores(self, stores: Sequence[Store]) -> None:
        opened = open_stores(stores)
        with self._assigning:
            self.assign("drafter", self.drafter.with_stores(opened))

    def reset(self) -> None:
        """Set the statistics to zero."""
        with self._lock:
            self.stats.reset()

    def to_dict(self) -> dict[str, Any]:
        """The arguments except on_step as plain JSON values, for ``from_dict``.

        A ValueError says that the drafter has no spec, or that a store is in memory only.
        """
        return self.options.to_dict()

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
        check_choice("preset", name, tuple(PRESETS))
        return cls(**(PRESETS[name] | arguments))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the arguments except on_step to ``ngramspec.json`` in a folder; return its path.

        The folder is created if it does not exist. In one written by ``ngramspec wrap``, the file
        replaces the one that the model uses. A ValueError says that the drafter has no spec.
        """
        from ngramspec.files import replaced  # most Speculators are not saved

        text, folder = json.dumps(self.to_dict(), indent=2) + "\n", Path(folder)
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"folder must be a folder, got the file {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        path = options_file(folder)
        with replaced(path) as file:
            file.write(text.encode())
        return path

    @classmethod
    def from_pretrained(cls, folder: str | Path, **arguments: Any) -> Speculator:
        """Make a Speculator from a local folder of ``save_pretrained`` or ``ngramspec wrap``.

        ``arguments`` override the file's, or add others, such as on_step. Nothing is downloaded.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is invalid; the message names it and the problem.
        """
        path = find_options(Path(folder))
        try:
            options = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(options, dict):
                raise ValueError(f"must hold an object, got {type(options).__name__}")
            return cls.from_dict(options | arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that copies and pickles have, and the arguments."""
        kept = {name: value for name, value in vars(self).items() if name not in NOT_COPIED}
        options = self.options
        return kept | {"options": {name: getattr(options, name) for name in NAMES}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        options = rest.pop("options")
        vars(self).update(rest)
        self._begin(Options(**options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Speculator:
        other = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.on_step)] = self.on_step  # copies share it
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def __copy__(self) -> Speculator:
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return repr(self.options)

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
        num_assistant_tokens: int | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode a call that ``model.generate(custom_generate=self)`` has prepared.

        transformers does not pass streamer, tokenizer and synced_gpus to a callable, and rejects
        stop_strings. ``ngramspec.generate`` and ``enable`` support all four.

        Args:
            model: a transformers model.
            input_ids: the prompt, int64 (batch, n).
            logits_processor: as in ``generate``.
            stopping_criteria: as in ``generate``.
            generation_config: as in ``generate``.
            streamer: as in ``generate``.
            synced_gpus: as in ``generate``.
            reference_ids: text that the output probably resembles: token ids, or several sequences
                of them. Drafters read it as if it preceded the prompt.
            stores: this call's stores, instead of the Speculator's. A list of lists has an entry
                for each prompt, of which None keeps the Speculator's.
            extra_stores: further stores of this call.
            session: the name of the call's conversation in each namespace, 1..1000 characters.
                A prompt's longest prefix that ends a recent request identifies it, too.
            tools: a ToolCalls, whose calls are predicted in drafts.
            inputs_tensor: the encoder's input, for encoder-decoder models.
            generator: random generator on the prompt's device; None: torch's global one.
            num_assistant_tokens: draft tokens of each step of this call, in chains, instead of the
                Speculator's ``gamma`` and ``tree``.
            **model_kwargs: the forward's arguments, prepared by ``generate``.

        Returns:
            int64 (batch, prompt + generated), or a ModelOutput with return_dict_in_generate.

        Raises:
            UnsupportedError: the request does not support speculation, unless unsupported="plain".
            ValueError: the prompt is empty or has ids outside the vocabulary.
        """
        from ngramspec.decoding.request import mtp_head
        from ngramspec.decoding.setup import decode

        return decode(
            self.request(
                mtp_head(getattr(generation_config, "use_mtp", None)),
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
                num_assistant_tokens=num_assistant_tokens,
                model_kwargs=model_kwargs,
            )
        )

    def _drafter_with(self, head: ModelDrafter) -> Drafter:
        from ngramspec.drafters.headed import HeadOfCalls  # most calls have none

        with self._lock:
            heads = self._heads = self._heads or HeadOfCalls()
        by_request = self.options.calibration == "request"
        return heads.drafter(self.drafter, head, by_request=by_request)

    def count(self, stats: DecodeStats) -> None:
        """Add a run's counts and times to the statistics."""
        with self._lock:
            self.stats.add(stats)

    def fell_back(self, reason: str) -> None:
        """Count a call that the baseline decodes, and log the reason once."""
        limit = f"{PLAIN}: {reason}"
        self.count(DecodeStats(limits={limit: 1}))
        self.log_once(limit)

    def log_once(self, message: str) -> None:
        """Log a warning, unless this Speculator has logged the same one before."""
        with self._lock:
            known = message in self._logged
            self._logged.add(message)
        if not known:
            logger.warning("%s", message)

    def request(
        self, head: ModelDrafter | None = None, *, unsupported: str = "error", **arguments: Any
    ) -> Request:
        """A call's request. ``head`` drafts, too; ``unsupported`` is used if the option is None."""
        from ngramspec.decoding.request import Request

        options, shared = self.options, self.options.calibration == "shared"
        current = partial(attrgetter("_options.drafter"), self)  # replaced between two steps
        return Request(
            **arguments,
            options=options,
            unsupported=options.unsupported or unsupported,
            saved_costs=self._saved_costs,
            drafter=current if head is None else partial(self._drafter_with, head),
            prefill_length=self._prefill_length if shared else PrefillDraftLength(options.longest),
            observer=self.observer,
            count=self.count,
            log_once=self.log_once,
        )


def _unknown_argument(names: Collection[str]) -> str:
    """The error about unknown arguments of a Speculator."""
    if "logits_processor" in names:  # generate calls the class
        return "custom_generate is the class Speculator; pass custom_generate=Speculator()"
    name = next(iter(names))
    hint = "; the number of draft tokens per step is gamma" if name in GAMMA_NAMES else ""
    return f"Speculator got an unexpected keyword argument {name!r}{hint}"


def _saved_costs(options: Options) -> SavedCosts | None:
    """The content of the file ``costs``."""
    if options.costs is None:
        return None
    from ngramspec.costs.saved import SavedCosts  # most Speculators have none

    return SavedCosts.read(Path(options.costs))
