"""No request's text reaches another request's drafts, unless both name one namespace."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec import SharedStore, Speculator, build_drafter
from ngramspec.drafters.registry import _factories

SECRET = np.arange(1000, 1040, dtype=np.int32)
PUBLIC = np.array([5, 6, 7, 8, 9, 5, 6, 7, 8, 5, 6, 7], np.int32)
SPECS = [
    "auto",
    "copy",
    "copy(min_match=1)",
    "ngram",
    "ngram(mode=backoff)",
    "ngram(window=64)",
    "ngram(order=2,sample=True)",
    "unigram",
    "unigram(sample=True)",
    "copy+ngram(order=3,window=99)+unigram",
    "none",
    "recycle",
    "store",
]
CASES = [(spec, policy) for spec in SPECS for policy in ("value", "priority")]
COST = np.ones(66, np.float32)


def said(drafter, tokens, output, asked):
    """A request that says ``output``; what was drafted, in order."""
    drafts = []
    session = drafter.start(tokens)
    session.begin_sampling(1.0, (1, 2, 3))
    for at in range(0, len(output), 3):
        for tree in asked:
            draft = session.propose(16, COST[:18], tree=tree)
            drafts.append(
                (draft.tokens.tolist(), None if draft.parents is None else draft.parents.tolist())
            )
            new = output[at : at + 3]
            matching = 0
            while matching < min(len(draft), len(new)) and draft.parents is None:
                if draft.tokens[matching] != new[matching]:
                    break
                matching += 1
            if len(draft) and not tree:
                session.observe(draft, range(matching), min(len(draft), matching + 1))
        session.extend(new)
    session.close()
    return drafts


def drafted(drafts):
    return {token for tokens, _ in drafts for token in tokens}


def secret_request(drafter):
    """Its text begins as the public one, and goes on with what nobody else may learn."""
    text = np.concatenate((PUBLIC, SECRET, PUBLIC, SECRET, PUBLIC, SECRET))
    said(drafter, text[:20], text[20:], (False, True))


def public_request(drafter):
    return said(drafter, PUBLIC, np.tile(PUBLIC, 3), (False, True))


def test_every_drafter_is_tried():
    """But a model, which may say anything by itself: only its sequence's own tokens reach it."""
    assert {spec.split("(")[0] for spec in SPECS} >= {"auto", *_builtin()} - {"model", "random"}


def _builtin():
    return {name for name, factory in _factories.items() if isinstance(factory, str)}


@pytest.mark.parametrize(("spec", "policy"), CASES)
@pytest.mark.parametrize("calibration", ["shared", "request"])
def test_no_token_of_another_request_is_drafted(spec, policy, calibration):
    drafter = build_drafter(spec, policy=policy, calibration=calibration)
    secret_request(drafter)
    after = public_request(drafter)
    assert not drafted(after) & set(SECRET.tolist())


@pytest.mark.parametrize(("spec", "policy"), CASES)
def test_with_a_calibration_by_request_the_drafts_are_those_of_a_first_request(spec, policy):
    drafter = build_drafter(spec, policy=policy, calibration="request")
    secret_request(drafter)
    fresh = build_drafter(spec, policy=policy)
    assert public_request(drafter) == public_request(fresh)


def test_with_a_shared_calibration_they_are_not_so():
    drafter = build_drafter("auto")
    for _ in range(5):
        secret_request(drafter)
    assert public_request(drafter) != public_request(build_drafter("auto"))


def asked_for_the_secret(drafter):
    """What is drafted where the secret request's text goes on with the secret."""
    return said(drafter, PUBLIC[-4:], PUBLIC[:3], (False, True))


@pytest.mark.parametrize("named", ["b", "a"])
def test_what_a_namespace_holds_reaches_those_that_name_it(named):
    store = SharedStore(1 << 20)
    secret_request(build_drafter("auto", stores=[store["a"]], calibration="request"))
    after = asked_for_the_secret(
        build_drafter("auto", stores=[store[named]], calibration="request")
    )
    assert bool(drafted(after) & set(SECRET.tolist())) is (named == "a")
    if named == "b":
        nothing = SharedStore(1 << 20)["b"]
        assert after == asked_for_the_secret(build_drafter("auto", stores=[nothing]))
        assert store["b"].statistics().added == 3


def test_a_dropped_and_a_cleared_namespace_say_nothing():
    store = SharedStore(1 << 20)
    for name, forget in (("a", store["a"].clear), ("b", lambda: store.drop("b"))):
        secret_request(build_drafter("auto", stores=[store[name]]))
        assert store[name].statistics().tokens > 90
        forget()
        after = asked_for_the_secret(build_drafter("auto", stores=[store[name]]))
        assert not drafted(after) & set(SECRET.tolist())


def test_the_option_of_a_speculator_reaches_its_drafter():
    speculator = Speculator("copy+ngram(window=64)", calibration="request")
    assert speculator.drafter.by_request
    speculator.calibration = "shared"
    assert not speculator.drafter.by_request
    speculator.calibration = "request"
    assert speculator.drafter.by_request
    speculator.drafter = "auto"
    assert speculator.drafter.by_request
    assert speculator.settings().prefill_length is not speculator.settings().prefill_length
    assert Speculator.from_dict(speculator.to_dict()).drafter.by_request
    with pytest.raises(ValueError, match="calibration must be 'shared' or 'request', got 'own'"):
        Speculator(calibration="own")
