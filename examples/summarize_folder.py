"""Summarize all texts of a folder, several at a time, and continue after an interruption.

    python summarize_folder.py documents summaries

Each summary is written to the second folder as soon as it ends, and texts that have one there are
left out. A text that cannot be summarized gets a file with the error, whose name ends in .error.
Output, after a progress bar::

    3 summaries, 1 of them from before, and 1 errors in summaries
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngramspec import SharedStore, generate_many

REQUEST = "Summarize this text in two sentences:\n\n{}"


class Prompts:
    """The token ids of a chat for each text. A file is read when its turn comes."""

    def __init__(self, paths, tokenizer):
        self.paths, self.tokenizer = paths, tokenizer
        self.lengths = []  # of those read so far

    def __len__(self):
        return len(self.paths)

    def __iter__(self):
        for path in self.paths:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            ids = []  # which is an error
            if text:
                chat = [{"role": "user", "content": REQUEST.format(text)}]
                made = self.tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, return_dict=True
                )
                ids = made["input_ids"]
            self.lengths.append(len(ids))
            yield ids


def write(path, text):
    """Write a file that is there as a whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def main():
    """Summarize what has no summary yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", type=Path)
    parser.add_argument("summaries", type=Path)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    options = parser.parse_args()
    out = options.summaries
    out.mkdir(exist_ok=True)
    paths = sorted(options.documents.glob("*.txt"))
    waiting = [path for path in paths if not (out / path.name).exists()]
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = Prompts(waiting, tokenizer)
    found = generate_many(
        model,
        prompts,
        stores=[SharedStore()["summaries"]],  # drafts from earlier summaries, too
        errors="yield",
        progress_bar=True,
        max_new_tokens=options.max_new_tokens,
        do_sample=False,
    )
    errors = 0
    for index, ids in found:
        name = waiting[index].name
        failed = out / f"{name}.error"
        if isinstance(ids, Exception):
            write(failed, f"{type(ids).__name__}: {ids}\n")
            errors += 1
            continue
        new = ids[0, prompts.lengths[index] :]
        write(out / name, tokenizer.decode(new, skip_special_tokens=True))
        failed.unlink(missing_ok=True)
    done = len(paths) - errors
    before = len(paths) - len(waiting)
    print(f"{done} summaries, {before} of them from before, and {errors} errors in {out}")


if __name__ == "__main__":
    main()
