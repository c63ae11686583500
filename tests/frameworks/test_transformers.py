"""transformers' own trainer, pipelines (``trainer.model``, ``pipe.model``), and chat command."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from any_model import tiny_chat
from conftest import LLAMA
from families import SEQ2SEQ
from families import build as family
from frameworks.usual_call import check, tiny
from PIL import Image
from tiny_tokenizers import letters
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPVisionConfig,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
    pipeline,
)

import ngramspec
from benchmarks.tiny import small
from ngramspec.wrap.wrapped import wrap

PROMPTS = ["One, two, three. One, two,", "abcabcabcab", "the cat, the cat, the", "x y z x y z x"]
END = "<|endoftext|>"
RATE = 16_000


def test_a_trainer_that_predicts_with_generate(tmp_path):
    datasets = pytest.importorskip("datasets", reason="make test-frameworks")
    _, tokenizer = tiny_chat()
    model = family("t5", vocab_size=97)
    encoded = tokenizer(PROMPTS)
    labels = tokenizer([each[:9] for each in PROMPTS])["input_ids"]
    data = datasets.Dataset.from_dict({**encoded, "labels": labels})
    settings = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path),
        predict_with_generate=True,
        generation_max_length=24,
        per_device_eval_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        log_level="warning",
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=settings,
        eval_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=lambda found: {"sum": int(found.predictions.sum())},
    )

    def call():
        done, metrics = trainer.predict(data), trainer.evaluate()
        return done.predictions.tolist(), metrics["eval_loss"], metrics["eval_sum"]

    check(trainer.model, call, drafter="auto")


def test_speech_recognition(tmp_path):
    vocab = [*sorted(ByteLevel.alphabet()), END, "<|startoftranscript|>", "<|notimestamps|>"]
    vocab += [f"<|{step * 0.02:.2f}|>" for step in range(101)]
    tokens = {each: at for at, each in enumerate(vocab)}
    tokenizer = WhisperTokenizer(vocab=tokens, merges=[], pad_token=END)
    hearing = WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    config = SEQ2SEQ | {
        **{"vocab_size": len(vocab), "num_mel_bins": 16, "init_std": 0.3},
        **{"max_source_positions": 100, "max_target_positions": 64, "begin_suppress_tokens": None},
        **{"decoder_start_token_id": tokens["<|startoftranscript|>"]},
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokens[END]),
    }
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**config))
    settings = {name: config[name] for name in config if name.endswith("token_id")}
    settings["no_timestamps_token_id"] = tokens["<|notimestamps|>"]
    model.generation_config = GenerationConfig(is_multilingual=False, max_length=36, **settings)
    for each in (model, tokenizer, hearing):
        each.save_pretrained(tmp_path)
    pipe = pipeline("automatic-speech-recognition", model=str(tmp_path))
    sound = np.random.default_rng(0).normal(size=3 * RATE).astype(np.float32)

    def call():
        once = pipe(sound[:RATE].copy())
        chunks = pipe(sound.copy(), chunk_length_s=2, batch_size=2)
        return once, chunks, pipe(sound.copy(), return_timestamps=True)

    check(pipe.model, call, drafter="auto")


TEMPLATE = """{% for m in messages %}{{ m.role }}: {% for part in m.content %}\
{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}\n{% endfor %}assistant:"""


def test_images_and_text(tmp_path):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    known = {"<pad>": 0, "\n": 96, "<image>": 97} | {chr(n + 31): n for n in range(1, 96)}
    tokenizer = letters(known, ["<image>"], pad_token="<pad>", eos_token="~")
    side = {"height": 16, "width": 16}
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size=side, crop_size=side),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    config = LlavaConfig(
        vision_config=small(CLIPVisionConfig, image_size=16, patch_size=8),
        text_config=LlamaConfig(**LLAMA | {"vocab_size": 98}),
        image_token_index=97,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    pipe = pipeline("image-text-to-text", model=str(tmp_path))
    colours = np.random.default_rng(0).integers(0, 255, (2, 20, 24, 3), dtype=np.uint8)

    def call():
        said = []
        for colour, prompt in zip(colours, PROMPTS, strict=False):
            picture = {"type": "image", "image": Image.fromarray(colour)}
            content = [picture, {"type": "text", "text": prompt}]
            chat = [{"role": "user", "content": content}]
            said += pipe(text=chat, max_new_tokens=24, generate_kwargs={"do_sample": False})
        return [each["generated_text"][-1] for each in said]

    check(pipe.model, call)


def test_chat_with_a_wrapped_folder(tmp_path):
    pytest.importorskip("uvicorn", reason="make test-frameworks")
    tiny(tmp_path / "plain")
    wrap(tmp_path / "plain", tmp_path / "wrapped", {"drafter": "auto"})
    metadata = tmp_path / "ngramspec-0.dist-info/METADATA"  # transformers looks for it
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: ngramspec\nVersion: 0\n")
    paths = f"{Path(ngramspec.__file__).parent.parent}:{tmp_path}"
    environment = os.environ | {"NGRAMSPEC_LOG": "info", "PYTHONPATH": paths}
    command = Path(sys.executable).with_name("transformers")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"http://localhost:{free.getsockname()[1]}"
    log = tmp_path / "log"
    with log.open("w") as file:
        options = ["--trust-remote-code", "--device", "cpu", "--port", address.rpartition(":")[2]]
        server = subprocess.Popen(
            [command, "serve", *options], env=environment, stdout=file, stderr=file
        )

    def said(name):
        flags = ["max_new_tokens=200", "do_sample=False"]
        output = subprocess.run(
            [command, "chat", tmp_path / name, f"{address}/v1", *flags, "--user", "me"],
            env=os.environ | {"HF_HUB_OFFLINE": "0", "COLUMNS": "300"},  # its client is the hub's
            input=f"{PROMPTS[0]}\n!exit\n!exit\n",
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        (text,) = re.findall(rf"{name}>:\n(.*?)\n\d+ tokens in", output, re.DOTALL)
        return text

    try:
        for _ in range(240):
            assert server.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        assert said("wrapped") == said("plain") != ""
    finally:
        server.terminate()
        server.wait()
    ((emitted, calls),) = re.findall(r"ngramspec: (\d+) tokens in (\d+) target", log.read_text())
    assert int(emitted) > int(calls)
