import numpy as np
import numpy.typing as npt

from ngramspec._native.calibration import Calibration
from ngramspec._native.copyindex import CopyIndex
from ngramspec._native.ngram import NGramTable

class ValueEngine:
    calibration: Calibration
    copy: CopyIndex
    table: NGramTable
    def __init__(self, calibration: Calibration) -> None: ...
    def draft(
        self, gamma: int, cost: npt.NDArray[np.float32] | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int8]]: ...
    def extend(self, tokens: npt.NDArray[np.int32]) -> None: ...
    def sizeof(self) -> int: ...
