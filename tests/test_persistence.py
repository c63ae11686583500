"""A Speculator outside of its process: copies, pickles, and settings in a folder."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path

import pytest
import torch
from conftest import tiny_llama
from doubles import oracle
from plain_text import PROMPT

import ngramspec
from ngramspec import Drafter, Speculator, build_drafter
from ngramspec.drafters import CalibratedDrafter, NGramDrafter, ValueDrafter
from ngramspec.drafters.known import NullSession

GREEDY = {"max_new_tokens": 24, "do_sample": False}


def by_pickle(speculator):
    return pickle.loads(pickle.dumps(speculator))


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": by_pickle}
SPECS = [
    "auto",
    "copy(min_match=3)+ngram(order=3,window=9)+unigram(min_acceptance=0.5)",
    "ngram(order=3,sample=true,temperature=request)",
    "unigram",
    "none",
]


@pytest.fixture(params=COPIES)
def copied(request):
    return COPIES[request.param]


def report(event):
    """A callback that can be pickled."""


@pytest.mark.parametrize("spec", SPECS)
def test_a_copy_is_configured_alike_and_decodes_alike(tiny, copied, spec):
    settings = {"gamma": 7, "gamma_max": 16, "tree": None, "policy": "priority", "lenience": 0.5}
    speculator = Speculator(spec, **settings, unsupported="plain", on_step=report)
    speculator.epsilon = 0.25  # as it is now, not as it was made
    other = copied(speculator)
    assert other is not speculator
    assert other.drafter is not speculator.drafter
    assert type(other.drafter) is type(speculator.drafter)
    assert other.to_dict() == speculator.to_dict()
    assert other.to_dict()["epsilon"] == 0.25
    assert other.on_step is report
    assert vars(other).keys() == vars(speculator).keys()
    expected = tiny.generate(PROMPT, **GREEDY)
    assert torch.equal(expected, tiny.generate(PROMPT, custom_generate=other, **GREEDY))
    assert (other.stats.runs, speculator.stats.runs) == (1, 0)


@pytest.mark.every(4)
def test_a_copy_knows_nothing_that_was_learned(tiny, copied):
    """Its first call drafts what that of a new Speculator does."""
    settings = {"drafter": "auto", "gamma": 6}
    speculator = Speculator(**settings)
    speculator.log_once("once")
    texts = [torch.randint(1, 97, (1, 8)).repeat(1, 4) for _ in range(4)]
    for text in texts:
        tiny.generate(text, custom_generate=speculator, **GREEDY)
    other = copied(speculator)
    assert other.stats == ngramspec.DecodeStats()
    drafted = []
    for each in (Speculator(**settings), other, speculator):
        events = []
        each.on_step = events.append
        for text in texts:
            tiny.generate(text, custom_generate=each, **GREEDY)
        drafted.append([event.drafted for event in events])
    assert drafted[0] == drafted[1]
    assert drafted[0] != drafted[2]


def test_a_copy_drafts_as_much_ahead_of_the_prefill_as_a_new_one(tiny, copied):
    prompt = torch.arange(1, 31).repeat(2)[None]
    speculator = Speculator("copy")
    for _ in range(5):
        tiny.generate(prompt, custom_generate=speculator, **GREEDY)
    ahead = []
    for each in (Speculator("copy"), copied(speculator), speculator):
        each.reset()
        tiny.generate(prompt, custom_generate=each, **GREEDY)
        ahead.append(each.stats.prefill_drafted)
    assert ahead[0] == ahead[1] > ahead[2]


def test_a_drafter_object_stays_of_its_kind(copied):
    """What its spec describes would be another one, under the policy."""
    for drafter in (NGramDrafter(3), CalibratedDrafter(NGramDrafter(2)), ValueDrafter(["copy"], 5)):
        other = copied(Speculator(drafter)).drafter
        assert other is not drafter
        assert type(other) is type(drafter)
        assert other.spec == drafter.spec


def test_copies_share_a_callback_that_cannot_be_copied():
    events = []
    speculator = Speculator("copy", on_step=lambda event: events.append(event))
    assert copy.deepcopy([speculator])[0].on_step is speculator.on_step
    reporter = Reporter()
    reporter.lock = threading.Lock()  # nobody could copy it
    assert copy.deepcopy(reporter.speculator).on_step.__self__ is reporter


class Reporter:
    """Holds the Speculator that calls it."""

    def __init__(self):
        self.speculator = Speculator("copy", on_step=self.take)
        self.lock = None

    def take(self, event):
        """Nothing."""


def test_a_callback_that_holds_the_speculator():
    reporter = pickle.loads(pickle.dumps(Reporter()))
    assert reporter.speculator.on_step.__self__ is reporter
    other = pickle.loads(pickle.dumps(reporter.speculator))
    assert other.on_step.__self__.speculator is other


class Mine(Speculator):
    """Has a constructor of its own."""

    def __init__(self, name):
        super().__init__("copy", 3)
        self.name = name


class Simple(Drafter):
    def __init__(self, number):
        self.number = number

    def start(self, tokens):
        return NullSession()


def test_subclasses_and_users_drafters_keep_what_they_added(copied):
    other = copied(Mine("a"))
    assert (type(other), other.name, other.gamma) == (Mine, "a", 3)
    other = copied(Speculator(Simple(3))).drafter
    assert (type(other), other.number) == (Simple, 3)


def test_costs_travel_with_a_copy(tiny, tmp_path, copied):
    from ngramspec.costs.saved import SavedCosts, described

    path = tmp_path / "costs.json"
    SavedCosts(described(tiny, "sdpa", tiny.device), {64: {1: 1.0, 8: 1.5}}).write(path)
    speculator = Speculator(costs=path)
    path.unlink()
    saved = copied(speculator)._saved_costs
    assert saved == speculator._saved_costs
    assert saved.seconds == {64: {1: 1.0, 8: 1.5}}


# In a folder


def test_save_pretrained_and_back(tmp_path):
    speculator = Speculator("copy(min_match=5)+ngram", 7, gamma_max=16, unsupported="plain")
    path = speculator.save_pretrained(tmp_path / "new/folder")
    assert path == tmp_path / "new/folder/ngramspec.json"
    assert json.loads(path.read_text()) == speculator.to_dict()
    assert [each.name for each in path.parent.iterdir()] == ["ngramspec.json"]
    for place in (path, path.parent, str(path.parent)):
        again = Speculator.from_pretrained(place)
        assert again.to_dict() == speculator.to_dict()
    changed = Speculator.from_pretrained(path.parent, gamma=3, on_step=report)
    assert (changed.gamma, changed.gamma_max, changed.on_step) == (3, 16, report)
    Speculator("copy").save_pretrained(path.parent)
    assert Speculator.from_pretrained(path.parent).drafter.spec == "copy(min_match=2)"


def test_what_cannot_be_saved_leaves_what_was_there(tmp_path):
    Speculator("copy").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="ScriptedDrafter has no spec"):
        Speculator(oracle([])).save_pretrained(tmp_path)
    assert Speculator.from_pretrained(tmp_path).drafter.spec == "copy(min_match=2)"
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="folder must be a folder, got the file .*/file"):
        Speculator("copy").save_pretrained(tmp_path / "file")


def test_two_threads_that_save_at_once_write_two_files(tmp_path, monkeypatch):
    speculator, rename, saved = Speculator("copy"), Path.replace, []

    def renamed(new, path):
        if not saved:  # another thread saves before this one renames its file
            saved.append(new)
            speculator.save_pretrained(tmp_path)
        return rename(new, path)

    monkeypatch.setattr(Path, "replace", renamed)
    speculator.save_pretrained(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["ngramspec.json"]


def test_a_link_is_replaced_and_not_written_through(tmp_path):
    (tmp_path / "other.json").write_text("another's")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/ngramspec.json").symlink_to(tmp_path / "other.json")
    Speculator("copy").save_pretrained(tmp_path / "in")
    assert (tmp_path / "other.json").read_text() == "another's"
    read = Speculator.from_pretrained(tmp_path / "in").drafter
    assert read.source_names == build_drafter("copy").source_names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gamma": 0}', r"/ngramspec\.json: gamma must be in 1\.\.64, got 0"),
        ('{"gama": 3}', r"/ngramspec\.json: .*'gama'"),
        ('{"drafter": "cpy"}', r"/ngramspec\.json: drafter: 'cpy' is no drafter's name"),
        ("[]", r"/ngramspec\.json: must hold an object, got list"),
        ("{", r"/ngramspec\.json: Expecting property name"),
        ("\udcff", r"/ngramspec\.json: .*utf-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, text, message):
    (tmp_path / "ngramspec.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message):
        Speculator.from_pretrained(tmp_path)


def test_what_is_not_there_is_named_and_not_downloaded(tmp_path):
    for place, message in (
        (tmp_path, "neither ngramspec.json nor custom_generate/ngramspec.json in folder .*local"),
        ("someone/some-model", "no file or folder someone/some-model; .* local files only"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            Speculator.from_pretrained(place)


def test_a_wrapped_folder_has_one_settings_file(tmp_path):
    """It is read and written where its model looks, and left out when a model is wrapped."""
    from ngramspec.wrap.wrapped import wrap

    tiny_llama().save_pretrained(tmp_path / "model")
    Speculator("ngram").save_pretrained(tmp_path / "model")
    wrap(tmp_path / "model", tmp_path / "out", {"drafter": "copy", "gamma": 5})
    assert not (tmp_path / "out/ngramspec.json").exists()
    read = Speculator.from_pretrained(tmp_path / "out")
    assert read.to_dict() == Speculator("copy", 5).to_dict()
    path = Speculator("copy", 6).save_pretrained(tmp_path / "out")
    assert path == tmp_path / "out/custom_generate/ngramspec.json"
    read = Speculator.from_pretrained(tmp_path / "out")
    assert (read.gamma, read.unsupported) == (6, None)
