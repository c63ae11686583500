"""Every logits processor of the installed transformers: results, and the text of ``generate``."""

from __future__ import annotations

import copy
import inspect
from functools import partial

import numpy as np
import pytest
import torch
from batches import RowOracle, batch, row_texts
from conftest import tiny_llama
from families import VOCAB, build
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process

import ngramspec
from ngramspec import Draft, Speculator
from ngramspec.hf_model.compat.package import before
from ngramspec.hf_model.compat.processors import BY_ROW, Histories, paths_of, process_at_once

MAX_NEW = 18
LENGTH = 14  # of the prompts, padding included: batch() with three rows
EOS = [9]


# name -> makes the processor for prompts of int64 (rows, LENGTH)
CASES = {
    "MinLengthLogitsProcessor": lambda k, ids: k(LENGTH + 12, EOS),
    "MinNewTokensLengthLogitsProcessor": lambda k, ids: k(LENGTH, 9, EOS),
    "TemperatureLogitsWarper": lambda k, ids: k(0.7),
    "RepetitionPenaltyLogitsProcessor": lambda k, ids: k(1.4),
    "EncoderRepetitionPenaltyLogitsProcessor": lambda k, ids: k(1.4, ids),
    "TopPLogitsWarper": lambda k, ids: k(0.8),
    "TopKLogitsWarper": lambda k, ids: k(5),
    "TopHLogitsWarper": lambda k, ids: k(0.5),
    "MinPLogitsWarper": lambda k, ids: k(0.1),
    "TypicalLogitsWarper": lambda k, ids: k(0.7),
    "EpsilonLogitsWarper": lambda k, ids: k(0.02),
    "EtaLogitsWarper": lambda k, ids: k(0.02),
    "NoRepeatNGramLogitsProcessor": lambda k, ids: k(2),
    "EncoderNoRepeatNGramLogitsProcessor": lambda k, ids: k(2, ids),
    "SequenceBiasLogitsProcessor": lambda k, ids: k([[[7], 4.0], [[8, 9], -5.0]]),
    "NoBadWordsLogitsProcessor": lambda k, ids: k([[7], [8, 10]], EOS),
    "PrefixConstrainedLogitsProcessor": lambda k, ids: k(
        lambda row, seen: [(int(seen[-1]) * 7 + step + row) % VOCAB for step in range(9)], 1
    ),
    "ForcedBOSTokenLogitsProcessor": lambda k, ids: k(11),
    "ForcedEOSTokenLogitsProcessor": lambda k, ids: k(LENGTH + 10, EOS),
    "InfNanRemoveLogitsProcessor": lambda k, ids: k(),
    "ExponentialDecayLengthPenalty": lambda k, ids: k((4, 1.2), EOS, LENGTH),
    "LogitNormalization": lambda k, ids: k(),
    "SuppressTokensAtBeginLogitsProcessor": lambda k, ids: k([5, 6, 7], LENGTH),
    "SuppressTokensLogitsProcessor": lambda k, ids: k([5, 6, 7]),
    "WatermarkLogitsProcessor": lambda k, ids: k(VOCAB, "cpu", bias=4.0),
    "SynthIDTextWatermarkLogitsProcessor": lambda k, ids: k(
        3, [11, 22, 33], 64, 0, 16, torch.device("cpu")
    ),
}
# Those that need another kind of model, with the reason.
ELSEWHERE = {
    "LogitsProcessor": "the base class",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "holds the model; tested as guidance_scale",
    "ClassifierFreeGuidanceLogitsProcessor": "needs doubled batches of a music model",
    "WhisperTimeStampLogitsProcessor": "Whisper, which overrides generate",
    "WhisperNoSpeechDetection": "Whisper, which overrides generate",
    "AlternatingCodebooksLogitsProcessor": "Bark, which overrides generate",
    "BarkEosPrioritizerLogitsProcessor": "Bark, which overrides generate",
    "DiaClassifierFreeGuidanceLogitsProcessor": "Dia, which overrides generate",
    "DiaEOSChannelFilterLogitsProcessor": "Dia, which overrides generate",
    "DiaEOSDelayPatternLogitsProcessor": "Dia, which overrides generate",
}
KINDS = {
    name: kind
    for name, kind in vars(logits_process).items()
    if inspect.isclass(kind)
    and issubclass(kind, logits_process.LogitsProcessor)
    and kind.__module__ == logits_process.__name__
}


