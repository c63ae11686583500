"""Writes the table of what models and calls rule out into docs/guide/compatibility.md.

Run it after a change of ngramspec/hf_model/facts.py: ``python docs/abilities.py``.
"""

from __future__ import annotations

from pathlib import Path

from ngramspec.hf_model.facts import FACTS, Ability

PAGE = Path(__file__).parent / "guide" / "compatibility.md"
BEGIN = "<!-- Written by docs/abilities.py from hf_model/facts.py: -->\n"
END = "<!-- the end of the table -->\n"
# The abilities in the table; the others only shorten the prefill.
NAMES = {
    Ability.SPECULATION: "speculation",
    Ability.DRAFTS: "drafts",
    Ability.TREES: "trees",
    Ability.RAGGED: "ragged rows",
    Ability.JOINT: "joint steps",
    Ability.FIXED_WIDTH: "`width=N`",
    Ability.COMPILED: "`compiled=True`",
    Ability.KEPT: "kept caches",
}
# A line for each kind of model, with the reasons in FACTS that it stands for; each is named once.
MODELS = {
    "full attention, as in Llama": (),
    "windows or chunks, if the text may become longer and the cache is dynamic": (
        "a text that may become longer than an attention window",
    ),
    "encoder-decoder, or a model-specific `create_masks_for_generate`": (
        "an encoder-decoder model",
        "a model that overrides create_masks_for_generate",
    ),
    "recurrent state, convolution, index of keys, or windows in unknown types of layers": (
        "{0.gap_obstacle}",
        "windows in layers of a type that is not known",
    ),
    "recurrent states in a cache without keys": ("recurrent states in a cache without keys",),
    "masks that the model makes or changes itself, for example with ALiBi": (
        "a model that makes or changes its masks itself, for example with ALiBi",
    ),
    "positions that the model counts itself, or router logits in the config": (
        "a model that counts its positions itself",
        "router logits in the config",
    ),
    "positions that unknown modules count": ("unknown modules that count positions",),
    "no positions for padding (M2M-100, TrOCR)": ("a model that gives padding no position",),
    "rotary positions that change with the length (longrope, Phi-3, dynamic)": (
        "rotary positions that change with the length (longrope, Phi-3, dynamic)",
    ),
    "attention scaled by slots of the cache (Llama 4)": (
        "attention that is scaled by slots of the cache (Llama 4)",
    ),
    "tokens found by their slots in the cache (GPT-Neo, GIT, GLM-Image)": (
        "a model that finds tokens by their slots in the cache",
    ),
    "input preparation outside transformers": (
        "input preparation of a model outside transformers",
    ),
    "experts, or scales of a quantization that may depend on all positions": (
        "experts, whose batch sizes depend on the routing",
        "a quantized model, whose scales may depend on all positions",
    ),
    "experts that may have too little capacity for the prompts": (
        "experts that may have too little capacity for the prompts",
    ),
    "mixed positions: bidirectional attention, dynamic int8, LLM.int8, Doge, NLLB-MoE": (
        "positions of a forward that are mixed: bidirectional attention, dynamic int8, LLM.int8,"
        " Doge, NLLB-MoE",
    ),
}
CALLS = {
    "several rows": ("a batch of {0.rows} rows",),
    "several rows that advance together": ("a batch of {0.rows} rows that advance together",),
    "a dynamic cache": ("a dynamic cache",),
    "a dynamic cache with sdpa": (
        "a dynamic cache with sdpa, whose arithmetic changes with the length",
    ),
    "a static cache, eager attention, hooks, or inputs other than text": (
        "a static cache",
        "eager attention",
        "hooks on modules, which may rely on all rows of the call, or on its prompt alone",
        "inputs other than text",
    ),
    "attention other than sdpa and eager": ("attention implementation {0.attention}",),
    "windows with such attention": ("windows under attention implementation {0.attention}",),
    "returned attentions or hidden states": ("attentions or hidden states asked for",),
    "returned attentions": ("attentions asked for, whose shape depends on the cache's size",),
    "returned attentions under windows, or of Falcon with sdpa": (
        "attentions asked for, under sliding-window attention",
        "attentions under sdpa, with which the model attends differently (Falcon)",
    ),
}
# Rare combinations, and what rules out only abilities without a name. Errors, the log and
# ``stats.limits`` report them.
LEFT_OUT = (
    "a static cache, with which the model decodes differently",
    "an index of keys, which sdpa ignores before transformers 5.17",
    "hooks on modules of a model with windows, which may shorten some layers' cache",
    "attentions over a static cache",
    "compiled forwards of a model that counts its positions itself",
    "a model that warns of padding tokens without a mask (GPT-2)",
    "a prefill whose positions do not match its masks: {0.unaligned}",
    "a static cache that holds less than a window, under masks that the model makes",
    "a cache that holds tokens before the prefill",
    "a prefill in chunks",
    "masks applied to several tokens only (LED), with a decoder's mask",
)


def table() -> str:
    """The table in Markdown: a line for each kind of model, and for each kind of call."""
    lines = ["| model | unavailable |", "|---|---|"]
    lines += [f"| {kind} | {ruled_out(reasons)} |" for kind, reasons in MODELS.items()]
    lines += ["| **call** | |"]
    lines += [f"| {kind} | {ruled_out(reasons)} |" for kind, reasons in CALLS.items()]
    return "\n".join(lines)


def ruled_out(reasons: tuple[str, ...]) -> str:
    """What facts rule out, by their reasons; all must rule out the same named abilities."""
    cells = {fact.reason: fact.cells for fact in FACTS}
    found = {
        ", ".join(NAMES[each] for each in NAMES if each in cells[reason]) for reason in reasons
    }
    if len(found) > 1:
        raise ValueError(f"{reasons} must rule out the same abilities, got {sorted(found)}")
    return found.pop() if found else "nothing"


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
