import numpy as np
import numpy.typing as npt

class Calibration:
    def to_array(self) -> npt.NDArray[np.float32]: ...
