"""The requests that are understood. Answers are made of the types of the openai package."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from openai.types.chat.chat_completion_function_tool import ChatCompletionFunctionTool
from openai.types.chat.chat_completion_named_tool_choice_param import (
    ChatCompletionNamedToolChoiceParam,
)
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

MOST_ANSWERS = 128  # of a prompt, and prompts of a request, as OpenAI's API; settings allow fewer
LEAST_TEMPERATURE = 1e-6  # logits divided by it are far from the end of float32's range


def _usable(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise PydanticCustomError(
            "temperature_too_low",
            "Input should be 0, which is greedy, or at least {least}",
            {"least": LEAST_TEMPERATURE},
        )
    return temperature


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(fail_fast=True)]
Name = Annotated[str, StringConstraints(max_length=1000)]
Names = Annotated[list[Name], Field(max_length=1000, fail_fast=True)]
Path = Annotated[str, StringConstraints(max_length=4096)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=16, fail_fast=True)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Answers = Annotated[int, Field(ge=1, le=MOST_ANSWERS)]
Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_usable)]
Probability = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
LogitBias = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=20)], Annotated[float, Field(ge=-100, le=100)]
    ],
    Field(max_length=1000),
]
Tools = Annotated[list[ChatCompletionFunctionTool], Field(max_length=128, fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(max_length=1000, fail_fast=True)]


class Extras(BaseModel):
    """The field ``ngramspec``, which no other server knows.

    Attributes:
        stores: names of the server's corpora to draft from; None: all of them.
        reference: text, or token ids, that the answer will likely resemble.
        namespace: of the key's shared text; None: the key's own.
        usage: whether the answer's usage says how it was speculated.
    """

    model_config = ConfigDict(extra="forbid")

    stores: Names | None = None
    reference: str | Tokens | None = None
    namespace: Annotated[str, StringConstraints(max_length=200)] | None = None
    usage: bool = False


class StreamOptions(BaseModel):
    """The field ``stream_options``."""

    include_usage: bool = False


class Common(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)  # see fields.py

    model: Name | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Probability | None = None
    n: Answers | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Stops | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: Name | None = None
    ngramspec: Extras = Field(default_factory=Extras)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, none or several."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(Common):
    """The body of ``/v1/completions``."""

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(max_length=MOST_ANSWERS, fail_fast=True)]
        | Annotated[list[Tokens], Field(max_length=MOST_ANSWERS, fail_fast=True)]
    )
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Answers | None = None


class Message(BaseModel):
    """One message of a chat; its other fields go to the model's template as they are."""

    model_config = ConfigDict(extra="allow")

    role: Name
    content: str | Objects | None = None


class ResponseFormat(BaseModel):
    """The field ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


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

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model is told of, as templates take them."""
        if self.tool_choice == "none":
            return []
        dumped = (
            tool.function.model_dump(exclude_unset=True, exclude={"strict"})
            for tool in self.tools or []
        )
        return [{"type": "function", "function": each} for each in dumped]

    @property
    def chosen(self) -> str | None:
        """The function that must be called, if one is named."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice == "required" or self.chosen is not None

    @property
    def several(self) -> bool:
        """Whether there may be several calls in an answer."""
        return self.parallel_tool_calls is not False and self.chosen is None

    @property
    def constrained_by(self) -> str | None:
        """The field that holds calls to a form that text alone cannot promise, or None."""
        if self.must_call:
            return "tool_choice"
        strict = any(tool.function.strict for tool in self.tools or [])
        return "tools" if self.offered and strict else None


class ExtraFile(BaseModel):
    """One entry of ``input_extra``."""

    text: str = ""
    filename: Path = ""


class LlamaBody(BaseModel):
    """What ``/completion`` and ``/infill`` have in common, of llama.cpp's server."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)  # see fields.py

    model: Name | None = None
    prompt: str | Tokens = ""
    n_predict: Annotated[int, Field(ge=-1, lt=2**31)] = -1
    n_indent: Count = 0
    n_cmpl: Answers = 1
    stop: Stops = Field(default_factory=list)
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
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    ngramspec: Extras = Field(default_factory=Extras)


class InfillBody(LlamaBody):
    """The body of ``/infill``."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=1000, fail_fast=True)] = Field(
        default_factory=list
    )
    filename: Path = ""
