"""The special tokens and prompt formats of fill-in-the-middle, by family of models.

Each comment names the public source of a family's format and what the source leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass

FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FIM = "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"
STARCODER_TOKENS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
STARCODER = "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>"
DEEPSEEK_TOKENS = ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>")
DEEPSEEK = "<\uff5cfim▁begin\uff5c>{prefix}<\uff5cfim▁hole\uff5c>{suffix}<\uff5cfim▁end\uff5c>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The fill-in-the-middle format of one family of models.

    In the templates, ``{files}`` are the other files, ``{name}`` is the name of a file, and
    ``{text}`` its text.
    """

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
        tokens=("▁<PRE>", "▁<SUF>", "▁<MID>"),
        alone="▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>",
        with_files="{files}\n▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>",
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
