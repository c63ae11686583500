"""Encoding prompts: texts, chats, and fill-in-the-middle with the tokens of a model's family.

A tokenizer reads the name of a special token in a text as that token. In a prompt that combines a
template with users' texts, only the template may write such tokens, so ``TextEncoder`` can also
encode these names as text.
"""

from __future__ import annotations

import copy
import re
import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.draft import Int32
from ngramspec.drafters.tool_calls import CLOSE, OPEN
from ngramspec.server.bodies import ExtraFile

PIECE_CHARACTERS = 1 << 15  # of a text in one operation that holds the GIL
THINK, THOUGHT = "<think>", "</think>"
TAGS = (OPEN, CLOSE, THINK, THOUGHT)  # earlier answers contain them
Span = tuple[int, int]
MAX_CHARACTERS_PER_TOKEN = 16  # assumed upper bound of a text's average
ANCHOR = "☺"  # encoded as separate tokens, so that text can be encoded as if it followed text
VEIL = "\ue000"  # from the private use area; no control token's name contains it
COMPARED_FIELDS = ("role", "type")  # templates compare their values, so they are not veiled
USUAL = "{}{{prefix}}{}{{suffix}}{}"  # the order of most families' tokens
FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FIM = USUAL.format(*FIM_TOKENS)
STARCODER_TOKENS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
STARCODER = USUAL.format(*STARCODER_TOKENS)
DEEPSEEK_TOKENS = ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>")
DEEPSEEK = USUAL.format(*DEEPSEEK_TOKENS)
CODELLAMA_TOKENS = ("▁<PRE>", "▁<SUF>", "▁<MID>")
CODELLAMA = USUAL.format(*CODELLAMA_TOKENS)

# The forms of prompts for next-edit models, which return a window of a file changed: the beginning
# of the line before the window, what follows it, and the answer's first line.
NEXT_EDITS = (
    # Zeta: https://github.com/zed-industries/zed/tree/main/crates/zeta_prompt, in all versions
    ("<|editable_region_start|>", "<|editable_region_end|>", "<|editable_region_start|>\n"),
    ("<|fim_middle|>current", "<|fim_", ""),
    ("<<<<<<< CURRENT", "=======\n<[fim-middle]>", ""),
    # Sweep: https://huggingface.co/sweepai/sweep-next-edit-v2-7B, inference.py
    ("<|file_sep|>current/", "<|file_sep|>updated/", ""),
)
CURSORS = re.compile(r"<\|user_cursor(?:_is_here)?\|>")  # marks in a window, not in the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The fill-in-the-middle format of one family of models, with slots such as ``{prefix}``."""

    name: str
    # The special tokens of the templates, which a tokenizer must have, first the prefix's.
    tokens: tuple[str, ...]
    alone: str  # template of a prompt without other files
    with_files: str  # template of a prompt with other files
    before_files: str = ""  # text before the other files if there are any, with its tokens
    file: str  # template of each other file
    after_file: str = ""  # text at the end of each other file, unless it ends with it
    ends: tuple[str, ...] = ()  # that end the middle, besides ``tokens`` and the end of the text
    bare: bool = False  # whether text after other text and a token gets no leading space


