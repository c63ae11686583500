"""The rows of a batch: their committed tokens, their drafts, and the walk that verifies these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ngramspec.costs.policies import PrefillDraftLength, common_length, likeliest_path, urgencies
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.observer import STREAMING, Section, no_section
from ngramspec.decoding.row import NO_VERDICT, Computed, Row
from ngramspec.draft import EMPTY_DRAFT, Draft, EvidenceRequest, Verdict
from ngramspec.hf_model.devices import Int64
from ngramspec.hf_model.target import Target
from ngramspec.verification.sampler import DraftCursor, SampledTokens, TokenSampler, argmax_on_host

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks

NO_LIMIT = 1 << 20  # tokens; the draft length limit if no other limit is known
# Ended rows leave the batch once at most this share of its rows has not ended. Not tuned.
MAX_UNFINISHED_SHARE = 0.75
INITIAL_TOKENS = 256  # generated tokens that a new buffer has room for; not tuned


class Group:
    """The committed tokens of some rows of equal length.

    The prompt is int64 or int32 (rows, length); ``ids`` is a copy of it on the host.

    Attributes:
        rows: the rows' indices in the batch, which are consecutive.
        length: committed tokens of each row.
        finished, stopped: whether each row and whether every row has ended.
        active: the group's rows that are drafted for. Ended rows count only if they are not padded.
        last: each row's last committed token.
        accepted_positions: positions of the step's forward that the baseline would have computed.
        origins: the row of that forward that each row continues; empty if each continues itself.
        cursors: each row's draft, during verification.
        position: the position of the forward at which verification needs the rows' next tokens;
            None once verification has ended.
    """

    def __init__(
        self,
        rows: Sequence[int],
        prompt: torch.Tensor,
        sampler: TokenSampler,
        section: Section = no_section,
        ids: Int64 | None = None,
    ) -> None:
        self.rows = rows
        self.sampler = sampler
        self.length = self.prompt_length = prompt.shape[1]
        self.finished: list[bool]
        self.stopped: bool
        self.active: list[int]
        self.end_rows([False] * len(rows))
        self.last = [0] * len(rows)
        self.accepted_positions: list[int] = []
        self.origins: Sequence[int] = ()
        self.cursors: list[DraftCursor] = []
        self.position: int | None = None
        self._accepted: list[list[int]] = [[] for _ in rows]  # each row's nodes in the step
        self._emitted: list[list[int]] = [[] for _ in rows]  # and its committed tokens
        self.device = prompt.device
        self._section = section
        self._dtype = prompt.dtype  # the baseline uses int64 from the first generated token on
        room = self.length + INITIAL_TOKENS
        self._host = np.empty((len(rows), room), np.int64)
        self._host[:, : self.length] = prompt.numpy() if ids is None else ids
        self._device = torch.from_numpy(self._host)  # on another device a copy; ``ids`` updates it
        if prompt.device.type != "cpu":
            self._device = torch.empty_like(self._device, device=prompt.device)
            self._device[:, : self.length] = prompt
        self._copied = self.length

    @property
    def new(self) -> int:
        """Generated tokens of each row so far."""
        return self.length - self.prompt_length

    @property
    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """Each row's positions of the last forward that the cache keeps; here equal for all."""
        return [self.accepted_positions] * len(self.rows)

    def end_rows(self, finished: list[bool]) -> None:
        """Set which rows have ended."""
        pads = self.sampler.pad is not None
        self.finished, self.stopped = finished, all(finished)
        self.active = [row for row, ended in enumerate(finished) if not (ended and pads)]

    def ids(self) -> torch.Tensor:
        """The committed tokens, int64 (rows, length), on the prompt's device.

        Before the first generated token they have the prompt's dtype, which may be int32.
        """
        if self._device.device.type != "cpu" and self._copied < self.length:
            new = slice(self._copied, self.length)
            self._device[:, new].copy_(torch.from_numpy(self._host[:, new]), non_blocking=True)
            self._copied = self.length
        ids = self._device[:, : self.length]
        return ids if self.new else ids.to(self._dtype)

    def ids_on_host(self) -> torch.Tensor:
        """The committed tokens, int64 (rows, length), on the host."""
        return torch.from_numpy(self._host[:, : self.length])

    def tokens_from(self, start: int) -> list[int]:
        """The first row's committed tokens from ``start`` on, without a device transfer."""
        found: list[int] = self._host[0, start : self.length].tolist()
        return found

    def sequences(self) -> torch.Tensor:
        """The returned sequences, int64 (rows, length)."""
        return self.ids().clone()

    def begin_step(self) -> None:
        """Reset what is known about the last forward."""
        self.accepted_positions, self.position = [], None
        self._accepted, self._emitted = [[] for _ in self.rows], [[] for _ in self.rows]

    def begin_verification(self, drafts: Sequence[Draft]) -> None:
        """Begin to verify each row's draft, at position 0; call ``begin_step`` before."""
        self.cursors = [DraftCursor(draft) for draft in drafts]
        self.position = 0

    def accept_position(self) -> None:
        """Accept ``position``, which the baseline computes before it samples the next token."""
        assert self.position is not None
        self.accepted_positions.append(self.position)

    def commit_token(self, tokens: list[int]) -> None:
        """Commit each row's token at ``position``, then move to the next position or to None."""
        position, active = self.position, self.active
        assert position is not None
        tokens = self._padded(tokens)
        nodes = [self.cursors[row].node_with(tokens[row], position) for row in active]
        for row, node in zip(active, nodes, strict=True):
            self._emitted[row].append(tokens[row])
            if node is not None:
                self._accepted[row].append(node)
        self.append(tokens)
        node = nodes[0]
        agreed = nodes.count(node) == len(nodes) and self.active == active and not self.stopped
        self.position = node + 1 if agreed and node is not None else None

    def verdicts(self) -> list[Verdict]:
        """The result of each row's verification in this step; an empty one for rows that ended."""
        rows = zip(self.cursors, self._accepted, self._emitted, strict=True)
        return [cursor.verdict(accepted, emitted) for cursor, accepted, emitted in rows]

    def _padded(self, tokens: list[int]) -> list[int]:
        """The tokens to commit: padding in rows that have ended, if they are padded.

        Raises:
            RuntimeError: a row's scores are no distribution.
        """
        if min(tokens) < 0:
            raise RuntimeError(
                "the target's scores are no distribution: NaN, or -inf for every token, at"
                f" position {self.length}"
            )
        pad = self.sampler.pad
        if pad is None or len(self.active) == len(tokens):
            return tokens
        rows = zip(tokens, self.finished, strict=True)
        return [pad if ended else token for token, ended in rows]

    def append(self, tokens: list[int]) -> None:
        """Append one token to each row, check the stopping rules and stream, as ``generate``."""
        sampler = self.sampler
        self.reserve(self.length + 1)
        self.last = tokens
        self._host[:, self.length] = tokens
        self.length += 1
        ended = sampler.stop(tokens, self.length, self.ids, self.ids_on_host, sampler.scores)
        if True in ended:
            self.end_rows([was or now for was, now in zip(self.finished, ended, strict=True)])
        if sampler.streamer is not None:
            with self._section(STREAMING):
                sampler.streamer.put(torch.tensor(tokens, device="cpu"))

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in each row."""
        if length <= self._host.shape[1]:
            return
        self._host = np.concatenate((self._host, np.empty((len(self.rows), length), np.int64)), 1)
        on_host = torch.from_numpy(self._host)
        if self._device.device.type == "cpu":
            self._device = on_host
        else:
            more = self._device.new_empty((len(self.rows), length))
            self._device = torch.cat((self._device, more), dim=1)


class Batch:
    """All rows of a batch, in groups that each advance by their own number of tokens.

    Rows that advance in lock-step are one group. The prefill has no drafts unless ``rows`` can be
    connected before it.

    Args:
        groups: all rows of the batch in order.
        rows: the same rows' drafting.
        connect: connects the rows, given the vocabulary's size; see ``Row.connect``.
        costs: the forwards' costs. None: unknown, and the prefill verifies no draft.
        prefill_length: how many draft tokens the prefill verifies.
        max_length: maximum tokens of a row, including the prompt; None: no limit is known.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        sampler: TokenSampler,
        target: Target,
        rows: list[Row],
        connect: Callable[[Sequence[Row], int], None],
        *,
        costs: StepCosts | None = None,
        prefill_length: PrefillDraftLength,
        ranks: Ranks | None = None,
        max_length: int | None = None,
    ) -> None:
        self.groups, self.rows, self.target, self.costs = groups, rows, target, costs
        self.ranks, self.max_length = ranks, max_length
        self._sampler, self._connect, self._prefill_length = sampler, connect, prefill_length
        self._steps = 0

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return not [group for group in self.groups if not group.stopped]

    @property
    def accepted_paths(self) -> list[Sequence[int]]:
        """Each row's positions of the last forward that the cache keeps."""
        return [path for group in self.groups for path in group.accepted_paths]

    @property
    def origins(self) -> Sequence[int]:
        """The row of the last forward that each row continues; empty if each continues itself."""
        return self.groups[0].origins

    @property
    def positions(self) -> int:
        """Positions of the longest accepted path of the last forward."""
        return max([len(group.accepted_positions) for group in self.groups])

    def begin_step(self) -> None:
        """Reset the drafts and verdicts, and what is known about the last forward."""
        for row in self.rows:
            row.draft, row.verdict = EMPTY_DRAFT, NO_VERDICT
        for group in self.groups:
            group.begin_step()

    def connect(self, vocab: int) -> None:
        """Let the rows draft for a vocabulary of ``vocab`` tokens, if they cannot yet."""
        if not self.rows[0].connected:
            self._connect(self.rows, vocab)

    def finish(self) -> None:
        """End the call successfully: shared stores may keep the rows' texts."""
        for row in self.rows:
            row.end(completed=True)

    def close(self) -> None:
        """End every row's session."""
        for row in self.rows:
            row.end(completed=False)  # no effect after ``finish``
            row.close()

    def propose_for_prefill(self) -> None:
        """Draft after the prompt, if the prefill can verify a draft."""
        group, costs, vocab = self.groups[0], self.costs, self.target.vocab
        room, learned = self.target.prefill_room(), self._prefill_length.limit
        limit = min(room, self.draft_limits(group)[0], learned)
        if limit < 1 or vocab is None or costs is None or self.ranks is not None:
            return
        costs.at(group.length, prefill=True)
        self.connect(vocab)
        self.rows[0].propose(limit, tree=False)

    def propose(self) -> None:
        """Draft for each row. Rows in lock-step have equal lengths, unless drafts were sampled."""
        self._steps += 1
        if len(self.groups) > 1:
            self.drop_ended()
        costs = self.costs
        if costs is not None:
            target = self.target
            pending = None if target.pending is None else len(target.pending)
            costs.at(max([group.length for group in self.groups]), pending)
            if costs.plain():
                return
        for group in self.groups:
            if not group.stopped:
                self.propose_for(group)
        if len(self.groups) > 1:
            self.cut_together()

    def propose_for(self, group: Group) -> None:
        """Draft for a group's rows.

        Deterministic drafts are cut to the shortest. Sampled drafts are not cut, because letting
        sampled tokens decide the length would bias the output.
        """
        limit, nodes = self.draft_limits(group)
        active = [self.rows[group.rows[at]] for at in group.active]
        if len(group.rows) == 1:
            active[0].propose(limit, nodes)
            return
        for row in active:
            if row.propose(limit).proposal is None:
                limit = min(limit, len(row.draft))
        if all(row.draft.proposal is None for row in active):
            for row in active:
                row.draft = row.draft.first(limit)

    def drop_ended(self) -> None:
        """Remove ended rows from the batch once enough rows have ended."""
        target, costs = self.target, self.costs
        unfinished = [row for group in self.groups for row in group.rows if not group.stopped]
        few = 0 < len(unfinished) <= MAX_UNFINISHED_SHARE * target.rows
        if few and target.rows_may_leave:
            target.keep_rows(unfinished)
            if costs is not None:
                costs.rows = len(unfinished)

    def cut_together(self) -> None:
        """Cut the drafts of diverged rows to a common length, as one forward runs the longest."""
        groups = [group for group in self.groups if not group.stopped]
        rows = [self.rows[at] for group in groups for at in group.rows]
        drafts = [row.draft for row in rows]
        estimated = all(draft.confidence is not None for draft in drafts if len(draft))
        sampled = any(draft.proposal is not None for draft in drafts)  # see propose_for
        costs = self.costs
        if costs is None or sampled or not estimated or not any(map(len, drafts)):
            return
        left = [self.tokens_left(group) for group in groups]
        weights = urgencies(left, [group.new for group in groups], self._steps)
        surcharge = 1.0 if isinstance(rows[0].tree, int) else costs.surcharge()
        length, branches = common_length(drafts, weights, costs.cost(), surcharge)
        for row in rows:
            draft = row.draft if branches else most_probable_path(row.draft)
            row.draft = draft.first(length).as_chain()

    def width(self) -> int:
        """Positions of the forward: at least one more than the tokens of the longest draft."""
        drafts = [row.draft for row in self.rows]
        positions = 1 + max([len(draft.tokens) for draft in drafts])
        costs = self.costs
        if costs is None or any(draft.parents is not None for draft in drafts):
            return positions
        if costs.width(positions, costs.limit) == positions:
            return positions
        room = min(self.draft_limits(group)[0] for group in self.groups if not group.stopped)
        return costs.width(positions, 1 + room)

    def draft_limits(self, group: Group) -> tuple[int, int]:
        """Maximum tokens of a path, by the length of the text too, and of a whole draft."""
        room = self.target.room(group.new)
        nodes = NO_LIMIT if room is None else room
        return min(self.tokens_left(group) - 1, nodes), nodes

    def tokens_left(self, group: Group) -> int:
        """Maximum tokens that a group's rows may still generate."""
        longest = self.max_length
        return NO_LIMIT if longest is None else longest - group.length

    @property
    def evidence(self) -> EvidenceRequest | None:
        """The running sessions' joint request for evidence from the next forward, or None."""
        request = None
        for row in self.rows:
            if row.evidence is not None:
                request = row.evidence | request
        return request

    def learn(self, computed: list[Computed] | None = None) -> None:
        """Report each draft's verdict, with the row's evidence if any, to the row."""
        for at, row in enumerate(self.rows):
            if row.connected and row.verdict.emitted:
                row.learn(None if computed is None else computed[at])

    def verify(self, logits: torch.Tensor, sampled: SampledTokens | None) -> None:
        """Commit the target's tokens of every row, up to the first that was not drafted.

        A group of several rows has chains only. The drafts of ended rows are ignored.

        Each group walks its own accepted path, and all groups move one position at a time. If
        tokens are sampled position by position, all rows share each position's tensor operations
        and transfer. The number of both then depends on the longest accepted path, not on the
        number of rows.

        Args:
            logits: (batch, n + 1, vocab), at the last committed token and the n drafted tokens.
            sampled: the target's tokens at all n + 1 positions, or None to sample position by
                position along the accepted path.
        """
        before = self.groups[0].length
        walking = [group for group in self.groups if not group.stopped]
        for group in walking:
            group.begin_verification([self.rows[row].draft for row in group.rows])
        try:
            while walking:
                for group in walking:
                    group.accept_position()
                found = self.next_tokens(walking, logits, sampled)
                for group, tokens in zip(walking, found, strict=True):
                    group.commit_token(tokens)
                walking = [group for group in walking if group.position is not None]
        finally:  # also after errors, leave the generator as the baseline would
            if sampled is not None and len(self.groups) == 1:
                sampled.rewind(self.groups[0].length - before)
        for group in self.groups:
            for at, verdict in zip(group.rows, group.verdicts(), strict=True):
                self.rows[at].verdict = verdict

    def next_tokens(
        self, groups: Sequence[Group], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[list[int]]:
        """Choose and record the tokens of each group's rows at the group's position.

        Several groups have one row each. The other arguments are those of ``verify``.
        """
        sampler = self._sampler
        own = [logits[each.rows[0] : each.rows[-1] + 1, _position(each)] for each in groups]
        if sampled is not None or sampler.takes_argmax:
            if sampler.records:
                self._scores(groups, own)
            if sampled is None:  # as in ``generate``, the argmax of float32 logits
                return [argmax_on_host(each.float()).tolist() for each in own]
            at = [(group.rows, _position(group)) for group in groups]
            return [[int(sampled.tokens[row, position]) for row in rows] for rows, position in at]
        scores = self._scores(groups, own)
        spots = [(cursor, _position(group)) for group in groups for cursor in group.cursors]
        chosen = sampler.choose_next(scores, spots)
        return [chosen] if len(groups) == 1 else [[token] for token in chosen]

    def _scores(self, groups: Sequence[Group], logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute and record the groups' processed scores, float32 (rows, vocab)."""
        raw = logits[0] if len(logits) == 1 else torch.cat(tuple(logits))
        raw = raw.to(copy=True, dtype=torch.float32)
        scores = self._processed(raw, groups)
        self._sampler.record(scores, raw)
        return scores

    def _processed(self, scores: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Apply the logits processors, in one call for all rows."""
        sampler = self._sampler
        if not sampler.processors:
            return scores
        if len(self.groups) == 1:
            return sampler.process(groups[0].ids(), scores)
        from ngramspec.hf_model.compat.processors import Histories, process_at_once

        histories = Histories(groups, [EMPTY_DRAFT] * len(scores), 1, len(self.rows))
        return process_at_once(sampler.processors, histories, scores)

    def sequences(self, pad: int) -> torch.Tensor:
        """The committed tokens of all rows, int64 (batch, longest), padded with ``pad``."""
        if len(self.groups) == 1:
            return self.groups[0].sequences()
        longest = max(group.length for group in self.groups)
        out = torch.full((len(self.rows), longest), pad, device=self.groups[0].device)
        for group in self.groups:
            out[group.rows[0] : group.rows[-1] + 1, : group.length] = group.ids()
        return out

    def ids(self) -> torch.Tensor | None:
        """All committed tokens, int64 (batch, length); None if rows have different lengths."""
        return self.groups[0].ids() if len(self.groups) == 1 else None

    def block(self, width: int, pad: int, embeddings: int | None) -> torch.Tensor:
        """Every row's last committed token and draft, int64 (batch, width), on the host.

        A row is filled up with its last committed token, which is known to have an embedding. A
        row that has ended is padded as in the baseline. A padding token without an embedding, on
        which the baseline fails, is replaced by token 0. ``embeddings`` is the number of token
        embeddings, or None if unknown.
        """
        last = [token for group in self.groups for token in group.last]
        block = np.empty((len(last), width), np.int64)
        block[:] = np.array(last)[:, None]
        embedded = embeddings is None or 0 <= pad < embeddings
        for group in self.groups if len(last) > 1 else ():
            if len(group.active) == len(group.rows):
                continue
            ended = set(range(len(group.rows))) - set(group.active)
            rows = [group.rows[row] for row in ended]
            block[rows, 1:] = pad if embedded else 0
            block[[row for row in rows if not embedded and last[row] == pad], 0] = 0
        for at, row in enumerate(self.rows if width > 1 else ()):
            block[at, 1 : 1 + len(row.draft)] = row.draft.tokens
        return torch.from_numpy(block)

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None] | None:
        """Beam search's report about the returned sequences, or None if these rows are no beams."""
        return None


def most_probable_path(draft: Draft) -> Draft:
    """The most probable path of a deterministic draft, or a chain itself."""
    if draft.parents is None or draft.confidence is None:
        return draft
    return draft.path(likeliest_path(draft.parents, draft.confidence))


def _position(group: Group) -> int:
    assert group.position is not None
    return group.position
