"""The table of docs/guide/gpu.md: whether calls on the simulated GPU are compiled, and how wide."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from gpu.cases import FOUR, LONG, SAMPLED, Case, model_on, noisy, text_of
from gpu.compiler import compiling
from gpu.device import pretended

from ngramspec import UnsupportedError
from ngramspec.hf_model.facts import Ability, why_unsupported
from ngramspec.hf_model.target import Target

M2M100 = "m2m100 (no positions of padding)"
NEW = 4  # tokens of a call
STATIC = {"cache_implementation": "static", "max_new_tokens": NEW}
_case = partial(Case, args=STATIC)
HEADER = ("call", "forwards after the prefill", "their widths", "trees")

# By what the page calls it: a call, and the kind of its GPU.
CALLS: dict[str, tuple[Case, str]] = {
    name: (case, "cuda")
    for name, case in {
        "a dynamic cache, as without arguments": Case(args={"max_new_tokens": NEW}),
        "a dynamic cache, `width=16`": Case(args={"max_new_tokens": NEW}, spec={"width": 16}),
        'a static cache (`cache_implementation="static"`)': _case(),
        "a static cache, `width=16`": _case(spec={"width": 16}),
        "a static cache, `compiled=False`": _case(spec={"compiled": False}),
        "a static cache, `disable_compile=True`": _case(args=STATIC | {"disable_compile": True}),
        "a static cache, sampling": _case(args=STATIC | SAMPLED),
        "a static cache, 4 rows": _case(rows=FOUR),
        "a static cache, 3 beams": _case(args=STATIC | {"num_beams": 3}),
        "a static cache, hidden states": _case(args=STATIC | {"output_hidden_states": True}),
        "a static cache, a prefill in chunks": _case(args=STATIC | {"prefill_chunk_size": 4}),
        "a static cache, windows (Mistral)": _case("mistral sliding", LONG),
        "a static cache, experts (Mixtral)": _case("mixtral (experts)"),
        "a static cache, chunked attention (Llama 4)": _case("llama4 (chunks)", LONG),
        "a static cache, ALiBi (BLOOM)": _case("bloom (alibi)"),
        "a static cache, recurrent layers (LFM2)": _case("Lfm2ForCausalLM"),
        "a static cache, an encoder-decoder model (T5)": _case("t5"),
        "a static cache, no positions for padding (M2M-100)": _case(M2M100),
    }.items()
}
CALLS["a static cache, an Intel GPU"] = (_case(), "xpu")
CALLS["a static cache, an Apple GPU"] = (_case(), "mps")


def table() -> str:
    """The table in Markdown."""
    rows = [HEADER, ["---"] * len(HEADER), *([name, *cells(*CALLS[name])] for name in CALLS)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cells(case: Case, kind: str) -> list[str]:
    """What a call does, in the columns of the table; or how it is refused, in the first of them."""
    targets: list[Target] = []
    choose: Callable[..., None] = Target.choose_widths

    def noted(target: Target, *args: Any, **kwargs: Any) -> None:
        targets.append(target)
        choose(target, *args, **kwargs)

    plain = replace(case, args={**case.args, "cache_implementation": None})
    reference = noisy(text_of(plain, None), case)
    with ExitStack() as stack:
        gpu = stack.enter_context(pretended(kind))
        compiler = stack.enter_context(compiling(model_on(gpu, case.family)))
        stack.enter_context(patch.object(Target, "choose_widths", noted))
        try:
            text_of(case, gpu, reference)
        except UnsupportedError as error:
            return [f"refused: {error}", "", ""]
        target = targets[-1]
        shapes, compiles = target._shapes, why_unsupported(Ability.COMPILED, target.facts)
    forwards = "compiled" if compiler.count else "not compiled"
    if not compiler.count and compiles is not None and target.facts.static:
        forwards += f": {compiles.partition('; ')[0]}"
    widths = () if shapes is None else sorted({*shapes.widths, *shapes.missing})
    trees = why_unsupported(Ability.TREES, target.facts)
    return [
        forwards,
        ", ".join(map(str, widths)) or "the draft's",
        "yes" if trees is None else f"no: {trees}",
    ]
