"""The configured object: what a user makes once and hands to ``generate``."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from ngramspec.decoding.distributed import ALONE, ranks_of
from ngramspec.decoding.loop import decode
from ngramspec.decoding.setup import GenerateCall, Settings, make_run, make_target
from ngramspec.draft_length.cost_file import SavedCosts
from ngramspec.draft_length.schedule import PrefillDraftLength, check_gamma, check_tree
from ngramspec.drafters import build_drafter
from ngramspec.drafters.base import Drafter
from ngramspec.errors import UnsupportedError, check_int, check_real
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
from ngramspec.target.dropout import drops_out
from ngramspec.target.padding import FIT, check_width
from ngramspec.target.support import check_adapter, check_prompt, check_request, plain_method
from ngramspec.verification.rule import Rule

logger = logging.getLogger("ngramspec")

GAMMA_LIMIT = 4096
VERIFICATIONS = ("exact", "match", "typical")
OWN = ("stats", "_ahead", "_lock", "_logged")  # attributes that copies make anew


class Speculator:
    """Speculative decoding without a draft model, as transformers' ``custom_generate``.

    Reusable and thread-safe: each call keeps its state to itself, and ``stats`` sums them up.
    Copies and pickles carry the arguments, as they are then, and nothing that was learned or
    counted. A copy has the same ``on_step``; a Drafter object is copied, or where that fails built
    anew from its ``spec``.

    Args:
        drafter: what guesses the next tokens: a string for build_drafter, or a Drafter.
        gamma: tokens proposed in a step: an integer, "heuristic" (grows while whole drafts are
            accepted, shrinks otherwise), or "auto": as many as the expected tokens per cost are
            worth, by what forwards cost here, measured while they run; the heuristic for drafters
            without estimates. Under "auto" the prefill checks a draft behind the prompt as well.
        gamma_max: most tokens proposed in a step, 1..4096.
        tree: "auto": drafts have branches where they are worth what they cost, under gamma="auto"
            and width="fit", if the target can verify trees. None: they are chains. N, 1..4096: they
            are token trees of at most N nodes, where the drafter knows several continuations; N
            takes gamma_max's place. Where the target cannot verify trees (batches, sliding-window
            attention, other attention than sdpa and eager, encoder-decoders), they stay chains;
            ``stats.chains`` says why where N was asked for.
        verification: "exact" keeps the target's text, or distribution; "match" does so without
            looking at a stochastic draft's own probabilities, for the text of plain sampling with
            the same seed; "typical" accepts what the target finds likely enough, which changes
            the distribution.
        lenience: l in (0, 1], of verification "exact". Below 1 a drafted token is accepted where
            p(x) >= l max p (greedy) or with probability min(1, p / (l q)) (sampled): no token's
            probability exceeds p / l, and the text's distribution changes.
        epsilon, delta: of verification "typical": the threshold is min(epsilon, delta exp(-H)),
            H the entropy of the target's distribution in nats; each in (0, 1].
        costs: a file that ``ngramspec calibrate`` saved, for gamma="auto" to begin with; None:
            assumed ones. Either is corrected by what steps take, and what this process has
            measured before counts more. A file of another model, machine or version is not used,
            nor for batches and static caches, which is logged once.
        width: "fit": a forward is as wide as its draft. N, a multiple of 8: every forward after
            the prefill is padded to N positions, so that in bfloat16 too not one token of greedy
            text depends on the drafter (of sampled text: if drafts are not stochastic, or with
            verification "match"). Drafts have at most N - 1 tokens. For batches of one on a
            static cache, or on a dynamic one with eager attention on a CPU; what it does not hold
            for is refused.
        compiled: whether the forwards after the prefill run as compiled graphs, which takes a
            static cache. None: where plain ``generate`` would compile (GPUs, static caches),
            under the call's ``compile_config``; True: on a CPU too; False: never. Under "fit",
            drafts are then padded to a few widths, of which each is compiled when it first comes.
            Under CUDA graphs calls of one model must not overlap, as in plain ``generate``.
        policy: how a drafter built from a string decides between its tiers, see build_drafter.
        unsupported: what to do with a request that cannot be speculated: "error" raises an
            UnsupportedError, "plain" has transformers decode it, which is logged once.
        on_step: called with a StepEvent after the prefill and after every step.

    Raises:
        TypeError, ValueError: an argument is out of its bounds; the message says which.

    Examples:
        >>> Speculator("copy+ngram", gamma=8).to_dict()["gamma"]
        8
    """

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
        unsupported: str = "error",
        on_step: Callable[[StepEvent], None] | None = None,
    ) -> None:
        self._drafter = build_drafter(drafter, policy=policy)
        self.policy = policy
        self.gamma_max = check_int("gamma_max", gamma_max, 1, GAMMA_LIMIT)
        self.tree = check_tree(tree, GAMMA_LIMIT)
        self.gamma = check_gamma(gamma, self._most)
        if verification not in VERIFICATIONS:
            known = ", ".join(map(repr, VERIFICATIONS))
            raise ValueError(f"verification must be one of {known}, got {verification!r}")
        self.verification = verification
        self.costs = None if costs is None else str(costs)
        self._saved = None if costs is None else SavedCosts.read(Path(costs))
        self.lenience = check_real("lenience", lenience, 0.0, 1.0)
        self.epsilon = check_real("epsilon", epsilon, 0.0, 1.0)
        self.delta = check_real("delta", delta, 0.0, 1.0)
        if lenience < 1.0 and verification != "exact":
            raise ValueError(
                f"lenience must be 1.0 with verification={verification!r}, got {lenience}"
            )
        self.width = check_width(width, gamma)
        branches = isinstance(tree, int)
        if width != FIT and (branches or verification == "typical" or lenience < 1.0):
            raise ValueError(
                f"width={width} keeps the text independent of the drafter, which tree, lenience and"
                " verification='typical' do not; remove them, or use width='fit'"
            )
        if compiled is not None and not isinstance(compiled, bool):
            raise TypeError(f"compiled must be True, False or None, got {compiled!r}")
        self.compiled = compiled
        if unsupported not in ("error", "plain"):
            raise ValueError(f"unsupported must be 'error' or 'plain', got {unsupported!r}")
        if on_step is not None and not callable(on_step):
            raise TypeError(f"on_step must be callable or None, got {type(on_step).__name__}")
        self.unsupported = unsupported
        self.on_step = on_step
        self._begin()

    def _begin(self) -> None:
        """Make what this object alone has: what it counts, learns and has logged. See OWN."""
        self.stats = DecodeStats()
        self._ahead = PrefillDraftLength(self._most)
        self._lock = threading.Lock()
        self._logged: set[str] = set()

    @property
    def _most(self) -> int:
        """Most tokens in a draft."""
        return self.tree if isinstance(self.tree, int) else self.gamma_max

    @property
    def drafter(self) -> Drafter:
        """The drafter in use. Setting it takes effect at the next step of every running call,
        which then starts the new one from its committed tokens; in float32 the text stays the
        same whichever drafter runs."""
        return self._drafter

    @drafter.setter
    def drafter(self, drafter: str | Drafter) -> None:
        self._drafter = build_drafter(drafter, policy=self.policy)

    def reset(self) -> None:
        """Set the statistics to zero."""
        with self._lock:
            self.stats.reset()

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make an equal Speculator, as plain JSON values; without on_step.

        Raises:
            ValueError: the drafter is an object that no string describes.
        """
        if self._drafter.spec is None:
            name = type(self._drafter).__name__
            raise ValueError(f"drafter {name} has no spec; give it one, or build it from a string")
        return {
            "drafter": self._drafter.spec,
            "gamma": self.gamma,
            "gamma_max": self.gamma_max,
            "tree": self.tree,
            "verification": self.verification,
            "lenience": self.lenience,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "costs": self.costs,
            "width": self.width,
            "compiled": self.compiled,
            "policy": self.policy,
            "unsupported": self.unsupported,
        }

    @classmethod
    def from_dict(cls, arguments: dict[str, Any]) -> Speculator:
        """The Speculator that ``to_dict`` described; an unknown key is a TypeError."""
        return cls(**arguments)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the arguments, without on_step, into a folder, which is made if need be.

        They go to ``ngramspec.json``; in a folder that ``ngramspec wrap`` wrote to the one in
        ``custom_generate``, so that its model speculates by them.

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
            arguments: what to take in place of the file's, such as on_step.

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
        return self._arguments() | {"_drafter": pickled_drafter(self._drafter)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._drafter = build_drafter(state["_drafter"], policy=self.policy)
        self._begin()

    def __deepcopy__(self, memo: dict[int, Any]) -> Speculator:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        apart = {"_drafter": None, "on_step": None}  # a callback may belong to something large
        state = copy.deepcopy(self._arguments() | apart, memo)
        drafter = copied_drafter(self._drafter, memo)
        other.__setstate__(state | {"_drafter": drafter, "on_step": self.on_step})
        return other

    def __copy__(self) -> Speculator:
        return copy.deepcopy(self)

    def _arguments(self) -> dict[str, Any]:
        """The attributes that a copy has in common with this object."""
        return {name: value for name, value in vars(self).items() if name not in OWN}

    def __repr__(self) -> str:
        drafter = self._drafter.spec or self._drafter
        return f"Speculator({drafter!r}, gamma={self.gamma!r}, gamma_max={self.gamma_max})"

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        streamer: Any = None,
        reference_ids: Any = None,
        inputs_tensor: Any = None,
        generator: torch.Generator | None = None,
        synced_gpus: bool | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode, as ``model.generate(custom_generate=self)`` calls it with all prepared.

        transformers passes no streamer, tokenizer or synced_gpus to a custom_generate callable, and
        checks stop_strings before; ``ngramspec.generate`` and ``enabled`` bring all four.

        Args:
            reference_ids: text that the output will likely resemble, such as the file being
                edited: token ids, or several sequences of them. The drafters read it as if it
                stood before the prompt; the model never does.
            generator: what to sample with, of the prompt's device; None: torch's global one.
            Others as in ``generate``.

        Returns:
            int64 (batch, prompt + generated), or what return_dict_in_generate asks for.

        Raises:
            UnsupportedError: the request cannot be speculated, and unsupported="error".
            ValueError: the prompt is empty or has ids outside the vocabulary.
        """
        if model_kwargs.get("use_cache", True) is None:  # not said: there is one, so it is used
            model_kwargs["use_cache"] = True
        ranks = ALONE
        settings = self.settings()
        try:
            check_request(generation_config)
            check_adapter(model)
            ranks = ranks_of(model, input_ids.device, synced_gpus)
            target = make_target(settings, ranks, model, input_ids, generation_config, model_kwargs)
        except UnsupportedError as error:
            method = plain_method(generation_config)
            if self.unsupported == "error" or method is None:
                raise
            plain = getattr(type(model), method)
            own = {"streamer": streamer, "generator": generator}
            given = {name: value for name, value in own.items() if value is not None}
            for name in given:
                if name not in signature(plain).parameters:
                    raise UnsupportedError(f"{name} cannot be used here: {error}") from error
            self.log_once(f"decoding without speculation: {error}")
            return plain(
                model,
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                synced_gpus=ranks.synced,
                **given,
                **model_kwargs,
            )
        check_prompt(model, input_ids, model_kwargs)
        asked = GenerateCall(
            config=generation_config,
            processors=logits_processor,
            criteria=stopping_criteria,
            streamer=streamer,
            reference_ids=reference_ids,
            encoded=inputs_tensor,
            generator=generator,
        )
        if drops_out(model):
            self.log_once(
                "the model is in training mode, where dropout changes every forward, and so the"
                " text, with speculation and without; call model.eval()"
            )
        run = make_run(settings, ranks, target, asked)
        try:
            sequences = decode(run)
        finally:
            with self._lock:
                self.stats.add(run.stats)
        record = run.choosing.record
        output = target.output(sequences, record.scores, record.logits)
        logger.info(
            "%d tokens in %d target calls after the prefill: %.2f per call",
            run.stats.emitted,
            run.stats.target_calls,
            run.stats.tokens_per_call,
        )
        if streamer is not None:
            streamer.end()
        return output

    def log_once(self, message: str) -> None:
        """Log a warning, the same one only once for this Speculator."""
        with self._lock:
            known = message in self._logged
            self._logged.add(message)
        if not known:
            logger.warning("%s", message)

    def settings(self) -> Settings:
        """The arguments as they are now, for a call that begins."""
        return Settings(
            drafter=lambda: self._drafter,
            gamma=self.gamma,
            most=self._most,
            tree=self.tree,
            rule=lambda sample, generator: Rule(
                sample, self.verification, self.lenience, self.epsilon, self.delta, generator
            ),
            saved=self._saved,
            width=None if isinstance(self.width, str) else self.width,
            compiled=self.compiled,
            on_step=self.on_step,
            ahead=self._ahead,
            log=self.log_once,
        )
