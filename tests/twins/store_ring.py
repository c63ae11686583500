"""Twin of the shared text of many requests: every code ever written, in one list.

Same places as the native ring's, as long as no chain there is longer than it follows.
"""

from __future__ import annotations

from collections.abc import Sequence

BORDER = 0x7FFFFFFF
LENGTHS, DEEPEST, WALK, BATCH, OVERLAP, OWN_RANGES = (1, 3, 6), 64, 48, 64, 16, 32
BEGINNINGS, GRAIN = (8, 16, 32, 64), 8
Place = tuple[int, int, int]  # position, tokens that agree, kin


class StoreRing:
    """Text of requests, of which the last ``capacity`` codes can be read."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.codes: list[int] = []
        self.indexed: list[bool] = []
        self.kinds: dict[int, tuple[int, ...]] = {}  # prompts by part of the ring
        self.cleared = 0  # position before which nothing can be read
        self.clears = 0
        self.owner = 0
        self.owners = 0
        self.largest = -1

    @property
    def oldest(self) -> int:
        """Position of the oldest code that can be read."""
        return max(self.cleared, len(self.codes) - self.capacity)

    def tokens(self) -> int:
        return sum(code != BORDER for code in self.codes[self.oldest :])

    def clear(self) -> None:
        self.cleared, self.owner = len(self.codes), 0
        self.clears += 1

    def put(self, code: int, found: bool, prompt: tuple[int, ...]) -> None:
        self.kinds[len(self.codes) % self.capacity // GRAIN] = prompt
        self.codes.append(code)
        self.indexed.append(found)
        if code != BORDER:
            self.largest = max(self.largest, code)

    def add(
        self,
        owner: int,
        before: Sequence[int],
        tokens: Sequence[int],
        own: list[tuple[int, int]],
        prompt: tuple[int, ...] = (),
    ) -> None:
        """Add a stream's tokens: after its last ones, or as a document that begins with them."""
        if owner != self.owner:
            self.put(BORDER, False, prompt)
            if not own or own[-1][1] + 1 != len(self.codes):
                own.append((len(self.codes), len(self.codes)))
            for code in before:
                self.put(code, False, prompt)
            self.owner = owner
        for code in tokens:
            self.put(code, True, prompt)
        own[-1] = (own[-1][0], len(self.codes))
        del own[:-OWN_RANGES]

    def before(self, at: int) -> list[int]:
        """The last tokens before a position, the last one first, up to a border."""
        found: list[int] = []
        while at > self.oldest and self.codes[at - 1] != BORDER and len(found) < DEEPEST:
            at -= 1
            found.append(self.codes[at])
        return found

    def agreement(self, at: int, context: Sequence[int]) -> int:
        """How many of a context's last tokens stand before a place."""
        length = 0
        for here, wanted in zip(self.before(at), reversed(context), strict=False):
            if here != wanted:
                break
            length += 1
        return length

    def kin(self, at: int, prompt: tuple[int, ...]) -> int:
        """How many beginnings a prompt shares with that of the text before a position."""
        other = self.kinds[(at - 1) % self.capacity // GRAIN]
        if min(len(prompt), len(other)) < BEGINNINGS[0]:
            return 0
        return sum(prompt[:length] == other[:length] for length in BEGINNINGS)

    def look(
        self,
        context: Sequence[int],
        most: int,
        own: Sequence[tuple[int, int]],
        prompt: tuple[int, ...] = (),
    ) -> list[Place]:
        """The longest first, of equals the nearest kin, then the latest."""
        found: list[Place] = []
        beyond = DEEPEST + 1
        for least in reversed(LENGTHS):
            if len(context) >= least and len(found) < most:
                found += self.walk(context, least, beyond, own, prompt)
                found = sorted(found, key=lambda place: (-place[1], -place[2]))[:most]
            beyond = least
        return found

    def walk(
        self,
        context: Sequence[int],
        least: int,
        beyond: int,
        own: Sequence[tuple[int, int]],
        prompt: tuple[int, ...],
    ) -> list[Place]:
        """Of the latest WALK places that agree for ``least`` tokens those below ``beyond``.

        Those of each kin are counted separately, and the nearest ones are enough.
        """
        found: list[Place] = []
        walked = [0] * (len(BEGINNINGS) + 1)
        nearest = len(BEGINNINGS) if len(prompt) >= BEGINNINGS[0] else 0
        for at in range(len(self.codes) - 1, self.oldest - 1, -1):
            if not self.indexed[at] or any(begin <= at < end for begin, end in own):
                continue
            kin = self.kin(at, prompt)
            length = self.agreement(at, context)
            if length < least or walked[kin] == WALK:
                continue
            walked[kin] += 1
            if length < beyond:
                found.append((at, length, kin))
            if walked[nearest] == WALK:
                break
        return found

    def token(self, at: int) -> int | None:
        if not self.oldest <= at < len(self.codes) or self.codes[at] == BORDER:
            return None
        return self.codes[at]


class StoreStream:
    """One request's part in a ring."""

    def __init__(self, ring: StoreRing, limit: int = 0) -> None:
        self.ring = ring
        self.limit = limit or BORDER
        ring.owners += 1
        self.owner = ring.owners
        self.own: list[tuple[int, int]] = []
        self.last: list[int] = []
        self.pending: list[int] = []
        self.clears = ring.clears  # when the document began
        self.prompt: tuple[int, ...] = ()

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompt = tuple(prompt)

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.pending.append(token)
            if len(self.pending) == BATCH:
                self.flush()

    def append_documents(self, codes: Sequence[int]) -> None:
        """Add documents with BORDER before each; the last one goes on."""
        for code in codes:
            if code == BORDER:
                self.finish()
            else:
                self.append([code])

    def follow(self, earlier: StoreStream) -> None:
        self.own, self.last = list(earlier.own), list(earlier.last)
        self.clears = earlier.clears

    def flush(self) -> None:
        if self.pending and self.clears == self.ring.clears:
            self.ring.add(self.owner, self.last, self.pending, self.own, self.prompt)
            self.last = [*self.last, *self.pending][-OVERLAP:]
        self.pending = []

    def finish(self) -> None:
        self.flush()
        self.end()

    def close(self) -> None:
        """Add what is left, and end the document, which a later stream may follow."""
        self.flush()
        if self.ring.owner == self.owner:
            self.ring.owner = 0

    def end(self) -> None:
        self.pending, self.last, self.clears = [], [], self.ring.clears
        if self.ring.owner == self.owner:
            self.ring.owner = 0

    def look(self, context: Sequence[int], most: int) -> list[Place]:
        """Places after a context, but none in what the request itself added."""
        return self.ring.look(context, most, self.own, self.prompt)

    def earlier(self, at: int) -> bool:
        return True

    def token(self, at: int) -> int | None:
        token = self.ring.token(at)
        return None if token is None or token >= self.limit else token
