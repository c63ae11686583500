"""Drafters built from a string."""

from __future__ import annotations

import json

import pytest
from doubles import ids

from ngramspec import Drafter, build_drafter, register_drafter
from ngramspec.drafters import (
    CalibratedDrafter,
    CopyDrafter,
    NGramDrafter,
    NullDrafter,
    PriorityDrafter,
    UnigramDrafter,
    ValueDrafter,
    registry,
)


def test_build_drafter_reads_tiers_and_arguments():
    text = " copy( min_match = 5 ) + ngram(order=3,window=64)+unigram "
    drafter = build_drafter(text, policy="priority")
    assert drafter.source_names == ("copy", "ngram", "unigram")
    copy, ngram, _ = drafter.drafters
    assert (copy.min_match, ngram.order, ngram.window) == (5, 3, 64)
    assert build_drafter(drafter.spec, policy="priority").spec == drafter.spec
    assert build_drafter(drafter) is drafter
    assert isinstance(build_drafter("none"), NullDrafter)
    assert build_drafter("auto").spec == build_drafter(registry.AUTO).spec
    assert build_drafter("ngram(window=none)", policy="priority").window is None


def test_by_value_tiers_that_can_be_compared_are_one_drafter():
    drafter = build_drafter("unigram+copy(min_match=3)+ngram(order=4)")
    assert isinstance(drafter, ValueDrafter)
    assert (drafter.sources, drafter.min_match) == (("unigram", "copy", "ngram"), 3)
    assert drafter.spec == "unigram+copy(min_match=3)+ngram"
    assert build_drafter(drafter.spec).spec == drafter.spec
    for spec in ("copy", "ngram", "unigram", "ngram(mode=value)"):
        assert isinstance(build_drafter(spec), ValueDrafter)


@pytest.mark.parametrize(
    "spec",
    ["ngram(mode=backoff)", "ngram(order=3)", "copy+ngram(window=64)", "copy+copy", "copy+none"],
)
def test_by_value_others_are_asked_in_order_and_calibrated(spec):
    drafter = build_drafter(spec)
    assert isinstance(drafter, CalibratedDrafter)
    assert isinstance(drafter.inner, NGramDrafter | PriorityDrafter)
    assert build_drafter(drafter.spec).spec == drafter.spec
    draft = drafter.start(ids(1, 2, 3, 4, 1, 2)).propose(2)
    assert draft.tokens.tolist() == [3, 4]
    assert draft.confidence.tolist() == [0.5, 0.5]


def test_by_priority_tiers_stay_what_they_are():
    kinds = [CopyDrafter, NGramDrafter, UnigramDrafter]
    source_names = build_drafter("copy+ngram+unigram", policy="priority").drafters
    assert [type(drafter) for drafter in source_names] == kinds
    assert type(build_drafter("ngram", policy="priority")) is NGramDrafter
    with pytest.raises(ValueError, match="policy must be 'value' or 'priority', got 'best'"):
        build_drafter("copy", policy="best")


def test_only_the_sources_asked_for_are_drafted():
    text = ids(1, 2, 3, 4, 5, 6, 1, 2, 9, 9, 9, 1, 2)
    for spec, source_names in (("copy", {"copy"}), ("ngram", {"ngram"}), ("unigram", {"unigram"})):
        drafter = build_drafter(spec)
        draft = drafter.start(text).propose(3)
        assert len(draft) > 0
        assert {drafter.source_names[i] for i in draft.source} == source_names


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        *(("cpy+ngram", "cpy"), ("copy+ngrm(order=4)", "ngrm"), ("none(x=1)", "x=1")),
        *(("copy+ngram(order=9)", "ngram(order=9)"), ("ngram(odrer=3)", "odrer=3")),
        *(("ngram(order=3,order=4)", "order=4"), ("ngram(order)", "order")),
        *(("ngram(order=)", "order="), ("copy+ngram(order=3", "ngram(order=3")),
        *((spec, spec) for spec in ("ngram(order=x)", "ngram(order=4)x", "copy(min_match=0)")),
        *((spec, spec) for spec in ("ngram(order=4,window=3)", "unigram(min_acceptance=2)")),
        *((spec, "") for spec in ("copy+", "+copy", "copy++ngram", "")),
    ],
)
def test_errors_show_the_bad_part_of_the_string(spec, part):
    with pytest.raises(ValueError, match="^drafter: ") as error:
        build_drafter(spec)
    message, shown, mark = str(error.value).split("\n")
    assert repr(part) in message
    assert shown == "  " + spec
    begin, end = mark.index("^") - 2, len(mark) - 2
    assert spec[begin:end].rstrip("+") == part


@pytest.mark.parametrize("policy", ["value", "priority"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("copy(min_match=3000000000)", r"min_match must be in 1\.\.1073741824, got 3000000000"),
        ("copy(min_match=1073741825)", r"min_match must be in 1\.\.1073741824, got 1073741825"),
        ("ngram(window=2000000000)", r"window must be in 4\.\.1073741824, got 2000000000"),
        ("ngram(order=3,window=2)", r"window must be in 3\.\.1073741824, got 2"),
        ("ngram(sample=sample)+copy", r"sample must be .* got 'sample'"),
    ],
)
def test_values_no_drafter_takes_are_refused_when_it_is_built(spec, said, policy):
    with pytest.raises((TypeError, ValueError), match=said):
        build_drafter(spec, policy=policy)


def test_the_longest_match_that_can_be_asked_for_drafts_nothing():
    for policy in ("value", "priority"):
        session = build_drafter("copy(min_match=1073741824)", policy=policy).start(ids(1, 2, 1, 2))
        assert len(session.propose(4)) == 0


def test_registered_drafters_are_known_by_name():
    class Mine(Drafter):
        source_names = ("mine",)

        def __init__(self, size: int = 1):
            self.size = size

        def start(self, tokens):
            raise NotImplementedError

    register_drafter("mine", Mine)
    try:
        assert build_drafter("copy+mine(size=3)").inner.drafters[1].size == 3
        for name in ("mine", "copy", "auto"):
            with pytest.raises(ValueError, match="exists already"):
                register_drafter(name, Mine)
        for name in ("", "a+b", "a b", "1a"):
            with pytest.raises(ValueError, match="name must be"):
                register_drafter(name, Mine)
    finally:
        del registry._factories["mine"]


PATHS = ["/a (b)/c", "a,b=c", "5", "true", "none", "1e5", ' a "b" ', "C:\\new\\x", "a+b", "ü/é"]


@pytest.mark.parametrize("path", [*PATHS, "a=b", "(", "/plain/path-1.5_b"])
@pytest.mark.parametrize("policy", ["value", "priority"])
def test_any_path_can_be_quoted(path, policy):
    for text in (f"copy+model({json.dumps(path)},gamma=3)", f"model(path={registry.quoted(path)})"):
        drafter = build_drafter(text, policy=policy)
        assert drafter.assistants[0].assistant == path
        assert build_drafter(drafter.spec, policy=policy).spec == drafter.spec
    assert registry.quoted("/plain/path-1.5_b") == "/plain/path-1.5_b"
    with pytest.raises(ValueError, match=r'quote values with brackets: model\("a \(b\)"\)'):
        build_drafter("model(/a (b)/c)")
    with pytest.raises(ValueError, match=r"is no JSON string"):
        build_drafter('model("a\\x")')
