from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def worthwhile_heads(
    confidences: Sequence[npt.NDArray[np.float32]],
    curve: npt.NDArray[np.float32],
    chains: bool = True,
) -> list[int]: ...
