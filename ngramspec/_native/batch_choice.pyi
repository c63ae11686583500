from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def worthwhile_heads(
    confidences: Sequence[npt.NDArray[np.float32]],
    curve: npt.NDArray[np.float32],
    chains: bool = True,
    lasting: float = 1.0,
    weights: Sequence[float] | None = None,
    rate: float = ...,
) -> list[int]: ...
def may_pay(curve: npt.NDArray[np.float32], rows: int, k: int, rate: float = 1.0) -> bool: ...
def generous_cost(curve: npt.NDArray[np.float32], rows: int, k: int) -> npt.NDArray[np.float32]: ...
