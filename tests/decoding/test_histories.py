"""What drafters read before the first token: of each row, and nothing but tokens."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import tiny_llama
from doubles import draft_of
from families import ENCODER_DECODER, VOCAB, build
from fuzz import models
from plain_text import same_text, three_ways
from transformers import GenerationConfig

import ngramspec
from ngramspec import Drafter, DraftSession, Speculator

GREEDY = {"do_sample": False, "max_new_tokens": 20}


class Reads(Drafter):
    """Drafts one token, and remembers what each session began with."""

    source_names = ("reads",)

    def __init__(self):
        self.texts = []

    def start(self, tokens):
        self.texts.append(tokens.tolist())
        return Five()


class Five(DraftSession):
    def propose(self, gamma, cost=None, *, tree=False):
        return draft_of([5][:gamma])

    def extend(self, tokens):
        return None


@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_several_sequences_of_one_encoded_text(name):
    model = build(name)
    ids = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    reads = Reads()
    asked = {"num_return_sequences": 3, "attention_mask": mask, "max_new_tokens": 4}
    torch.manual_seed(0)
    plain = model.generate(ids, do_sample=True, **asked)
    torch.manual_seed(0)
    ours = ngramspec.generate(
        model, ids, speculator=Speculator(reads, 3), do_sample=True, output_scores=True,
        return_dict_in_generate=True, **asked,
    )  # fmt: skip
    assert ours.sequences.tolist() == plain.tolist()
    begins = [text[:6] for text in reads.texts]
    assert begins == [ids[row // 3, :6].tolist() for row in range(6)]
    lengths = [len(text) for text in reads.texts]
    assert lengths == [11] * 3 + [8] * 3  # and the decoder's first two


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_pixels_of_integers_are_no_ids(dtype):
    image = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    encoder = transformers.ViTConfig(num_attention_heads=2, image_size=8, patch_size=4, **image)
    sizes = {"vocab_size": VOCAB, "d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 16}
    decoder = transformers.TrOCRConfig(decoder_attention_heads=2, is_decoder=True, **sizes)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    model.generation_config.update(decoder_start_token_id=2, pad_token_id=0, eos_token_id=None)
    pixels = torch.randint(0, 255, (1, 3, 8, 8)).to(dtype)
    same_text(model, Speculator(), None, pixel_values=pixels, max_new_tokens=20)


def test_ids_beside_embeddings_are_read_as_far_as_they_are_tokens():
    model = tiny_llama()
    ids = torch.tensor([[5, 6, -200, 8, 5, 6, 7]])
    embeds = model.get_input_embeddings()(ids.clamp(min=0))
    reads = Reads()
    for drafter in ("auto", reads):
        given = {"inputs_embeds": embeds, "max_new_tokens": 20}
        assert same_text(model, Speculator(drafter), ids, **given).drafter_faults == 0
    assert reads.texts[0][:6] == [5, 6, 8, 5, 6, 7]


def test_ids_beside_those_of_images_are_refused_outside_the_vocabulary():
    """The image's id lies after the vocabulary of this model."""
    model = models.model_of("gemma3 image, its id beyond", 0, "default", "float32")
    image, last = models.VOCAB + 3, models.VOCAB - 1
    for bad in (last + 1, last + 2, -1):
        with pytest.raises(ValueError, match=rf"input_ids must lie in 0..{last}, got {bad}"):
            ngramspec.generate(model, torch.tensor([[5, image, bad]]), **GREEDY)


@pytest.mark.parametrize(
    "reference",
    [[3, 4], torch.tensor([[3, 4]]), [torch.tensor([3, 4]), []]],
    ids=["ids", "batch", "mixed"],
)
def test_reference_ids_stand_before_the_prompt_and_never_reach_the_model(tiny, reference):
    prompt, reads = torch.tensor([[5, 6, 7, 8, 5, 6]]), Reads()
    speculator = Speculator(reads)
    plain = tiny.generate(prompt, **GREEDY)
    for ours in three_ways(tiny, prompt, speculator=speculator, reference_ids=reference, **GREEDY):
        assert torch.equal(plain, ours)
        assert reads.texts.pop()[:8] == [3, 4, *prompt[0].tolist()]


def test_settings_may_stand_in_the_generation_config(tiny):
    prompt, reads = torch.tensor([[5, 6, 7, 8, 5, 6]]), Reads()
    config = GenerationConfig(**GREEDY, pad_token_id=0, ngramspec={"reference_ids": [3, 4]})
    ngramspec.generate(tiny, prompt, speculator=Speculator(reads), generation_config=config)
    assert reads.texts[0][:3] == [3, 4, 5]
    for bad, error, message in [
        ({"refrence": [1]}, ValueError, "no entry 'refrence'; known: reference_ids"),
        ([1], TypeError, "ngramspec must be a dict, got list"),
        ({"reference_ids": [1.5]}, TypeError, "reference_ids must hold token ids"),
        ({"reference_ids": [1, -2]}, ValueError, r"reference_ids must lie in 0\.\."),
    ]:
        config = GenerationConfig(**GREEDY, pad_token_id=0, ngramspec=bad)
        with pytest.raises(error, match=message):
            ngramspec.generate(tiny, prompt, generation_config=config)
