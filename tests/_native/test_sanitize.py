"""What ``make sanitize`` does to the structures, in an ordinary build: it must not rot."""

from __future__ import annotations

import random

from sanitize.failing import FailingCalls


class Failures:
    """Counts failures as those of an extension's allocations."""

    failed = 0

    def arm(self, rng):
        pass

    def disarm(self):
        failed, self.failed = self.failed, 0
        return failed


def test_what_is_not_done_for_lack_of_memory_is_made_up_for():
    failures, checked = Failures(), []

    class Short:
        """Memory ends after two tokens."""

        def __init__(self):
            self.text = []

        def __len__(self):
            return len(self.text)

        def extend(self, tokens):
            self.text += tokens[:2]
            if len(tokens) > 2:
                failures.failed += 1
                raise MemoryError

        def check_integrity(self):
            checked.append(len(self))

    calls = FailingCalls(failures, random.Random(0))
    short = calls.wrap(Short)()
    short.extend([1, 2, 3, 4])
    short.extend([5])
    assert short.text == [1, 2, 3, 4, 5]
    assert checked == [2]
    assert calls.counts == {"Short()": 1, "Short.extend": 2, "Short.extend, out of memory": 1}
