"""Online calibration of draft candidates: logistic mixing of acceptance counts.

The mixing is that of the PAQ compressors (Mahoney 2005): each input is the log-odds of a counted
frequency, the weights follow the gradient of coding cost. Counts fade by halving, so that the table
follows the text of today. One table per drafter; its methods run under the GIL, so that sessions
in several threads may share it. A few kilobytes, whatever was seen.
"""

from libc.math cimport expf, logf

import numpy as np

cdef enum:
    HALVE_AT = 600

cdef float RATE = 0.02      # of the weights
cdef float WEIGHT = 0.4     # at the beginning
cdef float BIAS = 0.3       # the constant input
cdef float STRONGEST = 7.6  # log-odds a cell can reach: a probability of 0.9995
cdef float PRIOR = 4.0      # tested candidates that a cell begins with


cdef inline float stretch(float p) noexcept nogil:
    cdef float x = logf(p / (1.0 - p))
    return min(max(x, -STRONGEST), STRONGEST)


cdef class Calibration:
    """Counts and weights of one drafter."""

    def __cinit__(self):
        cdef int i, m, count, rest, s
        cdef float prior
        for i in range(CELLS):
            self._set(i, 0.5)
        for m in range(3):
            for count in range(7):
                for rest in range(7):
                    prior = (count + 0.3) / (count + rest + 1.2) if count else 0.05
                    self._set((m * 7 + count) * 7 + rest, prior)
        for i in range(147, 147 + 120):  # copy, odd cells: the candidate is the copied token
            self._set(i, 0.6 if (i - 147) % 2 else 0.1)
        for i in range(267, 267 + 144):  # resume, likewise
            self._set(i, 0.5 if (i - 267) % 2 else 0.2)
        for s in range(SETS):
            for i in range(INPUTS):
                self.weights[s][i] = WEIGHT

    cdef int _set(self, int i, float prior) except -1:
        self.cells[i].right = PRIOR * prior
        self.cells[i].tested = PRIOR
        self.cells[i].stretch = stretch(prior)
        return 0

    def to_array(self):
        """Every count and weight, float32 (n,): for tests, and to see there is no text in it."""
        cells = [(self.cells[i].right, self.cells[i].tested) for i in range(CELLS)]
        weights = [self.weights[s][i] for s in range(SETS) for i in range(INPUTS)]
        return np.concatenate((np.array(cells, np.float32).ravel(), np.array(weights, np.float32)))

    cdef void mix(self, Candidate* c) noexcept nogil:
        """Set the candidate's probability from its cells."""
        cdef float z = self.weights[c.set][INPUTS - 1] * BIAS
        cdef int i
        for i in range(c.used):
            z += self.weights[c.set][c.input[i]] * self.cells[c.cell[i]].stretch
        z = min(max(z, -12.0), 12.0)
        c.p = 1.0 / (1.0 + expf(-z))

    cdef void learn(self, const Candidate* c, bint right) noexcept nogil:
        """Learn whether a candidate was the next token."""
        cdef float error = (<float>right - c.p) * RATE
        cdef Cell* cell
        cdef int i
        for i in range(c.used):
            cell = &self.cells[c.cell[i]]
            self.weights[c.set][c.input[i]] += error * cell.stretch
            cell.right += right
            cell.tested += 1
            if cell.tested > HALVE_AT:
                cell.right *= 0.5
                cell.tested *= 0.5
            cell.stretch = stretch(cell.right / cell.tested)
        self.weights[c.set][INPUTS - 1] += error * BIAS