FAMILIES = (
    # https://github.com/QwenLM/Qwen2.5-Coder/blob/main/examples/Qwen2.5-Coder-repolevel-fim.py
    Family(
        name="Qwen2.5-Coder",
        tokens=(*FIM_TOKENS, "<|repo_name|>", "<|file_sep|>"),
        alone=FIM,
        with_files="{files}<|file_sep|>{name}\n" + FIM,
        before_files="<|repo_name|>repository\n",
        file="<|file_sep|>{name}\n{text}",
        after_file="\n",
        ends=("<|endoftext|>", "<|fim_pad|>", "<|im_end|>"),
    ),
    # Tokens: https://ai.google.dev/gemma/docs/codegemma/prompt-structure
    # Names and several files: figures 2 and 4 of https://arxiv.org/abs/2406.11409
    Family(
        name="CodeGemma",
        tokens=(*FIM_TOKENS, "<|file_separator|>"),
        alone=FIM,
        with_files="{files}{name}\n" + FIM,
        file="{name}\n{text}<|file_separator|>",
        ends=("<end_of_turn>",),
    ),
    # Order: https://www.ibm.com/granite/docs/models/granite#fim, as Continue's template cites it
    # (https://github.com/continuedev/continue, core/autocomplete/templating). The tokenizer has
    # the tokens of repository and file; their use is not documented, so StarCoder's is assumed.
    Family(
        name="Granite 4",
        tokens=(*FIM_TOKENS, "<|reponame|>", "<|filename|>"),
        alone=FIM,
        with_files="{files}<|filename|>{name}\n" + FIM,
        before_files="<|reponame|>repository",
        file="<|filename|>{name}\n{text}",
        ends=("<|fim_pad|>",),
    ),
    # Sections 5.1 and table 5 of https://arxiv.org/abs/2402.19173
    Family(
        name="StarCoder2",
        tokens=(*STARCODER_TOKENS, "<repo_name>", "<file_sep>"),
        alone=STARCODER,
        with_files="{files}<file_sep><fim_prefix>{name}\n{prefix}<fim_suffix>{suffix}<fim_middle>",
        before_files="<repo_name>repository",
        file="<file_sep>{name}\n{text}",
        ends=("<fim_pad>",),
    ),
    # Tokens: https://huggingface.co/spaces/Fisharp/starcoder-playground (static/formats.md), and
    # llama.cpp's src/llama-vocab.cpp for Granite Code. Infilling with files: not documented.
    Family(
        name="StarCoder and Granite Code",
        tokens=(*STARCODER_TOKENS, "<reponame>", "<filename>"),
        alone=STARCODER,
        with_files="{files}<filename>{name}\n" + STARCODER,
        before_files="<reponame>repository",
        file="<filename>{name}\n{text}",
        ends=("<fim_pad>",),
    ),
    # https://github.com/deepseek-ai/DeepSeek-Coder (README, code insertion and repository level);
    # both at once: not documented.
    Family(
        name="DeepSeek-Coder",
        tokens=DEEPSEEK_TOKENS,  # with full-width bars
        alone=DEEPSEEK,
        with_files="{files}#{name}\n" + DEEPSEEK,
        file="#{name}\n{text}",
        after_file="\n",
        ends=("<|EOT|>",),
    ),
    # https://huggingface.co/codellama/CodeLlama-7b-hf (tokenizer_config.json) and transformers'
    # tokenizer of it; several files as llama.cpp's server shows them (tools/server).
    Family(
        name="CodeLlama",
        tokens=CODELLAMA_TOKENS,
        alone=CODELLAMA,
        with_files="{files}\n" + CODELLAMA,
        file="\n\n--- snippet ---\n\n{text}",
        ends=("▁<EOT>",),
        bare=True,
    ),
    # https://github.com/mistralai/mistral-common (encode_fim in tokens/tokenizers/instruct.py)
    # Several files: Continue's template (core/autocomplete/templating/AutocompleteTemplate.ts)
    Family(
        name="Codestral",
        tokens=("[PREFIX]", "[SUFFIX]"),
        alone="[SUFFIX]{suffix}[PREFIX]{prefix}",
        with_files="[SUFFIX]{suffix}[PREFIX]{files}+++++ {name}\n{prefix}",
        file="+++++ {name}\n{text}",
        after_file="\n\n",
        bare=True,
    ),
)


