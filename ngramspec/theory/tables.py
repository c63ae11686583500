"""Published tables to compare the closed forms with.

Leviathan et al. 2023: Table 1 (operations and speed), Table 4 (predicted against measured speed on
T5-XXL, 11B), Table 5 and appendix A.5 (lenience). Figures are as printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec.theory.operations import operations_factor
from ngramspec.theory.walltime import improvement


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """A row of Table 1, with c = c_hat = 0.

    Attributes:
        operations, speed: arithmetic operations and inference speed / the baseline's, as printed.
    """

    alpha: float
    gamma: int
    operations: float
    speed: float

    def computed(self) -> tuple[float, float]:
        """Operations and speed by Theorems 3.11 and 3.8."""
        return (
            float(operations_factor(self.alpha, self.gamma)),
            float(improvement(self.alpha, self.gamma)),
        )


@dataclass(frozen=True, slots=True)
class Walltime:
    """A row of Table 4: the speed of T5-XXL with a smaller T5, at temperature 0 (argmax) or 1.

    Attributes:
        gamma, alpha, c: inputs of the prediction; alpha and c are rounded to two digits.
        expected, measured: improvement factors, as printed, rounded to one digit.
    """

    task: str
    draft: str
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float
    measured: float

    def computed(self) -> float:
        """The improvement by Theorem 3.8 from the printed, rounded alpha and c."""
        return float(improvement(self.alpha, self.gamma, self.c))

    def computed_range(self) -> tuple[float, float]:
        """Minimum and maximum improvement, given that alpha and c are rounded to two digits."""
        half = 0.005
        return (
            float(improvement(self.alpha - half, self.gamma, self.c + half)),
            float(improvement(self.alpha + half, self.gamma, self.c - half)),
        )


TABLE_1 = (
    Tradeoff(0.6, 2, 1.53, 1.96),
    Tradeoff(0.7, 3, 1.58, 2.53),
    Tradeoff(0.8, 2, 1.23, 2.44),
    Tradeoff(0.8, 5, 1.63, 3.69),
    Tradeoff(0.9, 2, 1.11, 2.71),
    Tradeoff(0.9, 10, 1.60, 6.86),
)

TABLE_4 = (
    Walltime("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Walltime("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Walltime("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Walltime("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Walltime("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Walltime("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Walltime("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Walltime("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Walltime("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Walltime("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Walltime("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Walltime("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)

LENIENCE = (1.0, 0.5, 0.3, 0.1)

# Alpha on the EnDe task with standard sampling, by draft, at each LENIENCE.
TABLE_5 = {
    "unigram": (0.07, 0.10, 0.11, 0.16),
    "bigram": (0.19, 0.23, 0.25, 0.32),
    "T5-small": (0.62, 0.71, 0.76, 0.84),
    "T5-base": (0.68, 0.80, 0.83, 0.90),
}

# Speeds in appendix A.5 for T5-small with c = 0.015: sampled, from Table 5's alpha; and greedy,
# from the separate alpha below with gamma = 8.
LENIENCE_C = 0.015
LENIENCE_SPEED = (2.5, 3.1, 3.6, 5.0)
GREEDY_LENIENCE_ALPHA = (0.75, 0.75, 0.80, 0.87)
GREEDY_LENIENCE_GAMMA = 8
GREEDY_LENIENCE_SPEED = (3.3, 3.3, 3.9, 4.9)
