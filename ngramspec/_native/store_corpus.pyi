from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.store_reader import StoreSource

SEPARATOR_CODE: int
STRIDE: int

class CorpusIndex(StoreSource):
    width: int
    limit: int
    n: int
    m: int
    def __init__(self, sections: Sequence[Any], width: int, limit: int) -> None: ...
    def __len__(self) -> int: ...
    def longest(self, context: NDArray[np.int32]) -> tuple[int, int, int]: ...
    def sizeof(self) -> int: ...

def keys(
    text: NDArray[np.int32], places: NDArray[np.uint32], width: int, step: int
) -> NDArray[np.uint64]: ...
def check_corpus(corpus: CorpusIndex) -> None: ...
