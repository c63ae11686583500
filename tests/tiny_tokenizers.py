"""Tokenizers: of letters, and those whose tokens can be parts of a character."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast


class Letters:
    def __init__(self, letters="abcdefgh "):
        self.letters = letters

    def get_vocab(self):
        return {letter: i for i, letter in enumerate(self.letters)}

    def encode(self, text, add_special_tokens):
        assert add_special_tokens is False
        return [self.letters.index(letter) for letter in text]


def letters(known: dict[str, int] | None = None, special: Sequence[str] = (), **settings: str):
    """A tokenizer of characters: token n is the character n + 32, or as ``known`` says."""
    characters = Tokenizer(models.BPE(known or {chr(n + 32): n for n in range(97)}, merges=[]))
    characters.decoder = decoders.Fuse()
    characters.add_special_tokens([AddedToken(each, special=True) for each in special])
    return PreTrainedTokenizerFast(tokenizer_object=characters, **{"pad_token": " "} | settings)


def over_bytes(*merges: tuple[str, str]):
    """A tokenizer whose tokens are bytes, and those of the merges."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    plain = Tokenizer(models.BPE({each: at for at, each in enumerate(pieces)}, list(merges)))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain)
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    tokenizer.add_tokens([AddedToken("<tool>é", normalized=False)])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return tokenizer


def with_fallback():
    """A tokenizer of pieces as SentencePiece's, which has bytes for all other characters."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehins漢"]
    known = {each: at for at, each in enumerate(pieces)}
    plain = Tokenizer(models.BPE(known, [], unk_token="<unk>", byte_fallback=True))
    space = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    plain.normalizer = normalizers.Sequence(space)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    plain.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", unk_token="<unk>")
