"""Conversion and checks of the closed forms' arguments."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

SUM_TOLERANCE = 1e-4  # rounding error of a sum of many float32 probabilities


def real(name: str, value: ArrayLike, low: float, high: float) -> Float64:
    """``value`` as float64, all of it in low..high; else, or if NaN, a ValueError."""
    array = np.asarray(value, np.float64)
    _check(array, (array >= low) & (array <= high), f"{name} must be in {low:g}..{high:g}")
    return array


def _check(values: Float64, sound: NDArray[np.bool_], message: str) -> None:
    """Raise a ValueError with the first value that is not sound."""
    if not sound.all():
        raise ValueError(f"{message}, got {values[~sound].flat[0]:g}")


def probability(name: str, value: ArrayLike) -> Float64:
    """``value`` as float64, all of it in 0..1."""
    return real(name, value, 0.0, 1.0)


def whole(name: str, value: ArrayLike, low: int) -> Float64:
    """``value`` as float64, all of it whole (or infinity) and >= low; else a ValueError."""
    array = np.asarray(value, np.float64)
    sound = (array >= low) & (array == np.floor(array))
    _check(array, sound, f"{name} must be a whole number >= {low}")
    return array


def distribution(name: str, value: ArrayLike) -> Float64:
    """``value`` (..., vocab) as float64, >= 0, each last axis summing to 1; else a ValueError."""
    array = np.asarray(value, np.float64)
    if not array.ndim or not array.shape[-1]:
        raise ValueError(f"{name} must have shape (..., vocab), got {array.shape}")
    real(name, array, 0.0, np.inf)
    total = np.asarray(array.sum(axis=-1))
    sound = np.asarray(np.abs(total - 1) <= SUM_TOLERANCE)
    _check(total, sound, f"{name} must sum to 1 on its last axis")
    return array


def chain(name: str, value: ArrayLike) -> Float64:
    """``value`` as float64 (n,), probabilities of a chain's positions; else a ValueError."""
    array = probability(name, value)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), got {array.shape}")
    return array


def costs(name: str, value: ArrayLike, positions: int) -> Float64:
    """``value`` as float64, cost[n] > 0 of a forward of n positions, up to ``positions`` at least.

    A ValueError is raised for others. cost[0] is ignored.
    """
    array = np.asarray(value, np.float64)
    if array.ndim != 1 or len(array) <= positions:
        raise ValueError(f"{name} must have at least {positions + 1} entries, got {array.shape}")
    if not (array[1:] > 0).all():
        raise ValueError(f"{name} must be > 0, got {array[1:].min():g}")
    return array


def product(length: Float64, each: Float64) -> Float64:
    """``length`` * ``each``, but 0 for infinity * 0."""
    length, each = np.broadcast_arrays(length, each)
    return np.multiply(length, each, where=each > 0, out=np.zeros(each.shape))
