"""Whatever an engine does to its rows, sessions have their rows' texts and are bounded."""

from __future__ import annotations

from engine_rows import FAULTY, VOCAB, Engine, K, Recorder
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from ngramspec._native import common
from ngramspec.engines.rows import Rows


class Machine(RuleBasedStateMachine):
    """An engine that does what engines do to rows; sessions must have their rows' texts."""

    running = Bundle("running")
    paused = Bundle("paused")
    token = st.integers(0, VOCAB - 1)

    @initialize(
        named=st.booleans(), most=st.integers(1, 6), large=st.booleans(), poor=st.booleans()
    )
    def begin(self, named, most, large, poor):
        self.salt = common.salt()
        if poor:  # texts of the same tokens collide, in whatever order
            common.set_salt(0)
        self.drafter = Recorder()
        size = 1 << 30 if large else 6000
        self.rows = Rows(self.drafter, K, VOCAB, 40, max_sessions=most, max_bytes=size)
        self.engine = Engine(self.rows, named=named)
        self.most, self.size = most, size
        self.drafts = []

    @rule(target=running, prompt=st.lists(token, min_size=1, max_size=5))
    def arrive(self, prompt):
        return self.engine.arrive(prompt)

    @rule(target=running, of=running)
    def arrive_with_a_known_text(self, of):
        return self.engine.arrive(of)

    @rule(text=consumes(running))
    def finish(self, text):
        if any(each is text for each in self.engine.slots):
            name = self.engine.leave(text)
            if self.engine.named and len(text) % 2:
                self.rows.finish(name)

    @rule(target=paused, text=consumes(running))
    def preempt(self, text):
        name = None
        if any(each is text for each in self.engine.slots):
            name = self.engine.leave(text)
        return text, name

    @rule(target=running, which=consumes(paused))
    def resume(self, which):
        text, name = which
        if name is None:
            return self.engine.arrive(text)
        self.engine.slots.append(text)
        self.engine.names.append(name)
        return text

    @rule(order=st.randoms())
    def move(self, order):
        both = list(zip(self.engine.slots, self.engine.names, strict=True))
        order.shuffle(both)
        self.engine.slots = [text for text, _ in both]
        self.engine.names = [name for _, name in both]

    @rule(text=running, left=st.integers(1, 8))
    def truncate(self, text, left):
        del text[left:]

    @rule(script=st.lists(st.sampled_from([*FAULTY, "good"]), max_size=3))
    def fail(self, script):
        self.drafter.script = script

    @rule(
        tokens=st.lists(st.lists(token, max_size=4), min_size=12, max_size=12), follow=st.booleans()
    )
    def step(self, tokens, follow):
        del self.engine.slots[12:], self.engine.names[12:]
        for text in self.engine.slots:
            del text[36:]
        new = tokens[: len(self.engine.slots)]
        if follow:
            new = [
                d.tokens.tolist()[: len(t)] or t for d, t in zip(self.drafts, new, strict=False)
            ] + new[len(self.drafts) :]
        self.drafter.asked.clear()
        faults = self.rows.stats.faults
        self.drafts = self.engine.step(new)
        taken = [self.rows._known._rows[at] for at, its in enumerate(new) if its]
        assert len({id(text) for text in taken}) == len(taken), "one text, one row"
        held = [tuple(text) for text, its in zip(self.engine.slots, new, strict=True) if its]
        asked = iter(held)
        assert all(any(text == each for each in asked) for text in self.drafter.asked), "in order"
        for draft, text, its in zip(self.drafts, self.engine.slots, new, strict=True):
            assert len(draft) <= max(0, min(K, 40 - len(text) - 1))
            assert not len(draft) or its
            assert all(0 <= each < VOCAB for each in draft.tokens.tolist())
        assert self.drafter.open <= self.most
        assert len(self.rows) <= self.most
        assert self.rows.bytes <= self.size
        if self.rows.stats.faults == faults and self.size > 6000 and len(held) <= self.most:
            texts = self.rows._known.all()
            fit = [text for text in texts if text.seen == self.rows._known.call]
            assert len(fit) == len(held)

    def teardown(self):
        common.set_salt(self.salt)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
