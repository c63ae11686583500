"""Processes that decode together, by tensor parallelism or with gathered weights.

Under tensor parallelism every process (rank) runs the same loop over its share of the weights, and
all ranks must forward the same tokens. The state of drafters and the best draft length may differ
between ranks. So the first rank drafts, and broadcasts its drafts.

If weights are gathered for each forward (FSDP, ZeRO-3: ``synced_gpus``), every rank generates a
separate text. Ranks that have finished continue to run forwards until all have finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ngramspec.decoding.row import Row
from ngramspec.draft import EMPTY_DRAFT, Draft, Int32
from ngramspec.drafters.known import NullDrafter
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.models import device_mesh
from ngramspec.hf_model.target import Target

FIRST_MESSAGE_NODES = 64  # nodes of each draft that fit into the first message; not tuned
CHAIN = -2  # instead of a parent: the draft is a chain


@dataclass(eq=False)
class Ranks:
    """The processes that a generation runs in, and their agreements.

    The processes of ``group``, if any, decode the same text. ``synced``: all processes must run the
    same number of forwards.
    """

    group: Any = None
    device: str = "cpu"
    synced: bool = False

    @property
    def together(self) -> bool:
        """Whether the processes run their forwards together."""
        return self.group is not None or self.synced

    @property
    def drafts(self) -> bool:
        """Whether this process drafts: it is the only one, or the first of its group."""
        return self.group is None or dist.get_rank(self.group) == 0

    def check(self, target: Target) -> None:
        """Raise an UnsupportedError if a process could run no forward after the end of its text."""
        if self.synced and target.facts.static:
            raise UnsupportedError(
                "synced_gpus is not supported with a static cache, which has no room for further"
                " forwards; use a dynamic cache"
            )
        if self.synced and target.facts.recurrent:
            raise UnsupportedError(
                "synced_gpus is not supported with a recurrent state, whose last rollback needs a"
                " forward that other processes would not run"
            )

    def share(self, rows: Sequence[Row], width: int) -> int:
        """Give every rank's rows the first rank's drafts; return the width of its forward.

        This is one broadcast of int32 (batch, 2 + 2 * FIRST_MESSAGE_NODES), and a second one if a
        draft is longer. Proposals are not sent. A stochastic draft is then verified like a
        deterministic one, which keeps the target's distribution, too.
        """
        if self.group is None:
            return width
        drafts = [row.draft for row in rows]
        message = self._broadcast(_pack(drafts, FIRST_MESSAGE_NODES, width))
        longest = int(message[:, 0].max())
        if longest > FIRST_MESSAGE_NODES:
            message = self._broadcast(_pack(drafts, longest, width))
        sent = drafts if self.drafts else _unpack(message)
        for row, draft in zip(rows, sent, strict=True):
            row.take(replace(draft, proposal=None))
            if not self.drafts:  # rows that drafted nothing have no session
                row.source_names = Follower.source_names
        return int(message[0, 1])

    def any_unfinished(self, mine: bool) -> bool:
        """Whether any process, or this one if they are not synced, needs another forward."""
        if not self.synced:
            return mine
        count = torch.tensor(float(mine), device=self.device)
        dist.all_reduce(count)
        return bool(count.item())

    def _broadcast(self, message: Int32) -> Int32:
        tensor = torch.from_numpy(message).to(self.device)
        dist.broadcast(tensor, group=self.group, group_src=0)
        received: Int32 = tensor.cpu().numpy()
        return received


def ranks_of(model: Any, device: torch.device, synced_gpus: bool | None = None) -> Ranks | None:
    """The processes that a generation of ``model`` takes part in; None: only this one.

    A model loaded with a tensor-parallel plan has a device mesh. ``synced_gpus`` is that of
    ``generate``; None: True if forwards gather the model's weights.
    """
    processes = dist.is_available() and dist.is_initialized()
    if synced_gpus and not processes:
        raise UnsupportedError("synced_gpus=True needs an initialized torch.distributed; remove it")
    if not processes or dist.get_world_size() == 1:
        return None
    synced = _gathers_weights(model) if synced_gpus is None else synced_gpus
    mesh = device_mesh(model)
    if mesh is None:
        return Ranks(None, device.type, synced)
    axes = mesh.mesh_dim_names or ("tp",)  # a mesh of one unnamed axis is a tensor-parallel one
    sizes = dict(zip(axes, mesh.mesh.shape, strict=True))
    if sizes.get("pp", 1) > 1:
        raise UnsupportedError(
            "pipeline parallelism is not supported: caches on other ranks cannot be rolled back;"
            " use tensor parallelism"
        )
    group = None
    if sizes.get("tp", 1) > 1:
        group = mesh.get_group() if mesh.mesh.ndim == 1 else mesh["tp"].get_group()
    return Ranks(group, device.type, synced)


def _gathers_weights(model: Any) -> bool:
    """Whether every forward gathers weights from all processes, as FSDP and ZeRO-3 do."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if getattr(model, "_is_fsdp_managed_module", False):
        return True
    if isinstance(model, FSDPModule | FullyShardedDataParallel):
        return True
    return hasattr(next(model.parameters(), None), "ds_id")  # set by DeepSpeed ZeRO-3


def _pack(drafts: Sequence[Draft], nodes: int, width: int) -> Int32:
    """Drafts as int32 (batch, 2 + 2 * nodes): length, width, tokens, parents, cut to ``nodes``."""
    message = np.full((len(drafts), 2 + 2 * nodes), CHAIN, np.int32)
    for row, draft in zip(message, drafts, strict=True):
        count = min(len(draft), nodes)
        row[:2] = len(draft), width
        row[2 : 2 + count] = draft.tokens[:nodes]
        if draft.parents is not None:
            row[2 + nodes : 2 + nodes + count] = draft.parents[:nodes]
    return message


def _unpack(message: Int32) -> list[Draft]:
    """The drafts of a message, which must hold all of their nodes."""
    nodes = message.shape[1] // 2 - 1
    drafts = []
    for row in message:
        length = int(row[0])
        tokens, parents = row[2 : 2 + length], row[2 + nodes : 2 + nodes + length]
        chain = not length or parents[0] == CHAIN
        drafts.append(Draft(tokens, None if chain else parents) if length else EMPTY_DRAFT)
    return drafts


class Follower(NullDrafter):
    """The drafter of ranks that use the first rank's drafts."""

    source_names = ("first rank",)


@cache
def follower() -> Follower:
    """The one Follower of this process."""
    return Follower()
