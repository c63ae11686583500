"""No request's text reaches another request's drafts, unless both name one namespace."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import Characters, DraftModelDouble

from ngramspec import SharedStore, Speculator, ToolCalls, build_drafter
from ngramspec.drafters.registry import _factories

SECRET = np.arange(1000, 1040, dtype=np.int32)
PUBLIC = np.array([5, 6, 7, 8, 9, 5, 6, 7, 8, 5, 6, 7], np.int32)
SPECS = [
    *("auto", "copy", "copy(min_match=1)", "ngram", "ngram(mode=backoff)", "ngram(window=64)"),
    *("ngram(order=2,sample=True)", "unigram", "unigram(sample=True)", "none", "recycle"),
    *("copy+ngram(order=3,window=99)+unigram", "store", "model(toy)", "mtp"),
    *("auto+model(toy)", "auto+mtp"),
]
CASES = [(spec, policy) for spec in SPECS for policy in ("value", "priority")]
COST = np.ones(66, np.float32)


class Head(DraftModelDouble):
    """Expects the next id, and never a token of the secret."""

    def forward(self, tokens, last, most):
        self.read += tokens.tolist()
        ids = np.array([[1 + token % 9, 10] for token in self.read[-last:]], np.int32)
        return ids, np.log(np.tile(np.array([0.9, 0.1], np.float32), (last, 1)))


def said(drafter, tokens, output, asked):
    """A request that says ``output``; what was drafted, in order."""
    drafts = []
    session = drafter.start(tokens)
    session.begin_models(lambda _: Head())
    session.begin_sampling(1.0, (1, 2, 3))
    for at in range(0, len(output), 3):
        parts = np.array_split(output[at : at + 3], len(asked))
        for tree, new in zip(asked, parts, strict=True):
            draft = session.propose(16, COST[:18], tree=tree)
            drafts.append(
                (draft.tokens.tolist(), None if draft.parents is None else draft.parents.tolist())
            )
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
    """A random drafter is not: it may draft any token."""
    own = {name for name, factory in _factories.items() if isinstance(factory, str)}
    assert {spec.split("(")[0] for spec in SPECS} >= {"auto", *own} - {"random"}


@pytest.mark.parametrize(("spec", "policy"), CASES)
def test_no_token_of_another_request_is_drafted(spec, policy):
    drafter = build_drafter(spec, policy=policy)
    secret_request(drafter)
    after = public_request(drafter)
    assert not drafted(after) & set(SECRET.tolist())


@pytest.mark.parametrize(("spec", "policy"), CASES)
def test_with_a_calibration_by_request_the_drafts_are_those_of_a_first_request(spec, policy):
    drafter = build_drafter(spec, policy=policy, calibration="request")
    secret_request(drafter)
    fresh = build_drafter(spec, policy=policy)
    assert public_request(drafter) == public_request(fresh)


@pytest.mark.parametrize("spec", ["auto", "store", "auto+mtp"])
def test_the_arguments_of_another_request_s_tool_call_are_not_predicted(spec):
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": city}}]
    drafter = build_drafter(spec).with_tools(ToolCalls(tools, Characters()))
    begin = '<tool_call>\n{"name": "weather", "arguments": {"city": "'
    call = np.array([*map(ord, begin), *SECRET.tolist(), *map(ord, '"}}\n')], np.int32)
    said(drafter, PUBLIC, call, (False, True))
    after = drafted(said(drafter, PUBLIC, call[: len(begin) + 1], (False, True)))
    assert set(map(ord, "weather")) <= after
    assert not after & set(SECRET.tolist())


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


def test_the_option_of_a_speculator_reaches_its_drafter():
    speculator = Speculator("copy+ngram(window=64)", calibration="request")
    assert speculator.drafter.by_request
    speculator.calibration = "shared"
    assert not speculator.drafter.by_request
    speculator.calibration = "request"
    assert speculator.drafter.by_request
    speculator.drafter = "auto"
    assert speculator.drafter.by_request
    given = ("model", "input_ids", "logits_processor", "stopping_criteria", "generation_config")
    one, other = (speculator.request(**dict.fromkeys(given), model_kwargs={}) for _ in range(2))
    assert one.prefill_length is not other.prefill_length
    assert Speculator.from_dict(speculator.to_dict()).drafter.by_request
    with pytest.raises(ValueError, match="calibration must be 'shared' or 'request', got 'own'"):
        Speculator(calibration="own")
