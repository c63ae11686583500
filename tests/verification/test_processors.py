"""Every logits processor of the installed transformers: the text is plain ``generate``'s."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from batches import RowOracle, batch, row_texts
from conftest import tiny_llama
from families import VOCAB, build
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process

import ngramspec
from ngramspec import Speculator
from ngramspec.hf_model.compat.names import BY_ROW, caller_of

MAX_NEW = 18
LENGTH = 14  # of the prompts, padding included: batch() with three rows
EOS = [9]


def context(ids):
    return ids[:, :LENGTH]


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


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", CASES)
def test_text_is_plain_generate_s(model, name, sample, rows):
    inputs = batch(rows)
    width = inputs["input_ids"].shape[1]
    if width < LENGTH:
        inputs = batch(3)
        inputs = {key: value[2:] for key, value in inputs.items()}
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
        if sample and rows > 1 and name in BY_ROW:
            assert ours.shape[0] == rows  # rows draw each for itself: not the text of the seed
        else:
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


def test_signatures_are_not_inspected_at_every_call(monkeypatch):
    inspected = []
    inner = logits_process.inspect.signature
    monkeypatch.setattr(
        logits_process.inspect, "signature", lambda each: inspected.append(each) or inner(each)
    )

    def processor(input_ids, scores):
        return scores

    apply = caller_of(LogitsProcessorList([processor, processor]))
    del inspected[:]
    scores = torch.zeros(1, 8)
    assert apply(torch.zeros(1, 3, dtype=torch.int64), scores) is scores
    assert inspected == []
