"""Prompts to fill in the middle: each family's form, other files, and what is left out."""

from __future__ import annotations

import pytest
from serving import letters
from tokenizers import AddedToken, pre_tokenizers

from ngramspec.server.bodies import ExtraFile
from ngramspec.server.prompts import (
    FAMILIES,
    MAX_CHARACTERS_PER_TOKEN,
    FillInTheMiddle,
    TextEncoder,
    family_of,
    fitted,
    next_edit,
    shortened,
)

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


# Each family's form as its model card or paper writes it: prefix P, suffix S, another file F.
FORMS = {
    "Qwen2.5-Coder": "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
    "CodeGemma": "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
    "Granite 4": "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
    "StarCoder2": "<fim_prefix>P<fim_suffix>S<fim_middle>",
    "StarCoder and Granite Code": "<fim_prefix>P<fim_suffix>S<fim_middle>",
    "DeepSeek-Coder": "<\uff5cfim▁begin\uff5c>P<\uff5cfim▁hole\uff5c>S<\uff5cfim▁end\uff5c>",
    "CodeLlama": "▁<PRE>P▁<SUF>S▁<MID>",
    "Codestral": "[SUFFIX]S[PREFIX]P",
}
# The same with another file f.py, whose text is F; own.py is edited.
FILES = {
    "Qwen2.5-Coder": "<|repo_name|>repository\n<|file_sep|>f.py\nF\n<|file_sep|>own.py\n"
    "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
    "StarCoder2": "<repo_name>repository<file_sep>f.py\nF<file_sep>"
    "<fim_prefix>own.py\nP<fim_suffix>S<fim_middle>",
    "Granite 4": "<|reponame|>repository<|filename|>f.py\nF<|filename|>own.py\n"
    "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
    "StarCoder and Granite Code": "<reponame>repository<filename>f.py\nF<filename>own.py\n"
    "<fim_prefix>P<fim_suffix>S<fim_middle>",
    "DeepSeek-Coder": "#f.py\nF\n#own.py\n"
    "<\uff5cfim▁begin\uff5c>P<\uff5cfim▁hole\uff5c>S<\uff5cfim▁end\uff5c>",
    "Codestral": "[SUFFIX]S[PREFIX]+++++ f.py\nF\n\n+++++ own.py\nP",
    "CodeGemma": "f.py\nF<|file_separator|>own.py\n<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
    "CodeLlama": "\n\n--- snippet ---\n\nF\n▁<PRE>P▁<SUF>S▁<MID>",
}


def tokenizer_of(family):
    """A tokenizer of letters with a family's special tokens."""
    tokenizer = letters(fim=False)
    tokenizer.add_special_tokens({"additional_special_tokens": [*family.tokens, *family.ends]})
    return tokenizer


def fim_of(family, tokenizer):
    return FillInTheMiddle(family, TextEncoder(tokenizer))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_is_recognized_and_has_its_form(family):
    tokenizer = tokenizer_of(family)
    assert family_of(tokenizer) is family
    fim = fim_of(family, tokenizer)
    assert tokenizer.decode(fim.prompt("P", "S")) == FORMS[family.name]
    whole = fim.prompt("P", "S", files=[ExtraFile(text="F", filename="f.py")], name="own.py")
    assert tokenizer.decode(whole) == FILES[family.name]
    assert tokenizer.decode(fim.prompt("a", "S", line="P")).replace("aP", "P") == FORMS[family.name]
    assert tokenizer.convert_ids_to_tokens(fim.ends) == [*family.ends, *family.tokens]


def test_special_tokens_in_a_users_file_are_text():
    """Added tokens without the flag of special ones, as those of Qwen2.5-Coder."""
    tokenizer = letters(fim=False)
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in FAMILIES[0].tokens])
    fim = fim_of(family_of(tokenizer), tokenizer)
    name = "<|fim_suffix|>"
    ids = fim.prompt(f"x = '{name}'", "S")
    suffix = tokenizer.convert_tokens_to_ids(name)
    assert ids.count(suffix) == 1
    assert tokenizer.decode(ids) == f"<|fim_prefix|>x = '{name}'{name}S<|fim_middle|>"
    assert suffix in tokenizer(name)["input_ids"], "the tokenizer itself reads it as the token"


@pytest.mark.parametrize(
    ("sizes", "room", "kept"),
    [
        ((10, 2, 5), 20, (10, 2, 5)),
        ((100, 2, 100), 42, (30, 2, 10)),
        ((100, 2, 3), 42, (37, 2, 3)),
        ((5, 2, 100), 42, (5, 2, 35)),
        ((5, 50, 5), 20, (0, 20, 0)),
        ((5, 5, 5), 0, (0, 0, 0)),
    ],
)
def test_what_is_too_long_keeps_what_is_near_the_cursor(sizes, room, kept):
    parts = [list(range(size)) for size in sizes]
    prefix, line, suffix = fitted(parts, room)
    assert (len(prefix), len(line), len(suffix)) == kept
    assert prefix == parts[0][len(parts[0]) - kept[0] :]
    assert line == parts[1][len(parts[1]) - kept[1] :]
    assert suffix == parts[2][: kept[2]]


