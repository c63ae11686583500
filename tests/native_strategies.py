"""What the tests of the native structures share: inputs, salt, twins, threads, lack of memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ngramspec._native import common
from ngramspec._native.copyindex import CopyIndex

LAST_ID = 2**31 - 1
EXAMPLES = settings.default.max_examples * 3 // 2  # fewer in make quick
QUICK = settings(max_examples=EXAMPLES, stateful_step_count=30, derandomize=True)
LONG = settings(max_examples=2000, stateful_step_count=60)
needs_rlimit = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux enforces RLIMIT_AS"
)


def int32(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@contextlib.contextmanager
def salted(salt: int) -> Iterator[None]:
    """Give the structures made meanwhile a salt that is known."""
    own = common.salt()
    common.set_salt(salt)
    try:
        yield
    finally:
        common.set_salt(own)


# Few distinct ids, so that contexts come back, but from all over the range.
TOKEN_IDS = st.one_of(
    st.integers(0, 3),
    st.sampled_from([255, 256, 65535, 65536, 2**24, LAST_ID - 1, LAST_ID]),
    st.integers(0, LAST_ID),
)
VOCABULARIES = st.lists(TOKEN_IDS, min_size=1, max_size=12, unique=True)
INDICES = st.integers(0, 11)
CHUNKS = st.one_of(
    st.lists(INDICES, max_size=30),
    st.builds(  # a motif, repeated
        lambda motif, times: motif * times,
        st.lists(INDICES, min_size=1, max_size=5),
        st.integers(2, 12),
    ),
)
TEXTS = st.builds(
    lambda ids, chunks: [ids[i % len(ids)] for chunk in chunks for i in chunk],
    VOCABULARIES,
    st.lists(CHUNKS, max_size=4),
)

# value, what the message must say of it
MISALIGNED = np.frombuffer(bytes(9), np.int32, count=2, offset=1)
NOT_INT32_ARRAYS = [
    pytest.param(np.array([1, 2]), "int64", id="int64"),
    pytest.param(np.array([1, 2], np.uint32), "uint32", id="uint32"),
    pytest.param(np.array([1, 2], ">i4"), ">i4", id="big-endian"),
    pytest.param(np.array([1.0, 2.0], np.float32), "float32", id="float32"),
    pytest.param([1, 2], "list", id="list"),
    pytest.param("12", "str", id="str"),
    pytest.param(np.ones((1, 2), np.int32), r"int32 of shape \(1, 2\)", id="2-D"),
    pytest.param(np.ones(4, np.int32)[::2], r"int32 of shape \(2,\)", id="strided"),
    pytest.param(MISALIGNED, r"int32 of shape \(2,\)", id="misaligned"),
    pytest.param(memoryview(np.ones(2, np.int32)), "memoryview", id="no array"),
]
NOT_TOKENS = [
    *NOT_INT32_ARRAYS,
    pytest.param(None, "NoneType", id="None"),
    pytest.param(7, "int", id="int"),
    pytest.param(np.array(7, np.int32), r"int32 of shape \(\)", id="0-D"),
]


def copy_index(text: Sequence[int]) -> CopyIndex:
    index = CopyIndex()
    index.extend(int32(text))
    return index


def assert_same_draft(native: tuple, twin: tuple) -> None:
    """Equal arrays of equal dtypes, and equal numbers."""
    for ours, theirs in zip(native, twin, strict=True):
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
        np.testing.assert_array_equal(ours, theirs)


class TwinMachine(RuleBasedStateMachine):
    """Grows a native structure and its twin alike; subclasses make both and compare answers."""

    def begin(self, ids: list[int], native, twin) -> None:
        self.ids = ids
        self.native = native
        self.twin = twin
        self.text: list[int] = []

    def tokens(self, indices: list[int]) -> list[int]:
        return [self.ids[i % len(self.ids)] for i in indices]

    def commit(self, tokens: list[int]) -> None:
        self.native.extend(int32(tokens))
        self.twin.extend(tokens)
        self.text += tokens

    @rule(indices=CHUNKS)
    def extend(self, indices):
        self.commit(self.tokens(indices))

    @rule(start=st.integers(0, 300), length=st.integers(1, 40))
    def repeat(self, start, length):
        """What a text does that is worth drafting: come back to something."""
        start %= len(self.text) + 1
        self.commit(self.text[start : start + length])

    @invariant()
    def intact(self):
        self.native.check_integrity()
        assert len(self.native) == len(self.twin)


def run_beside(
    extend: Callable[[], None], calls: dict[str, Callable[[], object]]
) -> dict[str, int]:
    """Make ``calls`` while another thread runs ``extend``: how often each was refused, by name.

    Anything but a result or a RuntimeError about the other thread is raised.
    """
    refused = dict.fromkeys(calls, 0)
    other = threading.Thread(target=extend)
    other.start()
    while other.is_alive():
        for name, call in calls.items():
            try:
                call()
            except RuntimeError as error:
                if "used by another thread" not in str(error):
                    raise
                refused[name] += 1
    other.join()
    return refused


_LIMITED = """
import contextlib, resource
import numpy as np
from ngramspec._native.copyindex import CopyIndex
from ngramspec._native.ngram import NGramTable

MB = 1 << 20
rng = np.random.default_rng(0)

@contextlib.contextmanager
def memory(headroom):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + int(headroom), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

def fill(structure, stream, headroom):
    # Feed the stream until memory ends: how many tokens are in.
    with memory(headroom):
        try:
            for start in range(0, len(stream), 4096):
                structure.extend(stream[start : start + 4096])
        except MemoryError as error:
            said = str(error)
        else:
            raise AssertionError("memory did not end")
    structure.check_integrity()
    tokens = int(said.split(" at ")[1].split()[0])  # "copy index at 1234 tokens"
    assert 0 < tokens < len(stream)
    return tokens
"""


def run_short_of_memory(body: str) -> None:
    """Run ``body`` in a process of its own, with ``memory(headroom)`` and ``fill`` at hand."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED + body],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed leaves the process
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
