"""The options of a Speculator: their names, defaults, bounds, presets and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ngramspec.drafters.base import Drafter
from ngramspec.drafters.registry import CALIBRATIONS, POLICIES, Calibrated, Policy, build_drafter
from ngramspec.errors import check_choice, check_int, check_real
from ngramspec.stats import StepEvent
from ngramspec.stores import Store, open_stores

FOLDER = "custom_generate"  # transformers' name of the folder with a model's generate
FILE = "ngramspec.json"
GammaRule = Literal["threshold", "auto", "heuristic"]
GAMMA_WORDS = get_args(GammaRule)
Verification = Literal["exact", "match", "typical"]
Unsupported = Literal["error", "plain"]
WIDTH_MULTIPLE = 8  # positions; divides the number of rows that CPU kernels process at once
# akunu's chapter: MAX_ORDER 4, DRAFT_COUNT 4, MAX_HISTORY 512. Its tables keep the counts of tokens
# that have left the history. Here these counts are removed.
# prompt-lookup: Saxena 2023, as in transformers' prompt_lookup_num_tokens=10. This preset copies
# from the longest match; transformers matches at most two tokens.
# leviathan-bigram: Leviathan et al. 2023, section 3.6, the most probable token of a bigram model
# with gamma 3. Their model was trained; this one counts the request's own text.
# token-recycling: Luo et al. 2024, 8 candidates of each token and trees of 80 nodes. Their tree is
# fixed by hand; this one holds the most probable paths by an assumed probability of each rank.
# rest: He et al. 2023, trees of 64 nodes from the datastore alone. It needs stores=[corpus].
CHAINS: dict[str, Any] = {"tree": None, "policy": "priority"}
PRESETS: dict[str, dict[str, Any]] = {
    "akunu": CHAINS | {"drafter": "ngram(order=4,window=512)", "gamma": 4},
    "prompt-lookup": CHAINS | {"drafter": "copy(min_match=1)", "gamma": 10},
    "leviathan-bigram": CHAINS | {"drafter": "ngram(order=2)", "gamma": 3},
    "token-recycling": CHAINS | {"drafter": "recycle(top_k=8)", "gamma": 80, "tree": 80},
    "rest": CHAINS | {"drafter": "store", "gamma": 64, "tree": 64},
}
T = TypeVar("T")


def option(default: T, **bounds: Any) -> T:
    """Declare an option with its default and its bounds, which ``_checked`` describes."""
    found: T = field(default=default, metadata=bounds)
    return found


def _checked(
    name: str, value: object, words: Any = (), low: Any = None, above: Any = None, high: Any = None
) -> object:
    """The value: one of ``words``, an integer in low..high, or a number > above and <= high."""
    if above is not None:
        return check_real(name, value, above, high)
    if any(type(value) is type(each) and value == each for each in words):
        return value
    known = ["an integer"] * (low is not None) + [repr(each) for each in words]
    message = f"{name} must be {', '.join(known[:-1])} or {''.join(known[-1:])}, got {value!r}"
    if low is not None:
        if words and isinstance(value, str):
            raise ValueError(message)
        return value if high is None else check_int(name, value, low, high)  # else others limit it
    if None in words:
        known_type = any(type(value) is type(each) for each in words)
        raise (ValueError if known_type else TypeError)(message)
    if words:
        check_choice(name, value, words)
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The arguments of a Speculator, which documents them, checked when they are made.

    ``drafter`` becomes the Drafter that was built, and ``stores`` what it drafts from.

    Raises:
        TypeError: an option has the wrong type; the message names it.
        ValueError: an option is out of bounds, or two options exclude each other.
    """

    drafter: str | Drafter = option("auto")
    gamma: int | GammaRule = option("auto", words=GAMMA_WORDS, low=1)
    _: KW_ONLY
    gamma_max: int = option(64, low=1, high=4096)
    tree: int | Literal["auto"] | None = option("auto", words=("auto", None), low=1, high=4096)
    verification: Verification = option("exact", words=get_args(Verification))
    lenience: float = option(1.0, above=0.0, high=1.0)
    epsilon: float = option(0.09, above=0.0, high=1.0)
    delta: float = option(0.3, above=0.0, high=1.0)
    costs: str | Path | None = option(None)
    width: int | Literal["fit"] = option("fit", words=("fit",), low=WIDTH_MULTIPLE, high=4096)
    compiled: bool | None = option(None, words=(True, False, None))
    policy: Policy = option("value", words=POLICIES)
    calibration: Calibrated = option("shared", words=CALIBRATIONS)
    unsupported: Unsupported | None = option(None, words=(*get_args(Unsupported), None))
    stores: Sequence[Store] = option(())
    on_step: Callable[[StepEvent], None] | None = option(None)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _checked(each.name, getattr(self, each.name), **each.metadata)
            self._set(each.name, value)
        if not isinstance(self.gamma, str):
            self._set("gamma", check_int("gamma", self.gamma, 1, self.longest))
        self._check_combinations()
        if self.on_step is not None and not callable(self.on_step):
            kind = type(self.on_step).__name__
            raise TypeError(f"on_step must be callable or None, got {kind}")
        if not isinstance(self.costs, str | Path | None):
            raise TypeError(f"costs must be a path or None, got {type(self.costs).__name__}")
        self._set("costs", None if self.costs is None else str(self.costs))
        stores = open_stores(self.stores)
        if isinstance(self.drafter, Drafter) and stores == self.drafter.stores:
            stores = ()  # it has them
        drafter = build_drafter(
            self.drafter, policy=self.policy, stores=stores, calibration=self.calibration
        )
        self._set("drafter", drafter)
        self._set("stores", drafter.stores)

    def _set(self, name: str, value: object) -> None:
        """Normalize a field of the object under construction."""
        object.__setattr__(self, name, value)

    def _check_combinations(self) -> None:
        if self.lenience < 1.0 and self.verification != "exact":
            raise ValueError(
                f"lenience must be 1.0 with verification={self.verification!r}, got {self.lenience}"
            )
        width = self.fixed_width
        if width is None:
            return
        if width % WIDTH_MULTIPLE:
            raise ValueError(f"width must be a multiple of {WIDTH_MULTIPLE}, got {width}")
        if isinstance(self.gamma, int) and self.gamma >= width:
            raise ValueError(
                f"gamma must be below width = {width}, which holds the last committed token too,"
                f" got {self.gamma}"
            )
        if isinstance(self.tree, int) or not self.exact:
            raise ValueError(
                f"width={width} keeps the text independent of the drafter, which tree,"
                " lenience and verification='typical' do not; remove them, or use width='fit'"
            )

    @property
    def longest(self) -> int:
        """Maximum tokens of a draft."""
        return self.tree if isinstance(self.tree, int) else self.gamma_max

    @property
    def fixed_width(self) -> int | None:
        """Positions of every forward after the prefill; None: each is as wide as its draft."""
        return self.width if isinstance(self.width, int) else None

    @property
    def planned_gamma(self) -> int | str:
        """``gamma``, or with a fixed width the most tokens that fit, as they cost nothing extra."""
        if self.fixed_width is None or isinstance(self.gamma, int):
            return self.gamma
        return min(self.longest, self.fixed_width - 1)

    @property
    def exact(self) -> bool:
        """Whether the text (greedy) or its distribution (sampled) is the target's."""
        return self.verification != "typical" and self.lenience == 1.0

    def with_chains_of(self, gamma: int) -> Options:
        """These options with chains of a number of draft tokens, num_assistant_tokens of a call."""
        high = 4096 if self.fixed_width is None else self.fixed_width - 1
        check_int("num_assistant_tokens", gamma, 1, high)
        return replace(self, gamma=gamma, gamma_max=max(gamma, self.gamma_max), tree=None)

    def to_dict(self) -> dict[str, Any]:
        """The options except on_step as plain JSON values; see ``Speculator.to_dict``."""
        drafter = self.drafter
        assert isinstance(drafter, Drafter)
        if drafter.spec is None:
            name = type(drafter).__name__
            raise ValueError(f"drafter {name} has no spec; give it one, or build it from a string")
        kept = [store.description() for store in drafter.stores]
        stores = {"stores": kept} if kept else {}
        return {"drafter": drafter.spec} | {name: getattr(self, name) for name in PLAIN} | stores

    def __repr__(self) -> str:
        drafter, auto = self.drafter, str(build_drafter("auto", policy=self.policy).spec)
        assert isinstance(drafter, Drafter)
        spec = drafter.spec
        if spec is not None and spec.startswith(auto):
            spec = "auto" + spec.removeprefix(auto)
        shown = [repr(spec or drafter)]
        shown += [f"stores={list(self.stores)!r}"] if self.stores else []
        values = {name: getattr(self, name) for name in PLAIN}
        changed = (f"{name}={value!r}" for name, value in values.items() if value != DEFAULTS[name])
        return f"Speculator({', '.join([*shown, *changed])})"


DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Options)}
NAMES = tuple(DEFAULTS)
PLAIN = tuple(name for name in NAMES if name not in ("drafter", "stores", "on_step"))


def options_file(folder: Path) -> Path:
    """The path of a folder's options file; in a wrapped folder it is in FOLDER."""
    wrapped = folder / FOLDER / FILE
    return wrapped if wrapped.is_file() else folder / FILE


def find_options(place: Path) -> Path:
    """The options file of a path: the file itself, or that of a folder."""
    path = options_file(place) if place.is_dir() else place
    if path.is_file():
        return path
    what = f"neither {FILE} nor {FOLDER}/{FILE} in" if place.is_dir() else "no file or"
    raise FileNotFoundError(
        f"there is {what} folder {place}; from_pretrained reads local files only"
    )
