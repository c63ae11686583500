"""The bodies of supported requests. Responses use the types of the openai package."""

from __future__ import annotations

from typing import Annotated, Any, Literal, LiteralString

from openai.types.chat import ChatCompletionContentPartTextParam
from openai.types.chat.chat_completion_function_tool import ChatCompletionFunctionTool
from openai.types.chat.chat_completion_named_tool_choice_param import (
    ChatCompletionNamedToolChoiceParam,
)
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ngramspec.server.llama_fields import effective

MAX_ANSWERS = 128  # per prompt, and prompts per request: OpenAI's limit; Limits.answers is lower
MIN_TEMPERATURE = 1e-6  # dividing logits by it does not overflow float32


def _usable(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise PydanticCustomError(
            "temperature_too_low",
            "Input should be 0, which is greedy, or at least {least}",
            {"least": MIN_TEMPERATURE},
        )
    return temperature


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(fail_fast=True)]
Name = Annotated[str, StringConstraints(max_length=1000)]
Names = Annotated[list[Name], Field(max_length=1000, fail_fast=True)]
Path = Annotated[str, StringConstraints(max_length=4096)]
Stop = Annotated[str, StringConstraints(max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=256, fail_fast=True)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Answers = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_usable)]
Probability = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
LogitBias = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=20)], Annotated[float, Field(ge=-100, le=100)]
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
TextParts = Annotated[
    list[ChatCompletionContentPartTextParam], Field(max_length=1000, fail_fast=True)
]
Objects = Annotated[list[dict[str, Any]], Field(max_length=1000, fail_fast=True)]


class Given(BaseModel):
    """An object of a request. A member that is null counts as absent."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class Extras(Given):
    """The field ``ngramspec``, an extension of this server."""

    model_config = ConfigDict(extra="forbid")

    stores: Names | None = None  # the server's corpora to draft from; None: all of them
    reference: str | Tokens | None = None  # that the answer will probably resemble
    # Inside the key's shared text; None: the key's own namespace.
    namespace: Annotated[str, StringConstraints(max_length=200)] | None = None
    usage: bool = False  # whether the response's usage includes statistics of speculation
    speculate: bool = True  # whether the answer is drafted, and added to the shared text


class Prediction(Given):
    """The field ``prediction``: text that the answer will probably resemble."""

    model_config = ConfigDict(extra="allow")  # see reading.py

    type: Literal["content"]
    content: str | TextParts

    @property
    def text(self) -> str:
        """The content; its parts are joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part["text"] for part in self.content)


class StreamOptions(Given):
    """The field ``stream_options``."""

    model_config = ConfigDict(extra="allow")  # see reading.py

    include_usage: bool = False
    include_obfuscation: bool = False


class Body(Given):
    """The fields that all requests for an answer share."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)  # see reading.py

    model: Name | None = None
    stop: Stop | Stops | None = None
    ngramspec: Extras = Field(default_factory=Extras)

    @model_validator(mode="before")
    @classmethod
    def _without_idle_fields(cls, given: Any) -> Any:
        return effective(given) if isinstance(given, dict) else given

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings; an empty one is none."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(each for each in given if each)


class Common(Body):
    """The fields that completions and chats share."""

    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Probability | None = None
    n: Answers | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: Name | None = None
    prediction: Prediction | None = None
    prompt_cache_key: Name | None = None

    @property
    def streams_usage(self) -> bool:
        """Whether a stream ends with an event for the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


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
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Answers | None = None


# A template may form a control token of any other role.
Role = Literal["system", "developer", "user", "assistant", "tool", "function", "ipython"]


class Message(Given):
    """One message of a chat; its other fields are passed to the model's template."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: str | Objects | None = None


class ResponseFormat(Given):
    """The field ``response_format``."""

    model_config = ConfigDict(extra="allow")  # see reading.py

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
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatCompletionNamedToolChoiceParam | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    functions: Objects | None = None
    modalities: Names | None = None
    chat_template_kwargs: Annotated[dict[Name, Any], Field(max_length=100)] | None = None
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
        """Variables for the model's template."""
        fields = {name: getattr(self, name) for name in TEMPLATE_FIELDS}
        known = {name: value for name, value in fields.items() if value is not None}
        return known | (self.chat_template_kwargs or {})

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call, in the form for templates."""
        if self.tool_choice == "none":
            return []
        dumped = (
            tool.function.model_dump(exclude_unset=True, exclude={"strict"})
            for tool in self.tools or []
        )
        return [{"type": "function", "function": each} for each in dumped]

    @property
    def chosen(self) -> str | None:
        """The function that must be called, or None."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice == "required" or self.chosen is not None

    @property
    def several(self) -> bool:
        """Whether an answer may contain several calls."""
        return self.parallel_tool_calls is not False and self.chosen is None

    @property
    def constrained_by(self) -> str | None:
        """The field that requires a grammar for calls, or None."""
        if self.must_call:
            return "tool_choice"
        strict = any(tool.function.strict for tool in self.tools or [])
        return "tools" if self.offered and strict else None


class ExtraFile(Given):
    """One entry of ``input_extra``: a file, or part of one, shown before the edited text."""

    text: str = ""
    filename: Path = ""


class LlamaBody(Body):
    """The fields that llama.cpp's ``/completion`` and ``/infill`` share."""

    prompt: str | Tokens = ""
    n_predict: Annotated[int, Field(ge=-1, lt=2**31)] = -1
    n_indent: Count = 0
    n_cmpl: Answers = 1
    stream: bool = False
    temperature: Annotated[float, Field(le=100), AfterValidator(_usable)] | None = None
    top_k: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 40
    top_p: Probability = 0.95
    min_p: Probability = 0.05
    repeat_penalty: RepetitionPenalty = 1.0
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = -1
    ignore_eos: bool = False
    samplers: Names | None = None
    t_max_predict_ms: Annotated[float, Field(ge=0)] = 0.0
    response_fields: Names | None = None
    return_tokens: bool = False
    n_probs: Annotated[int, Field(ge=0, le=20)] = 0
    logit_bias: LlamaBias = Field(default_factory=list)
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None


class InfillBody(LlamaBody):
    """The body of ``/infill``."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=1000, fail_fast=True)] = Field(
        default_factory=list
    )
    filename: Path = ""


class TokenizeBody(Given):
    """The body of ``/tokenize``."""

    model_config = ConfigDict(extra="allow")

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Given):
    """The body of ``/detokenize``."""

    model_config = ConfigDict(extra="allow")

    tokens: Tokens
