"""What all routes share: the model, the engine and the checks of requests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ngramspec import __version__
from ngramspec.draft import Int32
from ngramspec.drafters.tool_calls import CallFormat
from ngramspec.hf_model.compat.names import embedding_count, position_limit, vocab_size
from ngramspec.server.auth import ANYONE, Client
from ngramspec.server.encoding import TextEncoder, TooManyTokensError
from ngramspec.server.engine import Engine
from ngramspec.server.errors import ApiError, bad, refuse_unless
from ngramspec.server.fim import FillInTheMiddle, family_of
from ngramspec.server.grammar_pool import GrammarPool
from ngramspec.server.job import CompletionRequest
from ngramspec.server.openai_types import TEMPLATE_FIELDS, Common, Extras, Prediction
from ngramspec.server.reading import Reading
from ngramspec.server.sampling import Sampling
from ngramspec.server.settings import ServerSettings
from ngramspec.server.shared import Shelf
from ngramspec.server.text import Detokenizer
from ngramspec.server.token_bytes import TokenBytes
from ngramspec.server.token_names import TokenNames
from ngramspec.server.tool_format import find_format

BUILD = f"ngramspec {__version__}"
MAX_REFERENCE_TOKENS = 1 << 18
MAX_LOGPROBS = 1 << 19  # of all tokens of a response; not tuned
DECODED_TOKENS = 4096  # at once; not tuned
JOINED_TOKENS = 16  # of a prompt's end, which are repeated before a prediction; not tuned
SAMPLING_FIELDS = (  # with OpenAI's names, passed on unless they are null
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class Service:
    """A served model: the model, its tokenizer, the engine that runs it, and the settings."""

    def __init__(
        self, model: Any, tokenizer: Any, engine: Engine, settings: ServerSettings
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.engine, self.settings = engine, settings
        self.corpora = Shelf(settings.corpora)
        self.text = TextEncoder(tokenizer)
        self.bytes_of = TokenBytes(tokenizer)
        family = family_of(tokenizer)
        self.fim = None if family is None else FillInTheMiddle(family, tokenizer, self.text.encode)
        self.tool_format, self.why_no_tools = find_format(model, tokenizer)
        plain = self.tool_format is not None and self.tool_format.template is None
        template = str(getattr(tokenizer, "chat_template", None))
        # Fields of a request that the template does not use, so that they have no effect.
        self.idle_fields = frozenset(
            name for name in TEMPLATE_FIELDS if not re.search(rf"\b{name}\b", template)
        )
        self.call_format = CallFormat(tokenizer) if plain else None
        self.encode_prompt = self.text.encode_prompt
        self.reading = Reading(settings.limits)
        self.vocabulary = embedding_count(model) or len(tokenizer)
        limits, users = settings.limits, list(settings.keys) or [ANYONE]
        known = position_limit(model.config)
        self.context: int = min(each for each in (known, limits.context, 1 << 20) if each)
        self.eos = _eos_ids(model, tokenizer)
        self.grammars = GrammarPool(self._vocabulary, limits.grammar_seconds, users, limits.waiting)

    def check_model(self, name: str | None) -> None:
        """Refuse a request that names another model, if the settings say so."""
        if self.settings.other_models == "refuse" and name:
            self.check_name(name)

    def check_name(self, name: str) -> None:
        """Refuse a name that is not the model's."""
        if name != self.settings.name:
            raise ApiError(
                404,
                f"model: there is no model {name!r} here; the model is {self.settings.name!r}",
                param="model",
                code="model_not_found",
            )

    def _vocabulary(self) -> Any:
        """The model's vocabulary as xgrammar's ``TokenizerInfo``."""
        import xgrammar

        return xgrammar.TokenizerInfo.from_huggingface(
            self.tokenizer,
            vocab_size=vocab_size(self.model),
            stop_token_ids=list(self.eos),
        )

    def check_count(self, n: int, param: str, prompts: int = 1) -> None:
        """Refuse a request for more answers than allowed: ``n`` for each of ``prompts`` prompts."""
        most = self.settings.limits.answers
        given = f"{n} to each of {prompts} prompts" if prompts > 1 else str(n)
        refuse_unless(
            n * prompts <= most,
            param if n > 1 else "prompt",
            f"a request may have at most {most} answers, got {given}",
        )

    def check_logprobs(self, requests: Sequence[CompletionRequest], param: str) -> None:
        """Refuse a request for more log-probabilities than one response may have.

        Freeing a response of millions of objects holds the GIL.
        """
        count = sum(
            (each.max_tokens + len(each.prompt) * each.prompt_logprobs) * (each.top_logprobs + 1)
            for each in requests
            if each.top_logprobs is not None
        )
        refuse_unless(
            count <= MAX_LOGPROBS,
            param,
            f"a response may have at most {MAX_LOGPROBS} log-probabilities, and this one might have"
            f" {count}; ask for fewer of each token, fewer tokens or fewer answers",
        )

    def filler(self, param: str) -> FillInTheMiddle:
        """What makes fill-in-the-middle prompts; an ApiError that names the field if none does."""
        if self.fim is None:
            raise bad(
                param,
                f"the model {self.settings.name!r} has no special tokens to fill in the middle;"
                " serve a code model that has them, such as Qwen/Qwen2.5-Coder-0.5B",
            )
        return self.fim

    def head(self, key: str) -> dict[str, Any]:
        """The first fields of an OpenAI response with this id."""
        return {
            "id": key,
            "created": int(time.time()),
            "model": self.settings.name,
            "system_fingerprint": BUILD,
        }

    def check_text(self, text: str, param: str = "prompt") -> None:
        """Refuse a text that cannot fit into the context, without encoding it."""
        most = self.context * self.text.longest
        if len(text) > most:
            raise bad(
                param,
                f"it must have at most {most} characters, which is {self.context} tokens of at most"
                f" {self.text.longest} characters each, got {len(text)}",
                "context_length_exceeded",
            )

    def encode(self, text: str, param: str = "prompt", *, framed: bool = True) -> list[int]:
        """The token ids of a prompt; an error names the field ``param`` if it is too long.

        ``framed``: add the tokens that the tokenizer adds to every text.
        """
        self.check_text(text, param)
        try:
            return self.encode_prompt(text, framed, self.context - 1)
        except TooManyTokensError as error:
            raise self.too_long(param, error.count) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, including special tokens. Decoding holds the GIL, so it is split."""
        if len(ids) <= DECODED_TOKENS:
            text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
            return text
        decoder = Detokenizer(self.tokenizer, (), hidden=())
        ends = range(0, len(ids), DECODED_TOKENS)
        parts = [decoder.add(ids[at : at + DECODED_TOKENS]) for at in ends]
        return "".join((*parts, decoder.add((), last=True)))

    def names(
        self, request: CompletionRequest, *, framing: int = 0, echoed: bool = False
    ) -> TokenNames:
        """The names of one answer's tokens; see ``TokenNames``."""
        prompt, hidden = request.prompt.tolist(), request.hidden
        return TokenNames(
            self.tokenizer, self.bytes_of, prompt, hidden, framing=framing, echoed=echoed
        )

    def check_prompt(self, ids: Sequence[int], param: str = "prompt") -> Int32:
        """A prompt as int32 (n,); an ApiError if it is empty, too long, or has an unknown id."""
        refuse_unless(bool(ids), param, "it must have at least one token, got none")
        self.check_ids(ids, param)
        if len(ids) >= self.context:
            raise self.too_long(param, len(ids))
        return np.array(ids, np.int32)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Refuse ids that are no tokens of the model."""
        most = max(ids, default=0)
        message = f"token ids must be below {self.vocabulary}, got {most}"
        refuse_unless(most < self.vocabulary, param, message)

    def too_long(self, param: str, tokens: int) -> ApiError:
        """The error for a prompt that does not fit into the context."""
        message = f"it must have fewer than {self.context} tokens, got {tokens}"
        return bad(param, message, "context_length_exceeded")

    def ends_of(self, prompt: Int32) -> tuple[int, ...]:
        """The ids that end an answer; a fill-in-the-middle prompt has additional ones."""
        if self.fim is None or not self.fim.asked(prompt):
            return self.eos
        return tuple(dict.fromkeys((*self.eos, *self.fim.ends)))

    def max_tokens(self, asked: int | None, prompt: Int32, param: str | None) -> int:
        """The maximum number of tokens of an answer.

        An ApiError names ``param`` if the context has no room for as many as ``asked``; None: they
        are cut to the room.
        """
        room = self.context - len(prompt)
        if asked is None or param is None:
            return min(self.settings.max_tokens if asked is None else asked, room)
        if asked > room:
            raise bad(
                param,
                f"prompt and answer must have at most {self.context} tokens together, got"
                f" {len(prompt)} and {asked}",
                "context_length_exceeded",
            )
        return asked

    def stores(self, extras: Extras, client: Client) -> tuple[Any, ...]:
        """The stores a request drafts from: its namespace of shared text and the corpora."""
        shared, corpora = self.settings.shared, self.corpora
        own: tuple[Any, ...] = ()
        if shared is not None:
            own = (shared[client.namespace(extras.namespace)],)
        elif extras.namespace is not None:
            raise bad("ngramspec.namespace", "this server shares no text")
        names = dict.fromkeys(corpora if extras.stores is None else extras.stores)
        known = ", ".join(map(repr, corpora)) or "none"
        for name in names:
            message = f"there is no {name!r}; known: {known}"
            refuse_unless(name in corpora, "ngramspec.stores", message)
        return (*own, *(corpora[name] for name in names))

    def reference(
        self, extras: Extras, prediction: Prediction | None = None
    ) -> Callable[[Int32], Int32 | None]:
        """A function from a prompt to the text that its answers will probably resemble, or None.

        A prediction follows the prompt's last tokens, so that its beginning is drafted, too.
        """
        like = self._reference_ids("ngramspec.reference", extras.reference)
        predicted = self._reference_ids(
            "prediction", None if prediction is None else prediction.text
        )

        def reference_for(prompt: Int32) -> Int32 | None:
            joined = prompt[-JOINED_TOKENS:] if len(predicted) else predicted
            whole = np.concatenate((like, joined, predicted))
            return whole if len(whole) else None

        return reference_for

    def _reference_ids(self, name: str, given: str | list[int] | None) -> Int32:
        try:
            ids = self.text.encode(given, MAX_REFERENCE_TOKENS) if isinstance(given, str) else given
            count = len(ids or ())
        except TooManyTokensError as error:
            count = error.count
        if count > MAX_REFERENCE_TOKENS:
            raise bad(name, f"at most {MAX_REFERENCE_TOKENS} tokens, got {count}")
        return np.array(ids or (), np.int32)

    def sampling(self, body: Common, grammar: Any = None) -> Sampling:
        """The sampling of an OpenAI request."""
        given = {name: getattr(body, name) for name in SAMPLING_FIELDS}
        biases = body.logit_bias or {}
        for name in biases:
            known = name.isascii() and name.isdigit() and int(name) < self.vocabulary
            refuse_unless(known, "logit_bias", f"{name!r} is no token id below {self.vocabulary}")
        return Sampling(
            top_k=max(body.top_k or 0, 0),
            logit_bias={int(name): bias for name, bias in biases.items() if bias},
            seed=None if body.seed is None else body.seed % 2**63,
            grammar=grammar,
            **{name: value for name, value in given.items() if value is not None},
        )


def _eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    given = model.generation_config.eos_token_id
    ids = given if isinstance(given, list) else [given]
    every = [*ids, getattr(tokenizer, "eos_token_id", None)]
    return tuple(dict.fromkeys(each for each in every if each is not None))
