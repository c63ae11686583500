"""A drafter of your own: it drafts what followed the last two tokens when they were seen before."""

from __future__ import annotations

import numpy as np
import smollm2

from ngramspec import Draft, Drafter, DraftSession, Speculator

QUESTION = f"Summarize this text in two sentences:\n\n{smollm2.TEXT}"
GAMMA = 8  # tokens drafted in a step


class PairSession(DraftSession):
    """One sequence: the latest position after each pair of tokens."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def propose(self, gamma: int, cost: object = None, *, tree: bool = False) -> Draft:
        """Draft at most ``gamma`` tokens, or none if the last pair is new."""
        start = self.after.get(tuple(self.tokens[-2:]), len(self.tokens))
        return Draft(np.array(self.tokens[start : start + gamma], np.int32))

    def extend(self, tokens: np.ndarray) -> None:
        """Append the committed tokens. The last pair is entered with its next token."""
        for token in tokens.tolist():
            self.after[tuple(self.tokens[-2:])] = len(self.tokens)
            self.tokens.append(token)


class PairDrafter(Drafter):
    """Makes a session for each sequence."""

    def start(self, tokens: np.ndarray) -> PairSession:
        """Begin a sequence with its prompt."""
        return PairSession(tokens)


def main() -> None:
    """Generate with the drafter; in float32 its drafts do not change the text."""
    options = smollm2.parser(__doc__, max_new_tokens=64).parse_args()
    model, tokenizer = smollm2.load(options.model)
    inputs = smollm2.encode(tokenizer, QUESTION)
    call = {**inputs, "max_new_tokens": options.max_new_tokens, "do_sample": False}
    speculator = Speculator(PairDrafter(), gamma=GAMMA)
    plain, baseline = smollm2.timed(model.generate, **call)
    out, speculative = smollm2.timed(model.generate, **call, custom_generate=speculator)
    print(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"the text of the baseline: {out.equal(plain)}")
    smollm2.report(baseline, speculative, speculator.stats)


if __name__ == "__main__":
    main()