def test_files_that_do_not_fit_are_left_out_oldest_first():
    tokenizer = letters()
    fim = fim_of(family_of(tokenizer), tokenizer)
    files = [ExtraFile(text="old" * 10, filename="a"), ExtraFile(text="new" * 10, filename="b")]
    text = tokenizer.decode(fim.prompt("P", "S", files=files, room=70))
    assert "newnew" in text
    assert "old" not in text
    for room in range(8, 90):
        assert len(fim.prompt("P" * 30, "S" * 30, files=files, room=room)) <= room


def test_files_that_have_no_place_are_not_encoded(tokenizer):
    fim = fim_of(family_of(tokenizer), tokenizer)
    files = [ExtraFile(text="x" * 20, filename=f"{each}.py") for each in range(50)]
    whole = fim.prompt("def f():\n", "\n", files=files[-3:], name="a.py")
    encoded, encode = [], fim.encode

    def counting(text):
        encoded.append(text)
        return encode(text)

    fim.encode = counting
    assert fim.prompt("def f():\n", "\n", files=files, name="a.py", room=len(whole)) == whole
    assert sum("x" * 20 in text for text in encoded) <= 4  # the three, and the one that is too much
    encoded.clear()
    fim.prompt("a" * 100_000, "b" * 100_000, room=20, files=[ExtraFile(text="c" * 100_000)])
    assert sum(map(len, encoded)) < 4 * 20 * MAX_CHARACTERS_PER_TOKEN
    assert shortened("ab€" * 100, -1).endswith("b€")
    assert len(shortened("€" * 100, 1).encode()) <= MAX_CHARACTERS_PER_TOKEN


def test_text_behind_text_has_no_space_in_front_where_the_tokenizer_would_put_one():
    """As transformers' tokenizer of CodeLlama and mistral-common encode a suffix."""
    family = next(each for each in FAMILIES if each.name == "Codestral")
    tokenizer = tokenizer_of(family)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Metaspace(" ", prepend_scheme="always", split=False)
    fim = fim_of(family, tokenizer)
    assert tokenizer.decode(fim.prompt("P", "S", line="L")) == "[SUFFIX]S[PREFIX] PL"
    whole = fim.prompt("P", "S", line="L", files=[ExtraFile(text="F", filename="f")], name="own")
    assert tokenizer.decode(whole) == "[SUFFIX]S[PREFIX] +++++ f\nF\n\n+++++ own\nPL"


NEXT_EDITS = {  # prompts with the window W, and the answer that changes nothing
    "Zeta": (
        "```a.py\nabove\n<|editable_region_start|>\nW<|user_cursor_is_here|>\n"
        "<|editable_region_end|>\nbelow\n```\n\n### Response:\n",
        "<|editable_region_start|>\nW\n",
    ),
    "Zeta, the window last": (
        "<|fim_prefix|>\nabove\n<|fim_suffix|>\nbelow\n<|fim_middle|>current\nW<|user_cursor|>\n"
        "<|fim_middle|>updated\n",
        "W\n",
    ),
    "Zeta, in order": (
        "<|fim_prefix|>\nabove\n<|fim_middle|>current\n<|user_cursor|>W\n<|fim_suffix|>\nbelow\n"
        "<|fim_middle|>updated\n",
        "W\n",
    ),
    "Zeta 2": (
        "<[fim-suffix]>\nbelow\n<[fim-prefix]>above\n<<<<<<< CURRENT\nW\n=======\nW\n=======\n"
        "<[fim-middle]>",
        "W\n=======\nW\n",
    ),
    "Sweep": (
        "<|file_sep|>original/a.py\nV\n<|file_sep|>current/a.py\nW\n<|file_sep|>updated/a.py\n",
        "W\n",
    ),
}


@pytest.mark.parametrize("name", NEXT_EDITS)
def test_the_window_of_a_next_edit_is_found(name):
    prompt, answer = NEXT_EDITS[name]
    assert next_edit(prompt) == answer
    for part in range(len(prompt)):  # no error in a prompt that is cut
        assert next_edit(prompt[:part]) in answer + "\n"


def test_other_prompts_have_no_window():
    assert next_edit("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>") == ""
    assert next_edit("<<<<<<< CURRENT\n" * 9) == next_edit("") == ""
