"""The options of a Speculator: their names, defaults, bounds, documentation, presets and files."""

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


def option(
    *,
    default: T,
    doc: str,
    words: Sequence[object] = (),
    low: int | None = None,
    above: float | None = None,
    high: float | None = None,
    page: str = "",
) -> T:
    """Declare an option: one of ``words``, an integer in low..high, or a number > above, <= high.

    Without ``high``, other options limit it. ``page``: the page of the guide about it.
    """
    bounds = {"words": words, "low": low, "above": above, "high": high}
    found: T = field(default=default, metadata={"doc": doc, "page": page, "bounds": bounds})
    return found


def _checked(name: str, value: object, words: Any, low: Any, above: Any, high: Any) -> object:
    """The value if it is one of the words or within the bounds; see ``option``."""
    if above is not None:
        return check_real(name, value, above, high)
    if any(type(value) is type(each) and value == each for each in words):
        return value
    known = ["an integer"] * (low is not None) + [repr(each) for each in words]
    message = f"{name} must be {', '.join(known[:-1])} or {''.join(known[-1:])}, got {value!r}"
    if low is not None:
        if words and isinstance(value, str):
            raise ValueError(message)
        return value if high is None else check_int(name, value, low, high)
    if None in words:
        known_type = any(type(value) is type(each) for each in words)
        raise (ValueError if known_type else TypeError)(message)
    if words:
        check_choice(name, value, words)
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The arguments of a Speculator, checked when they are made.

    ``drafter`` becomes the Drafter that was built, and ``stores`` what it drafts from.

    Raises:
        TypeError: an option has the wrong type; the message names it.
        ValueError: an option is out of bounds, or two options exclude each other.
    """

    drafter: str | Drafter = option(
        default="auto",
        doc="the draft sources: a string for build_drafter, or a Drafter",
        page="#drafters",
    )
    gamma: int | GammaRule = option(
        default="auto",
        words=GAMMA_WORDS,
        low=1,
        doc="draft tokens per step (num_speculative_tokens). An integer is a fixed number, at most"
        ' gamma_max. "heuristic": the number grows while whole drafts are accepted. "threshold": a'
        " chain ends before the first token whose confidence is below an adaptive threshold."
        ' "auto": the number that maximizes expected tokens per second, by costs measured during'
        ' decoding. With "auto" the prefill also verifies a draft after the prompt, and drafters'
        ' without estimates use "heuristic"',
    )
    _: KW_ONLY
    gamma_max: int = option(
        default=64, low=1, high=4096, doc="the maximum number of draft tokens per step"
    )
    tree: int | Literal["auto"] | None = option(
        default="auto",
        words=("auto", None),
        low=1,
        high=4096,
        doc='"auto": drafts get branches where these are worth their cost; needs gamma="auto" and'
        ' width="fit". None: drafts are chains. N: drafts are token trees of at most N nodes, and N'
        " replaces gamma_max. Drafts are chains if the target cannot verify trees. For N,"
        " stats.limits has the reason",
        page="gpu.md#trees",
    )
    verification: Verification = option(
        default="exact",
        words=get_args(Verification),
        doc='"exact": the output has the target\'s text (greedy) or distribution (sampled).'
        ' "match": also, stochastic drafts give plain generate\'s text for the same seed, because'
        ' draft probabilities are ignored. "typical": tokens that are probable enough under the'
        " target are accepted, which changes the distribution",
        page="text.md#sampling",
    )
    lenience: float = option(
        default=1.0,
        above=0.0,
        high=1.0,
        doc='l, for verification "exact". Below 1 a draft token is accepted if p(x) >= l max p'
        " (greedy), or with probability min(1, p / (l q)) (sampled). No token's probability exceeds"
        " p / l, and the output's distribution changes",
    )
    epsilon: float = option(
        default=0.09,
        above=0.0,
        high=1.0,
        doc='for verification "typical". The threshold is min(epsilon, delta exp(-H)), where H is'
        " the target distribution's entropy in nats",
    )
    delta: float = option(
        default=0.3, above=0.0, high=1.0, doc='for verification "typical"; see epsilon'
    )
    costs: str | Path | None = option(
        default=None,
        doc='a file written by ngramspec calibrate with initial costs for gamma="auto". None:'
        " assumed costs. Measured step times correct both. A file of another model, machine or"
        " version is ignored, and so is any file for batches and static caches (logged once)",
        page="#saved-costs",
    )
    width: int | Literal["fit"] = option(
        default="fit",
        words=("fit",),
        low=WIDTH_MULTIPLE,
        high=4096,
        doc='positions of each forward after the prefill. "fit": as many as the draft needs. N, a'
        " multiple of 8: forwards are padded to N positions, so that the text is independent of the"
        " drafts in bfloat16, too (sampled text: if drafts are deterministic or verification is"
        ' "match"). N needs a batch of one, and a static cache or, on a CPU, a dynamic cache with'
        " eager attention",
        page="text.md#fixed-width",
    )
    compiled: bool | None = option(
        default=None,
        words=(True, False, None),
        doc="whether forwards after the prefill run as compiled graphs, which needs a static cache."
        " None: where the baseline compiles (GPUs with static caches), with the call's"
        ' compile_config. True: on a CPU, too. False: never. With width="fit", forwards over static'
        " caches are padded to at most four widths. With CUDA graphs, calls must not overlap",
        page="gpu.md#compiled-forwards",
    )
    policy: Policy = option(
        default="value",
        words=POLICIES,
        doc='how several sources are combined. "value": the most probable token at each position,'
        ' from any source. "priority": the sources in their order. See build_drafter',
    )
    calibration: Calibrated = option(
        default="shared",
        words=CALIBRATIONS,
        doc='"shared": calls share the learned estimates of how often drafts are right, without any'
        ' text. "request": no call\'s drafts depend on another call',
    )
    unsupported: Unsupported | None = option(
        default=None,
        words=(*get_args(Unsupported), None),
        doc='what to do with requests that do not support speculation. "error": raise an'
        ' UnsupportedError. "plain": let transformers decode them, which is logged once. None:'
        ' "plain" for enable, enabled and wrapped folders, else "error"',
    )
    stores: Sequence[Store] = option(
        default=(),
        doc="draft sources besides a request's own text: corpora, paths, shared namespaces",
        page="stores.md",
    )
    on_step: Callable[[StepEvent], None] | None = option(
        default=None, doc="called with a StepEvent after the prefill and after every step"
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _checked(each.name, getattr(self, each.name), **each.metadata["bounds"])
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
        drafter = self.drafter
        assert isinstance(drafter, Drafter)
        shown = [repr(drafter.spec or drafter)]
        shown += [f"stores={list(self.stores)!r}"] if self.stores else []
        values = {name: getattr(self, name) for name in PLAIN}
        changed = (f"{name}={value!r}" for name, value in values.items() if value != DEFAULTS[name])
        return f"Speculator({', '.join([*shown, *changed])})"


_FIELDS = fields(Options)
DEFAULTS: dict[str, Any] = {each.name: each.default for each in _FIELDS}
NAMES = tuple(DEFAULTS)
PLAIN = tuple(name for name in NAMES if name not in ("drafter", "stores", "on_step"))


def documentation() -> dict[str, tuple[str, str]]:
    """What each option means with its bounds, and the page of the guide about it, by name."""
    found = {}
    for each in _FIELDS:
        bounds, doc = each.metadata["bounds"], each.metadata["doc"]
        if bounds["low"] is not None and bounds["high"] is not None:
            doc = f"{doc}. Integers lie in {bounds['low']}..{bounds['high']}"
        if bounds["above"] is not None:
            doc = f"{doc}. It is > {bounds['above']:g} and <= {bounds['high']:g}"
        found[each.name] = (f"{doc}.", each.metadata["page"])
    return found


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
