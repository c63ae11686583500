"""A drafter of your own: it guesses that the last tokens come again."""

from __future__ import annotations

import numpy as np
import smollm2

from ngramspec import Draft, Drafter, DraftSession, Speculator

LENGTH = 4  # tokens that are repeated


class RepeatSession(DraftSession):
    """One sequence."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens.tolist()

    def propose(self, gamma: int, cost: object = None, *, tree: bool = False) -> Draft:
        """Draft the last tokens once more, at most ``gamma`` of them."""
        return Draft(np.array(self.tokens[-LENGTH:][:gamma], np.int32))

    def extend(self, tokens: np.ndarray) -> None:
        """Append the committed tokens."""
        self.tokens += tokens.tolist()


class RepeatDrafter(Drafter):
    """Makes a session for each sequence."""

    def start(self, tokens: np.ndarray) -> RepeatSession:
        """Begin a sequence with its prompt."""
        return RepeatSession(tokens)


def main() -> None:
    """Generate with the drafter; the text is plain ``generate``'s whatever it guesses."""
    options = smollm2.parser(__doc__, max_new_tokens=60).parse_args()
    model, tokenizer = smollm2.load(options.model)
    inputs = smollm2.encode(tokenizer, "Write the word 'ha' one hundred times: ha ha ha ha ha")
    call = {"max_new_tokens": options.max_new_tokens, "do_sample": False}
    speculator = Speculator(RepeatDrafter(), gamma=LENGTH)
    out = model.generate(**inputs, **call, custom_generate=speculator)
    plain = model.generate(**inputs, **call)
    print(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"the text of plain generate: {out.equal(plain)}")
    print(f"acceptance rate {speculator.stats.alpha:.2f}")


if __name__ == "__main__":
    main()
