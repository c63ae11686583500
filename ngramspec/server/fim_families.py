"""The special tokens by which families of models fill in the middle, and the form of their prompts.

Each comment names the public place where a family's form was confirmed, and what was not.
"""

from __future__ import annotations

from dataclasses import dataclass

SNIPPET = "\n\n--- snippet ---\n\n"  # between files, for families without a form for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one family of models fills in the middle.

    Attributes:
        name: of the family.
        prefix, suffix: the tokens before the text's two parts.
        middle: the token behind them; None: there is none.
        suffix_first: whether the suffix comes first.
        repository: the token before the name of a repository, or None.
        after_repository: text behind that name.
        file: the token before the name of each file, or None.
        file_text: what stands before a file's text where there is no ``file`` token; ``{}`` is the
            file's name.
        after_file: text behind each other file, unless the file ends with it.
        separator: the token behind each other file, or None.
        own_name: whether the name of the file that is edited is written before its text, where
            there are other files.
        name_inside: whether that name stands behind ``prefix``.
        files_inside: whether the other files do, too.
        ends: tokens that end what is filled in, beside those above and the end of the text.
        bare: whether text behind other text is encoded without a space in front.
    """

    name: str
    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    repository: str | None = None
    after_repository: str = ""
    file: str | None = None
    file_text: str = SNIPPET
    after_file: str = ""
    separator: str | None = None
    own_name: bool = False
    name_inside: bool = False
    files_inside: bool = False
    ends: tuple[str, ...] = ()
    bare: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that a tokenizer must have."""
        every = (
            *(self.prefix, self.suffix, self.middle),
            *(self.repository, self.file, self.separator),
        )
        return tuple(each for each in every if each is not None)


FAMILIES = (
    # https://github.com/QwenLM/Qwen2.5-Coder/blob/main/examples/Qwen2.5-Coder-repolevel-fim.py
    Family(
        name="Qwen2.5-Coder",
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repository="<|repo_name|>",
        after_repository="\n",
        file="<|file_sep|>",
        after_file="\n",
        own_name=True,
        ends=("<|endoftext|>", "<|fim_pad|>", "<|im_end|>"),
    ),
    # Tokens: https://ai.google.dev/gemma/docs/codegemma/prompt-structure
    # Names and several files: figures 2 and 4 of https://arxiv.org/abs/2406.11409
    Family(
        name="CodeGemma",
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        file_text="{}\n",
        separator="<|file_separator|>",
        own_name=True,
        ends=("<end_of_turn>",),
    ),
    # Order: https://www.ibm.com/granite/docs/models/granite#fim, as Continue's template cites it
    # (https://github.com/continuedev/continue, core/autocomplete/templating). The tokenizer has
    # the tokens of repository and file; how they are used is not documented: as StarCoder does.
    Family(
        name="Granite 4",
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repository="<|reponame|>",
        file="<|filename|>",
        own_name=True,
        ends=("<|fim_pad|>",),
    ),
    # Sections 5.1 and table 5 of https://arxiv.org/abs/2402.19173
    Family(
        name="StarCoder2",
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repository="<repo_name>",
        file="<file_sep>",
        own_name=True,
        name_inside=True,
        ends=("<fim_pad>",),
    ),
    # Tokens: https://huggingface.co/spaces/Fisharp/starcoder-playground (static/formats.md), and
    # llama.cpp's src/llama-vocab.cpp for Granite Code. Files with filling in: not documented.
    Family(
        name="StarCoder and Granite Code",
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repository="<reponame>",
        file="<filename>",
        own_name=True,
        ends=("<fim_pad>",),
    ),
    # https://github.com/deepseek-ai/DeepSeek-Coder (README, code insertion and repository level);
    # both at once: not documented.
    Family(
        name="DeepSeek-Coder",
        prefix="<\uff5cfim▁begin\uff5c>",  # with full-width bars
        suffix="<\uff5cfim▁hole\uff5c>",
        middle="<\uff5cfim▁end\uff5c>",
        file_text="#{}\n",
        after_file="\n",
        own_name=True,
        ends=("<|EOT|>",),
    ),
    # https://huggingface.co/codellama/CodeLlama-7b-hf (tokenizer_config.json) and transformers'
    # tokenizer of it; several files as llama.cpp's server shows them (tools/server).
    Family(
        name="CodeLlama",
        prefix="▁<PRE>",
        suffix="▁<SUF>",
        middle="▁<MID>",
        ends=("▁<EOT>",),
        bare=True,
    ),
    # https://github.com/mistralai/mistral-common (encode_fim in tokens/tokenizers/instruct.py)
    # Several files: Continue's template (core/autocomplete/templating/AutocompleteTemplate.ts)
    Family(
        name="Codestral",
        prefix="[PREFIX]",
        suffix="[SUFFIX]",
        middle=None,
        suffix_first=True,
        file_text="+++++ {}\n",
        after_file="\n\n",
        own_name=True,
        name_inside=True,
        files_inside=True,
        bare=True,
    ),
)
