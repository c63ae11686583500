"""A case's call as an open generation: its steps in several modes, alone or joint."""

from __future__ import annotations

import random
from typing import Any

import torch

from fuzz.case import Case
from fuzz.families import VOCAB
from ngramspec import Speculator, UnsupportedError
from ngramspec.stepwise import JointSteps, OpenGeneration, open_generation


def drained(case: Case, model: Any, speculator: Speculator, kwargs: dict[str, Any]) -> torch.Tensor:
    """The ids of a generation that is stepped to its end, (1, length).

    Args:
        case: whose ``steps`` say in which inference mode each step is called.
        model, speculator: of the call.
        kwargs: of ``open_generation``.
    """
    opened_inside = torch.is_inference_mode_enabled()
    rng = random.Random(f"steps {case.seed}")
    run = open_generation(model, speculator=speculator, **kwargs)
    other = _other(model, not opened_inside) if case.steps == "joint" else None
    joint = None
    try:
        while not run.finished:
            inside = {"": opened_inside, "outside": False, "inside": True}.get(case.steps)
            inside = rng.random() < 0.5 if inside is None else inside
            with torch.inference_mode(inside), torch.no_grad():
                if other is None or other.finished or run.why_alone or other.why_alone:
                    run.step()
                    continue
                joint = joint or JointSteps(model)
                if joint.why_not is not None:
                    run.step()
                    continue
                added, beside = joint.step([run, other])
            if isinstance(added, Exception):
                raise added
            if isinstance(beside, Exception):
                raise AssertionError("the other generation failed") from beside
    finally:
        with torch.inference_mode(not opened_inside), torch.no_grad():
            run.close()
            if other is not None:
                other.close()
    return run._loop.batch.sequences(run._loop.pad)


def _other(model: Any, inside: bool) -> OpenGeneration | None:
    """Another generation of the model, after its prefill; None: it has none."""
    ids = torch.tensor([[9, 8, 7, 6, 9, 8, 7, 6, 5]]) % VOCAB
    with torch.inference_mode(inside), torch.no_grad():
        try:
            run = open_generation(
                model, ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
            )
            run.step()
        except (UnsupportedError, ValueError):
            return None
    return run
