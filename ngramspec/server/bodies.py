"""Reading requests in worker threads, so that no request blocks the event loop.

Validating and encoding a body of some megabytes can take seconds. Even in a thread, an operation
that holds the GIL blocks the event loop, so the size of each such operation is bounded beforehand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, LiteralString, ParamSpec, TypeVar
from urllib.parse import quote

import numpy as np
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from openai.types.chat.chat_completion_function_tool import ChatCompletionFunctionTool
from openai.types.chat.chat_completion_named_tool_choice_param import (
    ChatCompletionNamedToolChoiceParam,
)
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from ngramspec.server.responses import ApiError, bad, queue_full
from ngramspec.server.settings import Limits

# By name, the value with which a request means the same as without the field, on every route. It
# is llama.cpp's default, except that the penalties of this server count the whole text.
NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("n_indent", "n_keep", "n_discard", "min_keep", "n_probs", "mirostat"), 0),
    **dict.fromkeys(("t_max_predict_ms", "dynatemp_range", "xtc_probability"), 0),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "dry_multiplier"), 0),
    **dict.fromkeys(("n_cmpl", "typical_p", "repeat_penalty", "repetition_penalty"), 1),
    **dict.fromkeys(("n_predict", "top_n_sigma", "repeat_last_n", "adaptive_target"), -1),
    **dict.fromkeys(("ignore_eos", "grammar_lazy", "post_sampling_probs"), False),
    **dict.fromkeys(("backend_sampling", "return_tokens", "return_progress"), False),
    **{name: [] for name in ("logit_bias", "lora", "response_fields", "stop")},
    "grammar": "",
}
# Parameters of samplers that NEUTRAL's values switch off, with llama.cpp's defaults. No value of
# them has an effect.
PARAMETERS: dict[str, Any] = {
    **{"dynatemp_exponent": 1.0, "xtc_threshold": 0.1, "adaptive_decay": 0.9},
    **{"dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64},
    **{"dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat_tau": 5.0, "mirostat_eta": 0.1},
}
PENALTIES = {"repeat_penalty", "repetition_penalty", "presence_penalty", "frequency_penalty"}


LARGE_BODY_BYTES = 64 << 10  # reading a larger body can take many milliseconds
THREADS = {False: 2, True: 1}  # for small and for large bodies
MAX_MEMBERS = 4096  # of an object
MAX_NAMED_FIELDS = 8  # in a warning's header
# Fields that constrain an answer, in llama.cpp's, vLLM's and SGLang's APIs. Where they are unknown
# they are always refused: an answer without the constraint would be wrong.
CONSTRAINING_FIELDS = (
    *("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("structured_outputs", "regex", "ebnf"),
)
# Names of one thing in OpenAI's and llama.cpp's APIs, to suggest the other one.
SAME_FIELDS = {
    "max_new_tokens": ("n_predict",),
    "n_predict": ("max_completion_tokens", "max_tokens"),
    **dict.fromkeys(CONSTRAINING_FIELDS, ("response_format", "grammar", "json_schema")),
}
# Fields of OpenAI's and llama.cpp's APIs that do not change the answer's text, so they can be
# ignored: they concern the user, billing, storage, and the slot or cache to use.
IGNORABLE_FIELDS = {
    *("metadata", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store"),
    *("cache_prompt", "id_slot", "n_cache_reuse", "sse_ping_interval"),
    *("t_max_prompt_ms", "timings_per_token", "verbose", "stream_options"),
}

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)
MAX_ANSWERS = 128  # per prompt, and prompts per request: OpenAI's limit; Limits.answers is lower
MAX_STOP_CHARACTERS = 4096  # they are compared with each new token's text
MIN_TEMPERATURE = 1e-6  # the limit of sampling: dividing logits by less overflows float32


def _usable(temperature: float) -> float:
    return temperature if temperature >= MIN_TEMPERATURE else 0.0  # greedy


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(fail_fast=True)]
Name = Annotated[str, StringConstraints(max_length=1000)]
Names = Annotated[list[Name], Field(max_length=1000, fail_fast=True)]
FileName = Annotated[str, StringConstraints(max_length=4096)]
Stop = Annotated[str, StringConstraints(max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=256, fail_fast=True)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
AnswerCount = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
TopCount = Annotated[int, Field(ge=0, le=20)]  # most probable tokens to report
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_usable)]
Probability = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
LogitBias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")],
        Annotated[float, Field(ge=-100, le=100)],
    ],
    Field(max_length=1000),
]
TokenOrText = Annotated[int, Field(ge=0, lt=2**31, strict=True)] | Stop
# Added to the score of a token, or of each token of a text; False: it is never chosen.
Bias = Literal[False] | Annotated[float, Field(ge=-10_000, le=10_000, strict=True)]
LlamaBias = (
    Annotated[list[tuple[TokenOrText, Bias]], Field(max_length=1000, fail_fast=True)]
    | Annotated[dict[Stop, Bias], Field(max_length=1000)]
)
Tools = Annotated[list[ChatCompletionFunctionTool], Field(max_length=128, fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(max_length=1000, fail_fast=True)]


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


class CheckedModel(BaseModel):
    """An object of a request. A member that is null counts as absent."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)  # see ``check_fields``

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, given: Any) -> Any:
        return cls.that_count(given) if isinstance(given, dict) else given

    @classmethod
    def that_count(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The members that have an effect."""
        return {name: value for name, value in given.items() if value is not None}


class TextPart(CheckedModel):
    """A part of a text, the only kind of parts that is supported."""

    type: Literal["text"]
    text: str


TextContent = str | Annotated[list[TextPart], Field(max_length=1000, fail_fast=True)]


def joined(text: str | list[TextPart] | None) -> str:
    """The text of a ``TextContent``; its parts are joined."""
    return text if isinstance(text, str) else "".join(part.text for part in text or ())


class Extras(CheckedModel):
    """The field ``ngramspec``, an extension of this server."""

    stores: Names | None = None  # the server's corpora to draft from; None: all of them
    reference: str | Tokens | None = None  # that the answer will probably resemble
    # Inside the key's shared text; None: the key's own namespace.
    namespace: Annotated[str, StringConstraints(max_length=200)] | None = None
    usage: bool = False  # whether the response's usage includes statistics of speculation
    speculate: bool = True  # whether the answer is drafted, and added to the shared text


class Prediction(CheckedModel):
    """The field ``prediction``: text that the answer will probably resemble."""

    type: Literal["content"]
    content: TextContent


class StreamOptions(CheckedModel):
    """The field ``stream_options``."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Body(CheckedModel):
    """The fields that all requests for an answer share."""

    model: Name | None = None
    stream: bool | None = None
    stop: Stop | Stops | None = None
    ngramspec: Extras = Field(default_factory=Extras)

    @classmethod
    def that_count(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields that have an effect."""
        found = {
            name: value
            for name, value in given.items()
            if name not in PARAMETERS and not (name in NEUTRAL and _same(value, NEUTRAL[name]))
        }
        if not PENALTIES & found.keys():
            found.pop("repeat_last_n", None)
        return super().that_count(found)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings; an empty one is none."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if sum(map(len, given)) > MAX_STOP_CHARACTERS:
            raise bad("stop", f"at most {MAX_STOP_CHARACTERS} characters together")
        return tuple(each for each in given if each)


class Common(Body):
    """The fields that completions and chats share."""

    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Probability | None = None
    n: AnswerCount | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    user: Name | None = None
    prediction: Prediction | None = None
    prompt_cache_key: Name | None = None


class CompletionBody(Common):
    """The body of ``/v1/completions``."""

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(max_length=MAX_ANSWERS, fail_fast=True)]
        | Annotated[list[Tokens], Field(max_length=MAX_ANSWERS, fail_fast=True)]
    )
    suffix: str | None = None
    echo: bool | None = None
    logprobs: TopCount | None = None
    best_of: AnswerCount | None = None


# A template may form a control token of any other role.
Role = Literal["system", "developer", "user", "assistant", "tool", "function", "ipython"]


class Message(CheckedModel):
    """One message of a chat; its other fields are passed to the model's template."""

    role: Role
    content: TextContent | None = None


class ResponseFormat(CheckedModel):
    """The field ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


TEMPLATE_FIELDS = ("reasoning_effort", "verbosity")  # of a chat, passed to the model's template
UNSUPPORTED_TOOLS: dict[str, LiteralString] = {
    "allowed_tools": "'allowed_tools' is not supported here; give only the allowed functions in"
    " tools, and 'auto' or 'required' as tool_choice",
    "custom": "custom tools are not supported here; use a tool of type 'function'",
}


class ChatBody(Common):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatCompletionNamedToolChoiceParam | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    functions: Objects | None = None
    modalities: Names | None = None
    chat_template_kwargs: Annotated[dict[Name, Any], Field(max_length=100)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content"] | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None

    @field_validator("tools", "tool_choice", mode="before")
    @classmethod
    def _without_unsupported_kinds(cls, given: Any) -> Any:
        """Say what to use instead, which the errors of the fields' types do not."""
        objects = given if isinstance(given, list) else [given]
        for kind in (each.get("type") for each in objects if isinstance(each, dict)):
            if isinstance(kind, str) and kind in UNSUPPORTED_TOOLS:
                raise PydanticCustomError("unsupported_value", UNSUPPORTED_TOOLS[kind])
        return given

    @property
    def variables(self) -> dict[str, Any]:
        known = self.model_dump(include=set(TEMPLATE_FIELDS), exclude_none=True)
        continues = bool(self.continue_final_message)
        begins = not continues and self.add_generation_prompt is not False
        ending = {"continue_final_message": continues, "add_generation_prompt": begins}
        return known | (self.chat_template_kwargs or {}) | ending

    @property
    def continuable(self) -> bool:
        """Whether the last message is text of the assistant."""
        last = self.messages[-1]
        return last.role == "assistant" and bool(joined(last.content))

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call, in the form for templates."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        shown: dict[str, Any] = {"exclude_unset": True, "exclude": {"strict"}}
        return [
            {"type": "function", "function": each.function.model_dump(**shown)} for each in tools
        ]

    @property
    def chosen(self) -> str | None:
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or self.chosen is not None

    @property
    def several(self) -> bool:
        return self.parallel_tool_calls is not False and self.chosen is None

    @property
    def constrained_by(self) -> str | None:
        """The field that requires a grammar for calls, or None."""
        if self.must_call:
            return "tool_choice"
        strict = any(tool.function.strict for tool in self.tools or [])
        return "tools" if self.offered and strict else None


def _named(*names: str) -> Any:
    """A field with several names; of those that are given, the first one has an effect."""
    return Field(validation_alias=AliasChoices(*names))


class ExtraFile(CheckedModel):
    """One entry of ``input_extra``: a file, or part of one, shown before the edited text."""

    text: str = ""
    filename: FileName = ""


class LlamaBody(Body):
    """The fields that llama.cpp's ``/completion`` and ``/infill`` share."""

    prompt: str | Tokens = ""
    n_predict: Annotated[
        int, Field(ge=-1, lt=2**31), _named("n_predict", "max_completion_tokens", "max_tokens")
    ] = -1
    n_indent: Count = 0
    n_cmpl: Annotated[AnswerCount, _named("n_cmpl", "n")] = 1
    stream: bool = False
    temperature: Annotated[float, Field(le=100), AfterValidator(_usable)] | None = None
    top_k: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 40
    top_p: Probability = 0.95
    min_p: Probability = 0.05
    repeat_penalty: RepetitionPenalty = 1.0
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    seed: Seed = -1
    ignore_eos: bool = False
    samplers: Names | None = None
    t_max_predict_ms: Annotated[float, Field(ge=-1)] = 0.0
    response_fields: Names | None = None
    return_tokens: bool = False
    n_probs: Annotated[TopCount, _named("n_probs", "logprobs")] = 0
    logit_bias: LlamaBias = Field(default_factory=list)
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    @classmethod
    def that_count(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields that have an effect, each with the first of the names that it is given by."""
        found = dict(given)
        for field in cls.model_fields.values():
            if isinstance(field.validation_alias, AliasChoices):
                names = [str(each) for each in field.validation_alias.choices]
                for name in [each for each in names if given.get(each) is not None][1:]:
                    del found[name]
        return super().that_count(found)


class InfillBody(LlamaBody):
    """The body of ``/infill``."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=1000, fail_fast=True)] = Field(
        default_factory=list
    )
    filename: FileName = ""


class TokenizeBody(CheckedModel):
    """The body of ``/tokenize``."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(CheckedModel):
    """The body of ``/detokenize``."""

    tokens: Tokens


class Reading:
    """Reads requests in threads; large ones use another, so that small ones do not wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._limiters = {large: CapacityLimiter(count) for large, count in THREADS.items()}
        self.held = dict.fromkeys(THREADS, 0)  # requests that use or await a thread

    async def body(self, request: Request, kind: type[B]) -> B:
        check_type(request.headers)
        raw = await request.body()
        request.state.large = len(raw) > LARGE_BODY_BYTES
        return await self.run(request, validated, raw, kind, self._limits)

    async def run(
        self, request: Request, function: Callable[P, T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Call a function in a thread for a request whose body has been read."""
        large = bool(request.state.large)
        if self.held[large] >= THREADS[large] + self._limits.waiting:
            raise queue_full()
        self.held[large] += 1
        try:
            return await run_sync(lambda: function(*args, **named), limiter=self._limiters[large])
        finally:
            self.held[large] -= 1


def check_type(headers: Mapping[str, str]) -> None:
    """Refuse a body that is compressed, or that is not declared as JSON."""
    coding, given = headers.get("content-encoding", ""), headers.get("content-type", "")
    if coding.strip().lower() not in ("", "identity"):
        message = f"the body must not be compressed, got Content-Encoding {coding[:100]!r}"
        raise ApiError(415, message, code="unsupported_encoding")
    kind = given.partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(.*\+)?json", kind):
        message = "the body must be a JSON object, sent as application/json"
        raise ApiError(400, f"{message}, got {given[:100]!r}")


def validated(raw: bytes, kind: type[B], limits: Limits) -> B:
    """The body of a JSON text; see ``Reading.body``."""
    found: list[Any]
    try:
        return kind.model_validate(json_value(raw, limits, "the body"))
    except ValidationError as error:
        found = error.errors(include_url=False)
    except ValueError as error:
        found = [{"type": "json_invalid", "loc": (), "msg": str(error)}]
    raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found])


def json_value(raw: bytes, limits: Limits, place: str) -> Any:
    """The value of a JSON text in UTF-8, parsed only if it has few enough values."""
    values, opened, members = json_shape(raw)
    # Their number is bounded in proportion to the maximum size of a body.
    arrays, scalars, named = (max(limits.body // size, 1024) for size in (128, 16, 64))
    check_count(place, arrays, "JSON arrays and objects", opened)
    check_count(place, scalars, "JSON values", values)
    check_count(place, named, "members of JSON objects", members)
    # NaN is not JSON. The cache of strings would make parsing up to seven times slower.
    value = from_json(raw, allow_inf_nan=False, cache_strings="none")
    containers = [value]
    while containers:  # each member of an object may be an error
        each = containers.pop()
        if isinstance(each, dict):
            check_count(place, MAX_MEMBERS, "members in an object", len(each))
        if isinstance(each, dict | list):
            children = each.values() if isinstance(each, dict) else each
            containers += [child for child in children if isinstance(child, dict | list)]
    return value


def json_shape(raw: bytes) -> tuple[int, int, int]:
    """Bounds of what a parser would create from a JSON text, without holding the GIL for long."""
    text = np.frombuffer(raw, np.uint8)
    plain = np.flatnonzero(text != ord("\\"))
    backslashes = np.diff(plain, prepend=-1) - 1  # before each of these bytes
    text = text[plain]
    quotes = (text == ord('"')) & (backslashes % 2 == 0)
    # Outside strings:
    counts = np.bincount(text[~np.logical_xor.accumulate(quotes)], minlength=256)
    opened = int(counts[ord("[")] + counts[ord("{")])
    return int(counts[ord(",")]) + opened + 1, opened, int(counts[ord(":")])


def check_count(place: str, bound: int, things: str, given: int) -> None:
    """Refuse more things than allowed in a part of a request."""
    if given > bound:
        message = f"{place} must have at most {bound} {things}, got {given}"
        raise ApiError(400, message, code="too_many_values")


def check_fields(body: BaseModel, request: Request, mode: str, idle: Iterable[str] = ()) -> None:
    """Refuse unknown fields that might change the answer, or name them in the headers."""
    objects = [(f"{name}.", value) for name, value in body if isinstance(value, BaseModel)]
    unknown = [
        (place + name, type(owner).model_fields)
        for place, owner in (("", body), *objects)
        for name in owner.model_extra or {}
        if name not in IGNORABLE_FIELDS
    ]
    fields = type(body).model_fields
    unknown += [(name, fields) for name in idle if getattr(body, name, None) is not None]
    if mode == "warn" and unknown:
        names = [quote(name[:100], safe="") for name, _ in unknown[:MAX_NAMED_FIELDS]]
        request.scope["state"]["ignored"] = ", ".join(names)
        always = (*CONSTRAINING_FIELDS, "response_format")
        unknown = [each for each in unknown if each[0].partition(".")[0] in always]
    for name, fields in unknown:
        why = _why_unknown(name.rpartition(".")[2], fields)
        raise bad(name[:100], why, "unknown_parameter")


def _why_unknown(name: str, fields: Iterable[str]) -> str:
    if name in fields:
        return "the model's chat template does not use it"
    same = [each for each in SAME_FIELDS.get(name, ()) if each in fields]
    if not same and name in NEUTRAL:
        alone = " together with a penalty" if name == "repeat_last_n" else ""
        return f"this server supports only {json.dumps(NEUTRAL[name])} here{alone}"
    known = same or get_close_matches(name[:100], fields, 1, cutoff=0.75)
    hint = f"; did you mean {known[0]!r}?" if known else ""
    return f"this server does not know the field{hint}"
