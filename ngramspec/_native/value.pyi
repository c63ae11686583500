from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._native.calibration import Calibration
from ngramspec._native.store_reader import Familiar, StoreSource

class ValueEngine:
    calibration: Calibration
    def __init__(
        self,
        calibration: Calibration,
        copies: bool = True,
        counts: bool = True,
        falls_back: bool = True,
        min_match: int = 2,
        store: StoreSource | None = None,
        recycles: bool = False,
        headed: bool = False,
        familiar: Familiar | None = None,
    ) -> None: ...
    def set_head_rows(
        self,
        before: npt.NDArray[np.int32],
        ids: npt.NDArray[np.int32],
        log_probs: npt.NDArray[np.float32],
        depth: int = 0,
    ) -> None: ...
    def fix(self, tokens: npt.NDArray[np.int32], shares: npt.NDArray[np.float32]) -> None: ...
    def recycle(
        self,
        tokens: npt.NDArray[np.int32],
        ids: npt.NDArray[np.int32],
        log_probs: npt.NDArray[np.float32],
        accepted: Sequence[int] = (),
    ) -> None: ...
    def store_counts(self) -> tuple[int, int]: ...
    def credit_store(self, n: int) -> None: ...
    def __len__(self) -> int: ...
    def draft(
        self, gamma: int, cost: npt.NDArray[np.float32] | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int8]]: ...
    def draft_tree(
        self, gamma: int, cost: npt.NDArray[np.float32] | None = None
    ) -> tuple[
        npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int8]
    ]: ...
    def extend(self, tokens: npt.NDArray[np.int32]) -> None: ...
    def rehearse(self, tokens: npt.NDArray[np.int32]) -> None: ...
    def sizeof(self) -> int: ...
    def check_integrity(self) -> None: ...
