"""Corrections of costs, learned from time differences between steps; see ``costs.model``.

O(n^2) per step; only a generation's first step allocates memory.
"""

from libc.math cimport M_PI, exp, fmax, sqrt

import numpy as np

cdef double NOISE = 0.1         # initial standard deviation of the logarithm of a step's time
cdef double QUIETEST = 0.02     # its minimum
cdef double HEARD = 0.05        # weight of a new step in its estimate
cdef double SWINGS = 0.1        # probability that the machine's speed changes within a step
cdef double RANGE = 3.0         # range of the logarithm of such a change
cdef double RECENT = 0.45       # weight of earlier steps in the average the next is compared with


cdef class Comparison:
    """What one generation's next step is compared with: a decaying average of its last steps."""

    cdef double[::1] features   # (n,), of their forwards; None: no step yet
    cdef double residual        # of the logarithm of their times, relative to the assumed ones

    def __cinit__(self):
        self.features = None


cdef class Corrections:
    """A linear model of logarithms of times, learned from differences between steps.

    One thread at a time. ``covariance``, float64 (n, n), is that of the coefficients before any
    measurement, and ``fade`` the share of the knowledge that is forgotten at each step. ``revived``
    is the share of the initial uncertainty that is restored after a change of the machine's speed:
    with a higher share, new costs are learned sooner, but stalls distort known costs more.
    """

    cdef readonly object mean, covariance   # of the coefficients, float64 (n,) and (n, n); views
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
        """Learn from a step; return P(no change of the machine's speed affected its time).

        The step is compared with ``before`` and added to it. ``features`` are pairs (index, value),
        0 elsewhere; ``residual`` is the logarithm of the step's time / the assumed time. After an
        IndexError or ValueError nothing was learned.
        """
        cdef Py_ssize_t n = self._mean.shape[0], at
        cdef double likely = 1.0, error = residual, recent
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
            recent = RECENT if begun and likely >= 0.5 else 0.0  # 0: the speed changed
            for at in range(n):
                before.features[at] = recent * before.features[at] + (1.0 - recent) * now[at]
            before.residual = recent * before.residual + (1.0 - recent) * residual
        return likely

    cdef void forget_some(self) noexcept nogil:
        """Forget a little: what is not measured again returns to the assumption."""
        cdef double kept = self._keep * self._keep
        cdef Py_ssize_t n = self._mean.shape[0], i, j
        for i in range(n):
            self._mean[i] *= self._keep
            for j in range(n):
                self._covariance[i, j] = (
                    kept * self._covariance[i, j] + (1.0 - kept) * self._before[i, j]
                )

    cdef double update(self, double error) noexcept nogil:
        """Correct the coefficients by a predicted difference's error; return P(it is theirs)."""
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
        revived = (1.0 - likely) * self.revived  # so that a repeated change is learned
        for i in range(n):
            gain = likely / variance * self._spread[i]
            self._mean[i] += gain * error
            for j in range(n):
                self._covariance[i, j] += revived * self._before[i, j] - gain * self._spread[j]
        heard = fmax(error * error - known, QUIETEST * QUIETEST)
        self._noise += likely * HEARD * (heard - self._noise)
        return likely
