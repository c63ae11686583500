"""The tokens of an engine's row against their twin, and wrong input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_strategies import NOT_INT32_ARRAYS, QUICK, int32

from ngramspec._native.rows import PART, WHOLE, TokenText, agreed, sound_chain, text_hash
from tests import twins as reference

VOCAB = 100
IDS = st.lists(st.integers(-3, VOCAB + 3), max_size=30)


@QUICK
@given(parts=st.lists(IDS, max_size=6), other=IDS)
def test_it_does_what_its_twin_does(parts, other):
    ours, twin, text = TokenText(), reference.TokenText(), []
    for part in parts:
        text += part
        assert ours.begins(int32(text), len(text))
        new, known = (each.append(int32(text), len(text), VOCAB) for each in (ours, twin))
        assert new.tolist() == known.tolist()
        assert new.dtype == np.int32
        assert ours.count == twin.count == len(text)
        assert ours.copy().tolist() == text
        assert ours.hash == twin.hash == text_hash(int32(text), len(text))
        for tokens in (text + other, text[: len(other)] + other, text[:-1], other):
            for length in (len(tokens), len(tokens) // 2):
                asked = int32(tokens), length
                assert ours.begins(*asked) == twin.begins(*asked)
                assert ours.equals(*asked) == twin.equals(*asked)
    assert ours.sizeof() >= 4 * len(text)


def test_the_hash_tells_positions_apart():
    tokens = np.random.default_rng(0).integers(0, 1 << 31, 1000).astype(np.int32)
    whole = text_hash(tokens, 1000)
    for at in (0, 500, 999):
        other = tokens.copy()
        other[at] ^= 1
        assert text_hash(other, 1000) != whole
    assert text_hash(tokens[::-1].copy(), 1000) != whole


def test_of_a_long_text_all_is_compared_by_and_by():
    n = 3 * WHOLE
    text = np.zeros(n + 9, np.int32)
    ours = TokenText()
    ours.append(text, n, VOCAB)
    assert ours.begins(text, n + 9)
    for at in (0, PART - 1, n - PART, n - 1):
        text[at] = 1
        assert not ours.begins(text, n)  # at once
        text[at] = 0
    text[n // 2] = 1
    assert not all(ours.begins(text, n) for _ in range(n // PART + 1))
    assert not ours.equals(text, n)


@pytest.mark.parametrize(("wrong", "said"), NOT_INT32_ARRAYS)
def test_wrong_arrays_change_nothing(wrong, said):
    ours = TokenText()
    ours.append(int32([1, 2]), 2, VOCAB)
    calls = [(each, (wrong, 0)) for each in (ours.begins, ours.equals, text_hash)]
    calls += [(ours.append, (wrong, 0, VOCAB)), (agreed, (wrong, int32([1]), 0, 1))]
    for call, arguments in calls:
        with pytest.raises(TypeError, match="int32"):
            call(*arguments)
    assert not sound_chain(wrong, None, 9, VOCAB)
    assert not sound_chain(int32([1]), wrong, 9, VOCAB)
    assert ours.copy().tolist() == [1, 2]


def test_lengths_outside_are_refused():
    ours, tokens = TokenText(), int32([1, 2, 3])
    ours.append(tokens, 2, VOCAB)
    for call in (ours.begins, ours.equals, text_hash):
        for length in (-1, 4):
            with pytest.raises(ValueError, match=f"length must lie in 0..3, got {length}"):
                call(tokens, length)
    with pytest.raises(ValueError, match="length must be >= 2, the text's, got 1"):
        ours.append(tokens, 1, VOCAB)
    assert ours.copy().tolist() == [1, 2]


def test_agreed_counts_equal_tokens_from_the_first():
    committed = int32([9, 1, 2, 3])
    for drafted, end, count in (
        *(([1, 2, 3, 4], 4, 3), ([1, 2, 3], 3, 2), ([1, 9, 3], 4, 1), ([2], 4, 0), ([], 4, 0)),
    ):
        assert agreed(int32(drafted), committed, 1, end) == count


def test_a_sound_chain_is_what_can_be_verified():
    def sound(tokens, confidence, room=3):
        return sound_chain(int32(tokens), np.array(confidence, np.float32), room, VOCAB)

    assert sound([0, VOCAB - 1], [0.0, 1.0])
    assert sound([], [])
    assert sound_chain(int32([1]), None, 1, VOCAB)
    assert not sound([1, 2, 3, 4], [1] * 4)
    assert not sound([-1], [1])
    assert not sound([VOCAB], [1])
    assert not sound([1], [1, 1])
    for bad in (np.nan, -0.1, 1.1, np.inf):
        assert not sound([1, 2], [0.5, bad])
    assert not sound_chain(int32([1]), np.ones(1), 1, VOCAB)  # float64