@pytest.fixture(scope="module")
def model():
    return build("llama")


def test_every_class_is_tested_or_listed_with_the_reason():
    assert set(KINDS) == set(CASES) | set(ELSEWHERE)
    assert set(CASES) >= BY_ROW


# More settings of those that read the text, at its beginning, within a step and at its end.
VARIANTS = {
    **{name: [CASES[name]] for name in BY_ROW},
    "ExponentialDecayLengthPenalty": [
        lambda k, ids, n=n: k((n, 1.2), EOS, LENGTH) for n in (-20, 0, 3, 90)
    ],
    "ForcedBOSTokenLogitsProcessor": [lambda k, ids: k(11)],
    "ForcedEOSTokenLogitsProcessor": [lambda k, ids, n=n: k(LENGTH + n, EOS) for n in (2, 4, 90)],
    "MinLengthLogitsProcessor": [lambda k, ids, n=n: k(LENGTH + n, EOS) for n in (-9, 2, 90)],
    "MinNewTokensLengthLogitsProcessor": [
        lambda k, ids, n=n: k(LENGTH, n, EOS) for n in (0, 2, 90)
    ],
    "NoBadWordsLogitsProcessor": [lambda k, ids: k([[7], [8, 10], [3, 3, 4]], EOS)],
    "NoRepeatNGramLogitsProcessor": [lambda k, ids, n=n: k(n) for n in (1, 2, 3, 5, 40)],
    "RepetitionPenaltyLogitsProcessor": [
        lambda k, ids, n=n: k(1.4, n) for n in (None, 0, 1, LENGTH, LENGTH + 2, 90)
    ],
    "SequenceBiasLogitsProcessor": [
        lambda k, ids: k([[[7], 4.0], [[3, 4], -5.0], [[3, 4, 3], 1.5], [[5] * 30, 9.0]])
    ],
    "SuppressTokensAtBeginLogitsProcessor": [
        lambda k, ids, n=n: k([5, 6, 7], LENGTH + n) for n in (-9, 0, 2, 90)
    ],
}
if not before("5.23"):  # a number for each row
    VARIANTS["RepetitionPenaltyLogitsProcessor"].append(
        lambda k, ids: k(1.4, torch.tensor([0, 3, LENGTH + 2]))
    )
CHAIN = Draft(np.array([4, 4, 3, 7, 4], np.int32))
TREE = Draft(np.array([3, 4, 5, 3, 4], np.int32), np.array([-1, 0, 0, -1, 3], np.int32))
DRAFTS = {
    "chain and none": (CHAIN, CHAIN.first(2), CHAIN.first(0)),
    "trees": (TREE, CHAIN.first(3), TREE.first(4)),
}


def histories_of(texts, rows, drafts, positions, batch):
    """Of some rows of a batch, whose texts are of unequal length."""
    ids = torch.full((batch, max(map(len, texts))), 99)
    for row, text in zip(rows, texts, strict=True):
        ids[row, : len(text)] = text
    return Histories(lambda: ids, rows, [len(text) for text in texts], drafts, positions, batch)


def of_row(processor, row):
    """A processor for a row alone."""
    own = copy.copy(processor)
    ignored = getattr(own, "prompt_ignore_length", None)
    if isinstance(ignored, torch.Tensor):
        own.prompt_ignore_length = ignored[row : row + 1]
    return own


