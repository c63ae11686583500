"""Corrections of costs, learned from differences between steps; see ``costs.learned``.

Recursive least squares (a Kalman filter without dynamics of its own), in which a difference counts
as much as it is probably no swing of the machine's speed (probabilistic data association,
Bar-Shalom and Tse 1975). O(n^2) a step; nothing is allocated but by a generation's first one.
"""

from libc.math cimport M_PI, exp, fmax, sqrt

import numpy as np

cdef double NOISE = 0.1         # standard deviation of a step's time, at first
cdef double QUIETEST = 0.02     # and at least
cdef double HEARD = 0.05        # weight of a step in what that is taken to be
cdef double SWINGS = 0.1        # probability that the machine's speed changes within a step;
cdef double RANGE = 3.0         # the logarithms of such changes are spread over this range
cdef double RECENT = 0.45       # weight of a step's predecessors, in what the next is compared with


cdef class Comparison:
    """What one generation's next step is compared with: its last steps, decaying."""

    cdef double[::1] features   # (n,), of their forwards; None: there is none
    cdef double residual        # of the logarithm of their times, against what was assumed

    def __cinit__(self):
        self.features = None

    def forget(self):
        """Compare the next step with none."""
        self.features = None


cdef class Corrections:
    """A linear model of logarithms of times, learned from differences between steps.

    One thread at a time.

    Args:
        covariance: float64 (n, n), of the coefficients before anything is measured.
        fade: of what is known, forgotten at each step.
        revived: share of what was unknown at first that is so again after a swing of the machine's
            speed. The more, the sooner other costs are believed, and the more stalls bend those
            that are known.

    Attributes:
        mean: float64 (n,), of the coefficients; a view.
        covariance: float64 (n, n), of them; a view.
        revived: as given; it may change.

    Raises:
        ValueError: a covariance that is not square.
    """

    cdef readonly object mean, covariance
    cdef double[::1] _mean, _difference, _spread
    cdef double[:, ::1] _covariance, _before
    cdef public double revived
    cdef double _keep, _noise

    def __init__(self, covariance, double fade, double revived):
        self._before = np.array(covariance, np.float64, order="C")
        cdef Py_ssize_t n = self._before.shape[0]
        if n != self._before.shape[1]:
            raise ValueError(f"covariance must be square, got {n} x {self._before.shape[1]}")
        self.covariance = np.array(self._before)
        self.mean = np.zeros(n)
        self._covariance, self._mean = self.covariance, self.mean
        self._difference, self._spread = np.zeros(n), np.zeros(n)
        self._keep = 1.0 - fade
        self.revived = revived
        self._noise = NOISE * NOISE     # variance of the logarithm of a step's time

    def learn(self, Comparison before not None, features, double residual):
        """Learn from the time of a step.

        Args:
            before: what it is compared with; the step is taken in.
            features: of the step, as pairs (which, value); all others are 0.
            residual: the logarithm of its time / what was assumed of it.

        Returns:
            the probability that its time was not changed by a swing of the machine's speed.

        Raises:
            IndexError: a feature that there is not; nothing was learned.
            ValueError: a comparison with steps of another number of features; likewise.
        """
        cdef Py_ssize_t n = self._mean.shape[0], at
        cdef double likely = 1.0, error = residual
        cdef bint begun = before.features is not None
        if begun and before.features.shape[0] != n:
            raise ValueError(f"before must have {n} features, got {before.features.shape[0]}")
        cdef double[::1] now = self._difference
        now[:] = 0.0
        for which, value in features:
            at = which
            if not 0 <= at < n:
                raise IndexError(f"feature must be in 0..{n - 1}, got {at}")
            now[at] = value
        if not begun:
            before.features, before.residual = np.zeros(n), 0.0
        with nogil:
            self.forget_some()
            if begun:
                error -= before.residual
                for at in range(n):
                    now[at] -= before.features[at]
                    error -= now[at] * self._mean[at]
                likely = self.update(error)
                for at in range(n):
                    now[at] += before.features[at]
            self.follow(before, residual, 0.0 if not begun or likely < 0.5 else RECENT)
        return likely

    cdef void forget_some(self) noexcept nogil:
        """Forget a little: what is not measured again is as assumed in the end."""
        cdef double kept = self._keep * self._keep
        cdef Py_ssize_t n = self._mean.shape[0], i, j
        for i in range(n):
            self._mean[i] *= self._keep
            for j in range(n):
                self._covariance[i, j] = (
                    kept * self._covariance[i, j] + (1.0 - kept) * self._before[i, j]
                )

    cdef double update(self, double error) noexcept nogil:
        """Correct by the error of a predicted difference.

        Returns:
            the probability that it is an error of the costs, and not the machine's speed.
        """
        cdef double known = 0.0, variance, normal, likely, gain, revived, heard
        cdef Py_ssize_t n = self._mean.shape[0], i, j
        for i in range(n):
            self._spread[i] = 0.0
            for j in range(n):
                self._spread[i] += self._covariance[i, j] * self._difference[j]
            known += self._difference[i] * self._spread[i]
        variance = known + self._noise * (1.0 + (1.0 - RECENT) / (1.0 + RECENT))
        normal = exp(-error * error / variance / 2.0) / sqrt(2.0 * M_PI * variance)
        likely = (1.0 - SWINGS) * normal / ((1.0 - SWINGS) * normal + SWINGS / RANGE)
        revived = (1.0 - likely) * self.revived  # if it comes again, it is believed
        for i in range(n):
            gain = likely / variance * self._spread[i]
            self._mean[i] += gain * error
            for j in range(n):
                self._covariance[i, j] += revived * self._before[i, j] - gain * self._spread[j]
        heard = fmax(error * error - known, QUIETEST * QUIETEST)
        self._noise += likely * HEARD * (heard - self._noise)
        return likely

    cdef void follow(self, Comparison before, double residual, double recent) noexcept nogil:
        """Take a step in; its predecessors weigh ``recent``: 0 as the machine's speed changed."""
        cdef Py_ssize_t at
        for at in range(self._mean.shape[0]):
            before.features[at] = (
                recent * before.features[at] + (1.0 - recent) * self._difference[at]
            )
        before.residual = recent * before.residual + (1.0 - recent) * residual
