"""A Speculator's settings in one frozen object, which checks them when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch

from ngramspec.draft_length.schedule import check_gamma, check_tree
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.registry import CALIBRATIONS, build_drafter, check_policy
from ngramspec.errors import check_choice, check_int, check_real
from ngramspec.hf_model.compiled import FIT, check_width
from ngramspec.verification.rule import Rule

if TYPE_CHECKING:
    from ngramspec.costs.saved import SavedCosts

MAX_GAMMA = 4096  # draft tokens of a step
VERIFICATIONS = ("exact", "match", "typical")
UNSUPPORTED = ("error", "plain")
SAVED = "saved_costs"  # the field that is not in dictionaries
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The settings of a Speculator: its arguments of the same names.

    Attributes:
        saved_costs: the content of the file ``costs`` when it was read. A copy keeps it.

    Raises:
        TypeError: a setting has the wrong type; the message names it.
        ValueError: a setting is out of bounds, or two settings exclude each other.
        OSError: the file ``costs`` cannot be read.
    """

    gamma: int | str = "auto"
    gamma_max: int = 64
    tree: int | str | None = "auto"
    verification: str = "exact"
    lenience: float = 1.0
    epsilon: float = 0.09
    delta: float = 0.3
    costs: str | None = None
    width: int | str = FIT
    compiled: bool | None = None
    policy: str = "value"
    calibration: str = "shared"
    unsupported: str = "error"
    saved_costs: SavedCosts | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_int("gamma_max", self.gamma_max, 1, MAX_GAMMA)
        check_tree(self.tree, MAX_GAMMA)
        check_gamma(self.gamma, self.longest)
        check_choice("verification", self.verification, VERIFICATIONS)
        if self.costs is not None:
            self._set("costs", str(self.costs))
            if self.saved_costs is None:
                from ngramspec.costs.saved import SavedCosts

                self._set(SAVED, SavedCosts.read(Path(self.costs)))
        for name in ("lenience", "epsilon", "delta"):
            self._set(name, check_real(name, getattr(self, name), 0.0, 1.0))
        if self.lenience < 1.0 and self.verification != "exact":
            raise ValueError(
                f"lenience must be 1.0 with verification={self.verification!r}, got {self.lenience}"
            )
        check_width(self.width, self.gamma)
        changes = isinstance(self.tree, int) or self.verification == "typical"
        if self.width != FIT and (changes or self.lenience < 1.0):
            raise ValueError(
                f"width={self.width} keeps the text independent of the drafter, which tree,"
                " lenience and verification='typical' do not; remove them, or use width='fit'"
            )
        if self.compiled is not None and not isinstance(self.compiled, bool):
            raise TypeError(f"compiled must be True, False or None, got {self.compiled!r}")
        check_policy(self.policy)
        check_choice("calibration", self.calibration, CALIBRATIONS)
        check_choice("unsupported", self.unsupported, UNSUPPORTED)

    def _set(self, name: str, value: object) -> None:
        """Normalize a field of the object under construction."""
        object.__setattr__(self, name, value)

    @property
    def longest(self) -> int:
        """Maximum tokens of a draft."""
        return self.tree if isinstance(self.tree, int) else self.gamma_max

    @property
    def fixed_width(self) -> int | None:
        """Positions of every forward after the prefill; None: each is as wide as its draft."""
        return self.width if isinstance(self.width, int) else None

    @property
    def planned_gamma(self) -> int | str:
        """``gamma``, or with a fixed width the most tokens that fit, as they cost nothing extra."""
        if self.fixed_width is None or isinstance(self.gamma, int):
            return self.gamma
        return min(self.longest, self.fixed_width - 1)

    def rule(self, do_sample: bool, generator: torch.Generator | None) -> Rule:
        """Make a call's verification rule; generator None: torch's global one."""
        return Rule(
            do_sample, self.verification, self.lenience, self.epsilon, self.delta, generator
        )

    def drafter(self, spec: str | Drafter, stores: Sequence[Any] = ()) -> Drafter:
        """Build a Speculator's drafter; see ``build_drafter``."""
        return build_drafter(spec, policy=self.policy, stores=stores, calibration=self.calibration)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != SAVED}

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        default = Config().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != default[name]}

    def replaced(self, name: str, value: object) -> Config:
        """A copy with another value of one setting, checked."""
        changes: dict[str, Any] = {name: value}
        if name == "costs":
            changes[SAVED] = None  # read again for another file
        return replace(self, **changes)


NAMES = tuple(Config().to_dict())


def config_of_state(state: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The config of a pickled Speculator's state, and the rest of that state.

    Version 0.1 kept each setting as a separate attribute, and the saved costs as ``_saved``.
    """
    rest = dict(state)
    if "_config" in rest:
        settings = rest.pop("_config")
    else:
        settings = {name: rest.pop(name) for name in NAMES if name in rest}
        settings[SAVED] = rest.pop("_saved", None)
    return Config(**settings), rest


class Setting(Generic[T]):
    """A Speculator's attribute that reads a field of its config, and replaces the config."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, speculator: Any, owner: type) -> T:
        return cast(T, self if speculator is None else getattr(speculator.config, self._name))

    def __set__(self, speculator: Any, value: T) -> None:
        speculator.configure(speculator.config.replaced(self._name, value))
