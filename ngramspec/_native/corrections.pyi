from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

class Comparison:
    def forget(self) -> None: ...

class Corrections:
    mean: npt.NDArray[np.float64]
    covariance: npt.NDArray[np.float64]
    revived: float
    def __init__(
        self, covariance: npt.NDArray[np.float64], fade: float, revived: float
    ) -> None: ...
    def learn(
        self, before: Comparison, features: Iterable[tuple[int, float]], residual: float
    ) -> float: ...
