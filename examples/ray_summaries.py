"""Summarize documents with Ray Data: each actor has a model, and rows that stay full.

    pip install 'ray[data]==2.60.0'
    python ray_summaries.py documents.jsonl summaries --actors 2

Documents are JSON lines or Parquet files with the columns id and text. Each batch of summaries is
written to a JSON-lines file of the output folder as it ends, with the columns id, summary and
error. If the job starts again, it leaves out the documents that it finds there. If an actor dies,
its batch runs again. Output::

    60 documents: 58 summaries and 2 errors
"""

import argparse
import json
from pathlib import Path

import ray
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngramspec import SharedStore, generate_many

REQUEST = "Summarize this text in two sentences:\n\n{}"


class Summarizer:
    """A model, and the store of what it and the other actors have said."""

    def __init__(self, model, redis, new):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype="auto").to(device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.stores = [SharedStore(tokenizer=self.tokenizer, sync=redis)["summaries"]]
        self.settings = {"max_new_tokens": new, "do_sample": False}

    def prompt(self, text):
        """The token ids of a document's request; of what is no text none, which is an error."""
        if not isinstance(text, str) or not text.strip():
            return []
        chat = [{"role": "user", "content": REQUEST.format(text)}]
        made = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True
        )
        return made["input_ids"]

    def __call__(self, batch):
        """Add the columns summary and error to documents."""
        prompts = [self.prompt(text) for text in batch["text"]]
        found = generate_many(
            self.model, prompts, stores=self.stores, errors="yield", **self.settings
        )
        summaries, errors = [""] * len(prompts), [""] * len(prompts)
        for index, ids in found:
            if isinstance(ids, Exception):
                errors[index] = str(ids) if prompts[index] else "the document has no text"
            else:
                new = ids[0, len(prompts[index]) :]
                summaries[index] = self.tokenizer.decode(new, skip_special_tokens=True)
        return {"id": batch["id"], "summary": summaries, "error": errors}


def written(folder):
    """The results in a folder, by the documents' ids."""
    lines = (line for path in folder.glob("*.json") for line in path.open(encoding="utf-8"))
    return {row["id"]: row for row in map(json.loads, lines)}


def main():
    """Summarize the documents that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents")
    parser.add_argument("summaries", type=Path)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="documents of an actor at a time")
    parser.add_argument("--cpus", type=float, default=1, help="of each actor; reading needs one")
    parser.add_argument("--gpus", type=float, default=0, help="of each actor")
    parser.add_argument("--redis", help="redis://HOST:PORT/0, where actors share what they said")
    options = parser.parse_args()
    ray.init(ignore_reinit_error=True)
    if options.actors * options.cpus > ray.cluster_resources()["CPU"] - 1:
        parser.error("the actors must leave one CPU to read and to write: lower --actors or --cpus")
    before = written(options.summaries)
    read = ray.data.read_parquet if "parquet" in options.documents else ray.data.read_json
    documents = read(options.documents).filter(lambda row: row["id"] not in before)
    documents = documents.repartition(target_num_rows_per_block=options.batch)
    documents.map_batches(
        Summarizer,
        fn_constructor_args=(options.model, options.redis, options.max_new_tokens),
        batch_size=options.batch,
        compute=ray.data.ActorPoolStrategy(size=options.actors),
        num_cpus=options.cpus,
        num_gpus=options.gpus,
    ).write_json(str(options.summaries), mode="append")
    rows = written(options.summaries)
    errors = sum(bool(row["error"]) for row in rows.values())
    print(f"{len(rows)} documents: {len(rows) - errors} summaries and {errors} errors")


if __name__ == "__main__":
    main()
