"""Initial weights of candidates where a store has a match.

A weight of the mix is the sum of two, see calibration.pxi. The first starts as the sum of a row of

- ``BY_KNOWN``: the store's match is shorter than the text's; else up to 7 tokens; longer;
- ``BY_LENGTH``: the length bucket of the text's longest match or context;
- ``BY_AGREEMENT``: there is no resumed copy; it suggests the candidate; it suggests another token.

The second starts as the sum of a row of

- ``BY_STANDING``: what the text says about the candidate: nothing; it followed before; it leads the
  longest context; it is the match's token. For each of these, what the store says: other tokens;
  also this one; it leads among shorter matches; among the longest; among both;
- ``BY_STORE_LENGTH``: the length bucket of the store's match.

Fitted to completions inside 40 Python packages, and rounded.
"""

STEP = 0.05  # unit of the tables' integers
SAYS = 5  # number of things that a store can say about a candidate
INPUTS = (  # columns of a table
    *("context 0", "context 1", "context 2", "context 3", "match", "resume", "near", "session"),
    *("store", "store other", "top", "nearest", "bias"),
)


def table(*rows: tuple[int, ...]) -> list[list[float]]:
    """Convert rows of integers to rows of weights."""
    return [[STEP * steps for steps in row] for row in rows]


BY_KNOWN = table(
    (1, 1, 2, 1, 2, 2, 0, -3, 1, 2, 5, 1, 7),
    (1, 2, 0, 1, 1, 1, 2, 3, 3, 0, 5, 2, 36),
    (1, 1, 1, 0, 1, 1, -1, -3, 5, 0, 5, 1, -9),
)
BY_LENGTH = table(
    (0, 0, 0, 2, 0, -1, 0, 3, 6, 3, 0, 2, 13),
    (4, 0, 0, 1, 0, 0, -2, 3, 3, 4, 0, 0, 13),
    (2, 0, 0, 1, -2, -1, -1, 1, 0, 2, 0, 0, 2),
    (1, 0, 0, 1, -3, -1, 1, 2, 1, 1, 0, 0, 11),
    (0, 2, -1, 0, -1, -1, 0, 3, -1, 0, 0, 1, -1),
    (0, 1, 0, 1, -1, 1, 2, -3, -1, 1, 0, 0, 2),
    (0, 1, 0, -2, 1, 2, 0, -1, 1, -2, 0, -1, -5),
    (2, 0, 1, -1, 0, 0, 2, -2, -2, -2, 0, 2, -6),
    (0, -1, 5, -2, -1, 1, 0, -5, -2, -2, 0, 1, 3),
    (0, 0, -3, -2, 4, 3, 0, -1, 2, -5, 0, -4, 1),
    (-2, 2, 2, -1, 4, -1, -2, -2, 0, 0, 0, 6, 1),
    (-5, 0, 0, 4, 3, 2, 1, -2, 2, 1, 0, -2, 0),
)
BY_AGREEMENT = table(
    (1, 1, 1, 0, 2, 0, -2, 0, 4, 0, 0, 2, 1),
    (0, 2, 0, 1, 1, 4, 2, -3, 2, 1, 0, 1, 42),
    (0, 2, 2, 0, 2, 0, 1, 0, 3, 1, 0, 1, -9),
)
BY_STANDING = table(
    (-2, 4, 1, -2, -3, 7, -1, 8, -6, -2, 0, 4, -17),
    (-1, 2, -1, -1, -2, 3, 0, 3, 5, -2, 0, 1, -2),
    (-2, 1, -1, -1, 0, 2, 2, -2, 3, 3, 0, 1, 2),
    (-2, 1, -1, -1, -1, 1, 0, 0, 3, 0, 0, -1, -18),
    (-1, 2, 1, -2, -2, 2, 1, -2, 2, 3, 0, 1, -8),
    (3, 2, 1, 2, -2, 0, -2, 2, -3, -1, 0, 2, 8),
    (-2, -1, 1, 2, 2, 0, 1, 1, -2, -1, 0, 1, 8),
    (-2, -2, -1, 3, 1, 1, 0, -3, 0, 1, 0, -3, 3),
    (-2, -1, 1, 1, 1, 1, 0, 0, 0, -4, 0, 0, 0),
    (-1, -1, 1, 1, 0, 1, 0, -6, 0, 1, 0, 2, 4),
    (3, 1, 3, 0, 0, -2, 0, 3, -3, -1, 0, -2, 16),
    (1, 1, -1, 0, 1, -1, 0, 2, -1, -1, 0, 0, 15),
    (0, 0, -1, 0, 1, 1, 2, -6, 0, 2, 0, 0, 2),
    (0, 2, -5, 0, 4, -1, 1, 3, -1, -5, 0, 0, 6),
    (2, 2, 1, -1, 5, 1, 1, -8, 3, 4, 0, 1, 14),
    (1, 1, 0, 2, 1, -4, -1, 3, -4, -1, 0, -2, 2),
    (2, -2, 3, 0, -1, -4, -3, 4, 0, -1, 0, -1, -11),
    (3, -1, 0, 0, 2, -1, -1, 3, 3, -1, 0, -2, -3),
    (1, -4, 1, 1, 0, -1, -1, -2, 2, 1, 0, 0, 5),
    (1, -2, 2, -1, -1, -2, 1, -6, 7, 6, 0, 2, 7),
)
BY_STORE_LENGTH = table(
    (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    (4, 5, -3, -1, 1, 0, 1, 0, 0, 0, 0, 2, 0),
    (2, 3, 2, -1, 1, 1, 0, -2, 3, -3, 0, 2, 22),
    (1, 1, 2, -1, 1, 0, 0, -4, 2, -2, 0, 0, 10),
    (0, 1, 2, -1, 0, 1, -1, -3, 3, 0, 0, -1, 7),
    (0, 1, 1, -1, 1, 0, -1, -3, 2, 1, 0, 0, 8),
    (-1, 0, 2, -1, 1, 0, -2, -4, 2, 1, 0, 0, 3),
    (0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, -1, 5),
    (-1, 0, 1, 1, 1, 0, 2, 2, -2, 0, 0, 2, 15),
    (-1, -3, 1, 2, 1, 1, 3, 3, -2, 3, 0, 0, -1),
    (-2, -1, 0, 1, -2, 2, 3, 5, -2, 1, 0, 0, -6),
    (0, -3, -3, 3, -1, -1, -5, 4, 1, 1, 0, 0, -27),
)