class TooManyTokensError(ValueError):
    """A text has more tokens than allowed; ``count`` is their number."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} tokens")
        self.count = count


class NotTextError(ValueError):
    """A tokenizer cannot encode the name of a special token as text."""

    def __str__(self) -> str:
        return (
            "they have the name of a special token, which the model's tokenizer cannot encode as"
            " text; remove it"
        )


class TextEncoder:
    """Encodes texts with a copy of a tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.names = tokenizer, control_names(tokenizer)
        self.ids = frozenset(tokenizer.convert_tokens_to_ids(list(self.names)))
        self.spans = finder_of(self.names)
        # Upper bound on the characters of text that one token represents, unless the tokenizer
        # drops characters or encodes a run of unknown ones as one token.
        self.longest = max(map(len, tokenizer.get_vocab()))
        self.lead = leading_tokens(tokenizer)
        self._aliases: dict[str, str] = {}
        self._named: dict[int, int] = {}  # ids of aliases to ids of their control tokens
        self._backend: Any = None
        self._of_prompts: Any = None
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            self._backend, self._of_prompts = self._copy(backend), untruncated(backend)
            split = bool(getattr(tokenizer, "split_special_tokens", False))
            self._of_prompts.encode_special_tokens = split

    def encode_prompt(self, text: str, framed: bool, max_ids: int | None) -> list[int]:
        """The ids of a text in which names of special tokens become these tokens.

        ``framed``: add the tokens that the tokenizer adds to every text, but no second BOS token to
        a text that begins with its name.
        """
        lead = self.lead if framed else []
        if self._of_prompts is None:
            ids = list(self.tokenizer(text, add_special_tokens=framed)["input_ids"])
        else:
            max_found = None if max_ids is None else max_ids + len(lead)
            ids = without_gil(self._of_prompts, text, add_special_tokens=framed, max_ids=max_found)
        if lead and ids[: 2 * len(lead)] == lead * 2:
            ids = ids[len(lead) :]
        if max_ids is not None and len(ids) > max_ids:
            raise TooManyTokensError(len(ids))
        return ids

    def encode(self, text: str, max_ids: int | None = None) -> list[int]:
        """The ids of a text, without control tokens; see ``encode_with``."""
        if max_ids is not None and len(text) > max_ids * self.longest:
            raise TooManyTokensError(len(text) // self.longest)
        if self._backend is None:
            from ngramspec.hf_model.compat.resources import is_slow

            slow = is_slow(self.tokenizer)
            split = {"split_special_tokens": True} if slow else {}  # others have no such argument
            return list(self.tokenizer(text, add_special_tokens=False, **split)["input_ids"])
        return without_gil(self._backend, text, add_special_tokens=False, max_ids=max_ids)

    def encode_with(
        self, text: str, spans: Sequence[Span], marks: Mapping[str, str], max_ids: int
    ) -> list[int]:
        """The ids of a text that has control tokens only at the given spans, in order."""
        if self._backend is None:
            raise NotTextError
        whole = replaced(text, spans, self._aliases.__getitem__)
        for name, mark in marks.items():
            whole = whole.replace(mark, name)
        ids = self.encode(whole, max_ids)
        if self.count(ids):  # the tokenizer's model has the name as ordinary text
            raise NotTextError
        return [self._named.get(id, id) for id in ids]

    def count(self, ids: Sequence[int]) -> int:
        return sum(id in self.ids for id in ids)

    def _copy(self, backend: Any) -> Any:
        """A copy of the tokenizer that reads control tokens only by their aliases."""
        from tokenizers import AddedToken

        backend = untruncated(backend)
        backend.encode_special_tokens = True
        known = {each.content: each for each in backend.get_added_tokens_decoder().values()}
        given = [known[name] for name in self.names]
        self._aliases = {name: random_digits() for name in self.names}
        backend.add_special_tokens(
            [AddedToken(each.content, normalized=each.normalized, special=True) for each in given]
        )
        options = ("single_word", "lstrip", "rstrip")
        same = ({name: getattr(each, name) for name in options} for each in given)
        aliases = zip(self._aliases.values(), same, strict=True)
        backend.add_tokens([AddedToken(name, normalized=False, **own) for name, own in aliases])
        self._named = {
            backend.token_to_id(alias): backend.token_to_id(name)
            for name, alias in self._aliases.items()
        }
        return backend


def leading_tokens(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer adds before every text: its BOS token, or none."""
    first = list(tokenizer("")["input_ids"])[:1]
    bos = getattr(tokenizer, "bos_token_id", None)
    return first if bos is not None and first == [bos] else []


def untruncated(backend: Any) -> Any:
    """A copy of a tokenizer of the tokenizers package that neither truncates nor pads."""
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    return backend


def without_gil(
    backend: Any, text: str, *, add_special_tokens: bool, max_ids: int | None
) -> list[int]:
    """Encode a text with a tokenizer of the tokenizers package, without holding the GIL."""
    (found,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    if max_ids is not None and len(found) > max_ids:
        raise TooManyTokensError(len(found))
    return list(found.ids)


def control_names(tokenizer: Any) -> tuple[str, ...]:
    """The special tokens, and other added tokens that the template or a fill-in format uses."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    known = {name for family in FAMILIES for name in (*family.tokens, *family.ends)}
    known.update(getattr(tokenizer, "chat_control_tokens", None) or ())
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return tuple(
        each.content
        for each in added
        if each.content.strip()
        and (
            each.special
            or each.content in known
            or (each.content in template and each.content not in TAGS)
        )
    )


def finder_of(names: Sequence[str]) -> Callable[[str], list[Span]]:
    """A function from a text to the spans of names in it, the longest where several begin."""
    known, sizes = frozenset(names), sorted({len(each) for each in names}, reverse=True)
    begins = re.compile("|".join({re.escape(each[0]) for each in names}) or r"(?!)")

    def spans(text: str) -> list[Span]:
        found: list[Span] = []
        end = 0
        for match in begins.finditer(text):
            at = match.start()
            fits = (name for size in sizes if (name := text[at : at + size]) in known)
            if at >= end and (longest := next(fits, "")):
                end = at + len(longest)
                found.append((at, end))
        return found

    return spans


def replaced(text: str, spans: Sequence[Span], by: Callable[[str], str]) -> str:
    """A text in which ``by`` gives what replaces the text of each span."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], by(text[start:end])]
        at = end
    return "".join((*parts, text[at:]))


def random_digits() -> str:
    """A text that users cannot guess and that templates do not change."""
    return f"{secrets.randbelow(10**32):032}"


class FillInTheMiddle:
    """Makes prompts in one family's format; names of special tokens in users' texts are text."""

    def __init__(self, family: Family, encoder: TextEncoder) -> None:
        self.family, self.encode = family, encoder.encode
        vocabulary = encoder.tokenizer.get_vocab()
        self._ids: dict[str, str | list[int]] = {name: [vocabulary[name]] for name in family.tokens}
        self._pieces = re.compile(rf"({'|'.join(map(re.escape, family.tokens))}|\{{\w+\}})")
        known = (each for each in (*family.ends, *family.tokens) if each in vocabulary)
        self.ends = tuple(vocabulary[each] for each in known)
        self._lead = encoder.lead

    def prompt(
        self,
        prefix: str,
        suffix: str,
        *,
        line: str = "",
        files: Sequence[ExtraFile] = (),
        name: str = "",
        room: int = sys.maxsize,
    ) -> list[int]:
        """The token ids of a prompt whose continuation is the middle.

        Of more than ``room`` tokens, the least recent files are left out first; then the prefix
        loses its beginning and the suffix its end.
        """
        template = self.family.with_files if files else self.family.alone
        named = not template.partition("{prefix}")[0].endswith(self.family.tokens)
        prefix, line = shortened(prefix, -room), shortened(line, -room)
        suffix = shortened(suffix, room)
        parts = [
            self._encode_after_text(prefix) if named else self.encode(prefix),
            self._encode_after_text(line) if prefix else self.encode(line),
            self._encode_after_text(suffix),
        ]
        parts = fitted(parts, room - len(self._join(template, name, [[], [], []], [])))
        shown: list[list[int]] = []
        if files:
            shown = self._fitting(files, room - len(self._join(template, name, parts, [[]])))
        return self._join(template, name, parts, shown)

    def asked(self, prompt: Int32) -> bool:
        """Whether a prompt, int32 (n,), is a fill-in-the-middle prompt, whoever made it."""
        return bool((prompt == self._ids[self.family.tokens[0]]).any())

    def _join(
        self, template: str, name: str, parts: Sequence[list[int]], files: Sequence[list[int]]
    ) -> list[int]:
        """A prompt of its parts (prefix, line and suffix) and the other files."""
        prefix, line, suffix = parts
        shown = [token for each in files for token in each]
        if files:
            shown = self._ids_of(self.family.before_files) + shown
        slots = {"prefix": prefix + line, "suffix": suffix, "files": shown}
        return self._lead + self._ids_of(template, name=name, **slots)

    def _ids_of(self, template: str, **slots: str | list[int]) -> list[int]:
        """The ids of a template. Text is joined with the slots that are text before encoding."""
        found: list[int] = []
        values = self._ids | {f"{{{name}}}": value for name, value in slots.items()} | {"{end}": []}
        text, token_before, follows_text = "", False, False
        for piece in self._pieces.split(template + "{end}"):
            value = values.get(piece, piece)
            if isinstance(value, str):
                text += value
                continue
            if text:
                found += self._encode_after_text(text) if follows_text else self.encode(text)
            found += value
            follows_text = token_before and piece not in self._ids
            text, token_before = "", token_before or piece in self._ids
        return found

    def _fitting(self, files: Sequence[ExtraFile], room: int) -> list[list[int]]:
        """The ids of the last files that fit into ``room`` tokens."""
        shown: list[list[int]] = []
        end = self.family.after_file
        for each in reversed(files):
            if len(each.text) > max(room, 0) * MAX_CHARACTERS_PER_TOKEN:
                break
            text = each.text.removesuffix(end) + end
            ids = self._ids_of(self.family.file, name=each.filename, text=text)
            room -= len(ids)
            if room < 0:
                break
            shown.append(ids)
        return shown[::-1]

    def _encode_after_text(self, text: str) -> list[int]:
        """The ids of a text that follows other text."""
        if not self.family.bare:
            return self.encode(text)
        return self.encode(ANCHOR + text)[len(self.encode(ANCHOR)) :]


def shortened(text: str, room: int) -> str:
    """Cut what cannot fit into abs(``room``) tokens: the end, or if negative the beginning."""
    max_bytes = room * MAX_CHARACTERS_PER_TOKEN
    if len(text) <= abs(max_bytes) // 4:  # a character has at most four bytes
        return text
    raw = text.encode()
    return (raw[:max_bytes] if max_bytes > 0 else raw[max_bytes:]).decode(errors="ignore")


def fitted(parts: Sequence[list[int]], room: int) -> list[list[int]]:
    """Cut prefix, line and suffix to ``room`` tokens; the suffix gets at least a quarter."""
    prefix, line, suffix = parts
    line = line[-max(room, 0) :] if room > 0 else []
    room = max(room - len(line), 0)
    after = min(len(suffix), max(room - len(prefix), room // 4))
    before = min(len(prefix), room - after)
    return [prefix[len(prefix) - before :], line, suffix[:after]]


def family_of(tokenizer: Any) -> Family | None:
    """The family whose special tokens a tokenizer has, or None."""
    vocabulary = set(tokenizer.get_vocab())
    return next((each for each in FAMILIES if vocabulary.issuperset(each.tokens)), None)


def chat_ids(
    encoder: TextEncoder,
    messages: list[Any],
    tools: list[Any],
    variables: Mapping[str, Any],
    *,
    encode: Callable[[str], list[int]],
    max_ids: int,
) -> list[int]:
    """The ids of the prompt that the model's template makes of messages, tools and variables.

    Without names of control tokens in these, they are those of ``apply_chat_template``, which
    ``encode`` makes. The template gets the messages with a mark in place of each such name, so any
    name in its output is its own, or was made by joining or changing strings of the messages. A
    second rendering finds the latter: in it, every character of names is veiled in the messages.
    """
    marks: dict[str, str] = defaultdict(random_digits)  # by the name that each replaces

    def mark(text: str) -> str:
        return replaced(text, encoder.spans(text), marks.__getitem__)

    messages, tools = mapped(messages, mark, mark), mapped(tools, mark, mark)
    variables = {name: mapped(each, mark, mark) for name, each in variables.items()}
    text = prompt_text(encoder.tokenizer, messages, tools, variables)
    # Templates strip whitespace, and JSON escapes quotes.
    letters = {each for each in "".join(encoder.names) if not each.isspace()} - set("\"'\\")
    veil = str.maketrans(dict.fromkeys(letters, VEIL))
    try:
        second = prompt_text(encoder.tokenizer, veiled(messages, veil), tools, variables)
    except Exception:  # whatever a template raises about characters
        second = ""
    same = len(second) == len(text) and all(
        new in (old, VEIL) for old, new in zip(text, second, strict=True)
    )
    every = encoder.spans(text)
    own = encoder.spans(second) if same else every
    if own == every and not marks:
        ids = encode(text)
        if encoder.count(ids) <= len(own):
            return ids
    return encoder.encode_with(text, own, marks, max_ids)


def veiled(value: Any, veil: Mapping[int, str]) -> Any:
    """A JSON value with translated strings, except names of fields and COMPARED_FIELDS."""

    def translated(text: str) -> str:
        starts = range(0, len(text), PIECE_CHARACTERS)
        return "".join(text[at : at + PIECE_CHARACTERS].translate(veil) for at in starts)

    return mapped(value, translated, str, COMPARED_FIELDS)


def mapped(
    value: Any, by: Callable[[str], str], names_by: Callable[[str], str], kept: Sequence[str] = ()
) -> Any:
    """A JSON value with changed strings and names of fields; the fields ``kept`` keep values."""
    if isinstance(value, str):
        return by(value)
    if isinstance(value, list):
        return [mapped(each, by, names_by, kept) for each in value]
    if isinstance(value, dict):
        return {
            names_by(name): each if name in kept else mapped(each, by, names_by, kept)
            for name, each in value.items()
        }
    return value


def prompt_text(
    tokenizer: Any, messages: list[Any], tools: list[Any], variables: Mapping[str, Any]
) -> str:
    """The text that the model's template renders."""
    settings: dict[str, Any] = {"add_generation_prompt": True, **variables}
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, **settings
    )
    return text


def next_edit(prompt: str) -> str:
    """The answer of a next-edit model that changes nothing; "" if the prompt has no known form."""
    for before, after, first in NEXT_EDITS:
        _, begun, rest = prompt.rpartition(before)
        window, ended, _ = rest.partition("\n")[2].partition(after)
        if begun and ended:
            return first + CURSORS.sub("", window)
    return ""
