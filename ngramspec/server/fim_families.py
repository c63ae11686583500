"""The special tokens and prompt formats of fill-in-the-middle, by family of models.

Each comment names the public source of a family's format and what the source leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass

SNIPPET = "\n\n--- snippet ---\n\n"  # between files, for families without a format for files


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The fill-in-the-middle format of one family of models.

    Attributes:
        name: the family's name.
        prefix, suffix: the tokens before the prefix and before the suffix.
        middle: the token after both, or None.
        suffix_first: whether the suffix comes before the prefix.
        repository: the token before a repository's name, or None.
        after_repository: text after that name.
        file: the token before the name of each file, or None.
        file_text: text before a file's content if there is no ``file`` token; ``{}`` is replaced by
            the file's name.
        after_file: text after each other file, unless the file ends with it.
        separator: the token after each other file, or None.
        own_name: whether the edited file's name is written before its text if there are other
            files.
        name_inside: whether that name comes after the token ``prefix``.
        files_inside: whether the other files also come after the token ``prefix``.
        ends: tokens that end the middle, in addition to those above and the end of the text.
        bare: whether text that follows other text is encoded without a leading space.
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
        needed, used = (self.prefix, self.suffix), (self.middle, self.repository, self.file)
        return tuple(each for each in (*needed, *used, self.separator) if each is not None)


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
    # the tokens of repository and file; their use is not documented, so StarCoder's is assumed.
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
    # llama.cpp's src/llama-vocab.cpp for Granite Code. Infilling with files: not documented.
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
