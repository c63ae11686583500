import numpy as np
from numpy.typing import NDArray

SEPARATOR_CODE: int
WIDE_BYTES: int

def keys(
    text: NDArray[np.int32], places: NDArray[np.uint32], width: int, step: int
) -> NDArray[np.uint64]: ...
def wide_intervals(text: NDArray[np.int32], places: NDArray[np.uint32]) -> NDArray[np.int64]: ...
def count_wide(
    following: NDArray[np.int32], intervals: NDArray[np.int64], limit: int
) -> NDArray[np.uint8]: ...
def slots(intervals: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]: ...
