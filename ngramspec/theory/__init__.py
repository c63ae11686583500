"""Closed forms of speculative decoding from alpha, gamma and costs. NumPy only.

``acceptance``: how often a drafted token is accepted; ``walltime``: how much faster it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngramspec.draft import Float64

SUM_TOLERANCE = 1e-4  # rounding error of a sum of many float32 probabilities


def real(name: str, value: ArrayLike, high: float = np.inf) -> Float64:
    """``value`` as float64, all of it in 0..high; else, or if NaN, a ValueError."""
    array = np.asarray(value, np.float64)
    _check(array, (array >= 0) & (array <= high), f"{name} must be in 0..{high:g}")
    return array


def _check(values: Float64, sound: NDArray[np.bool_], message: str) -> None:
    """Raise a ValueError with the first value that is not sound."""
    if not sound.all():
        raise ValueError(f"{message}, got {values[~sound].flat[0]:g}")


def probability(name: str, value: ArrayLike) -> Float64:
    """``value`` as float64, all of it in 0..1."""
    return real(name, value, 1.0)


def whole(name: str, value: ArrayLike) -> Float64:
    """``value`` as float64, all of it whole (or infinity) and >= 0; else a ValueError."""
    array = np.asarray(value, np.float64)
    sound = (array >= 0) & (array == np.floor(array))
    _check(array, sound, f"{name} must be a whole number >= 0")
    return array


def distribution(name: str, value: ArrayLike) -> Float64:
    """``value`` (..., vocab) as float64, >= 0, each last axis summing to 1; else a ValueError."""
    array = np.asarray(value, np.float64)
    if not array.ndim or not array.shape[-1]:
        raise ValueError(f"{name} must have shape (..., vocab), got {array.shape}")
    real(name, array)
    total = np.asarray(array.sum(axis=-1))
    sound = np.asarray(np.abs(total - 1) <= SUM_TOLERANCE)
    _check(total, sound, f"{name} must sum to 1 on its last axis")
    return array