@pytest.mark.parametrize("lengths", [(LENGTH, LENGTH - 6, LENGTH + 4), (1, 1, 1), (LENGTH,)])
@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("name", sorted(BY_ROW))
def test_results_at_all_positions_are_those_of_a_call_for_each(name, drafts, lengths):
    """Bit by bit, for rows of unequal length, whose texts have few different tokens."""
    torch.manual_seed(3)
    texts = [torch.randint(3, 6, (each,)) for each in lengths]
    own = DRAFTS[drafts][: len(texts)]
    positions = 1 + max(map(len, own))
    scores = 3 * torch.randn(len(texts) * positions, VOCAB)
    for make in VARIANTS[name]:
        processor = make(KINDS[name], None)
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, torch.Tensor):
            processor.prompt_ignore_length = ignored[: len(texts)]
        histories = histories_of(texts, range(len(texts)), own, positions, len(texts))
        found = process_at_once([processor], histories, scores.clone())
        at = 0
        for row, (text, draft) in enumerate(zip(texts, own, strict=True)):
            for path in paths_of(draft, positions):
                ids = torch.cat((text, torch.tensor(path, dtype=torch.int64)))[None]
                expected = of_row(processor, row)(ids, scores[at : at + 1].clone())
                assert torch.equal(found[at : at + 1], expected), (at, path)
                at += 1
        assert at == len(found)


def test_the_paths_of_a_chain_and_of_a_tree():
    assert paths_of(CHAIN.first(2), 4) == [[], [4], [4, 4], []]
    assert paths_of(TREE, 6) == [[], [3], [3, 4], [3, 5], [3], [3, 4]]


def test_some_rows_of_a_batch_are_processed_by_their_own_settings():
    """The rows that are still walked, of which the others have ended."""
    if before("5.23"):
        pytest.skip("tokens to ignore are one number for all rows")
    ignored = torch.tensor([9, 9, 0, 4])
    processor = KINDS["RepetitionPenaltyLogitsProcessor"](1.4, ignored)
    texts = [torch.tensor([3, 4, 5, 6, 7]), torch.tensor([3, 4, 5, 6])]
    scores = torch.ones(2, VOCAB)
    histories = histories_of(texts, [2, 3], [CHAIN.first(0)] * 2, 1, 4)
    found = process_at_once([processor], histories, scores)
    assert [row.nonzero().flatten().tolist() for row in found != 1] == [[3, 4, 5, 6, 7], []]
    short = KINDS["RepetitionPenaltyLogitsProcessor"](1.4, ignored[:3])
    with pytest.raises(ValueError, match="Incompatible"):
        process_at_once([short], histories, scores)


@pytest.mark.every(10)
@pytest.mark.long
@pytest.mark.parametrize(
    ("sample", "rows"), [(False, 3), (True, 1)], ids=["greedy rows", "one sampled"]
)
@pytest.mark.parametrize(
    ("name", "ahead"),
    [*((each, False) for each in CASES), *((each, True) for each in sorted(BY_ROW))],
)
def test_text_is_plain_generate_s(model, name, ahead, sample, rows, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    inputs = {key: value[-rows:] for key, value in batch(3).items()}
    kwargs = {"do_sample": sample, "max_new_tokens": MAX_NEW, "eos_token_id": EOS}
    kwargs |= {"pad_token_id": 0}

    def processors():
        return LogitsProcessorList([CASES[name](KINDS[name], inputs["input_ids"])])

    torch.manual_seed(5)
    plain = model.generate(**inputs, logits_processor=processors(), **kwargs)
    texts = row_texts(inputs, plain)
    for drafter in ("auto", RowOracle(texts, 0.7)):
        torch.manual_seed(5)
        speculator = Speculator(drafter, 5)
        ours = ngramspec.generate(
            model, **inputs, speculator=speculator, logits_processor=processors(), **kwargs
        )
        assert speculator.stats.drafter_faults == 0
        if ahead and rows == 1:
            assert speculator.stats.host_syncs == speculator.stats.target_calls
        assert torch.equal(plain, ours)


def test_a_processor_with_more_parameters_is_refused_as_in_the_baseline():
    class Processor(LogitsProcessor):  # the signature of a function's ``__call__`` tells nothing
        def __call__(self, input_ids, scores, more=None):
            return scores

    model = tiny_llama()
    ids = torch.tensor([[5, 6, 7]])
    arguments = {"logits_processor": [Processor()], "max_new_tokens": 4, "do_sample": False}
    for call in (model.generate, partial(ngramspec.generate, model)):
        with pytest.raises(ValueError, match="required parameters"):
            call(ids, **arguments)
