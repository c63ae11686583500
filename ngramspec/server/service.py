"""What all routes share: the model, the engine and the checks of requests."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

import numpy as np
from anyio.to_thread import run_sync
from fastapi import Request, Response

from ngramspec import __version__
from ngramspec.draft import Int32
from ngramspec.drafters.tool_calls import CallFormat
from ngramspec.hf_model.compat.configs import position_limit
from ngramspec.hf_model.compat.models import embedding_count, vocab_size
from ngramspec.server.bodies import (
    TEMPLATE_FIELDS,
    Body,
    Common,
    Extras,
    Prediction,
    Reading,
    joined,
)
from ngramspec.server.engine import (
    AnswerJob,
    Answers,
    CompletionRequest,
    Delta,
    Engine,
    Sampling,
    answers_of,
    while_connected,
)
from ngramspec.server.grammars import INSTALL, GrammarPool, GrammarSource
from ngramspec.server.prompts import (
    FillInTheMiddle,
    TextEncoder,
    TooManyTokensError,
    family_of,
    next_edit,
)
from ngramspec.server.responses import ApiError, Stream, bad, json_response, refuse_unless
from ngramspec.server.settings import ANYONE, Client, ServerSettings
from ngramspec.server.text import Detokenizer, TokenBytes, hidden_ids
from ngramspec.server.tools import find_format
from ngramspec.stores.corpus import Shelf

BUILD = f"ngramspec {__version__}"
MAX_REFERENCE_TOKENS = 1 << 18
MAX_LOGPROBS = 1 << 19  # of all tokens of a response
DECODED_TOKENS = 4096  # at once, as decoding holds the GIL
BAN = -10_000.0  # the bias of a token that is never chosen while another one is allowed
JOINED_TOKENS = 16  # of a prompt's end, which are repeated before a prediction
SAMPLING_FIELDS = {  # with OpenAI's names, passed on unless they are null
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
}


class Service:
    """A served model: the model, its tokenizer, the engine that runs it, and the settings."""

    def __init__(
        self, model: Any, tokenizer: Any, engine: Engine, settings: ServerSettings
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.engine, self.settings = engine, settings
        self.corpora = Shelf(settings.corpora, tokenizer)
        self.text = TextEncoder(tokenizer)
        self.bytes_of, self.hidden = TokenBytes(tokenizer), hidden_ids(tokenizer)
        family = family_of(tokenizer)
        self.fim = None if family is None else FillInTheMiddle(family, self.text)
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
        given = model.generation_config.eos_token_id
        ends = [*(given if isinstance(given, list) else [given])]
        ends.append(getattr(tokenizer, "eos_token_id", None))
        self.eos: tuple[int, ...] = tuple(dict.fromkeys(each for each in ends if each is not None))
        self.grammars = GrammarPool(self._vocabulary, limits.grammar_seconds, users, limits.waiting)

    def check_model(self, name: str | None, *, strict: bool = False) -> None:
        """Refuse the name of another model, if ``strict`` or if the settings say so."""
        own = self.settings.name
        if name and name != own and (strict or self.settings.other_models == "refuse"):
            message = f"model: there is no model {name!r} here; the model is {own!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _vocabulary(self) -> Any:
        import xgrammar

        size, ends = vocab_size(self.model), list(self.eos)
        read = xgrammar.TokenizerInfo.from_huggingface
        return read(self.tokenizer, vocab_size=size, stop_token_ids=ends)

    def check_grammars(self, param: str, value: str) -> None:
        """Refuse a field that needs a grammar if grammars are not available."""
        known = find_spec("xgrammar") is not None
        refuse_unless(known, param, f"{value} needs xgrammar on the server: {INSTALL}")
        refuse_unless(bool(self.eos), param, "the model has no token that ends a text")

    def check_count(self, n: int, param: str, prompts: int = 1) -> None:
        """Refuse a request for more answers than allowed: ``n`` for each of ``prompts`` prompts."""
        max_answers = self.settings.limits.answers
        given = f"{n} to each of {prompts} prompts" if prompts > 1 else str(n)
        message = f"a request may have at most {max_answers} answers, got {given}"
        refuse_unless(n * prompts <= max_answers, param if n > 1 else "prompt", message)

    def filler(self, param: str) -> FillInTheMiddle:
        """What makes fill-in-the-middle prompts; an ApiError that names the field if none does."""
        if self.fim is None:
            missing = f"the model {self.settings.name!r} has no special tokens to fill in"
            remedy = "serve a code model that has them, such as Qwen/Qwen2.5-Coder-0.5B"
            raise bad(param, f"{missing} the middle; {remedy}")
        return self.fim

    def check_text(self, text: str, param: str = "prompt") -> None:
        """Refuse a text that cannot fit into the context, without encoding it."""
        max_size = self.context * self.text.longest
        if len(text) > max_size:
            bound = f"{self.context} tokens of at most {self.text.longest} characters each"
            bound = f"at most {max_size} characters, which is {bound}"
            raise bad(param, f"it must have {bound}, got {len(text)}", "context_length_exceeded")

    def encode(self, text: str, param: str = "prompt", *, framed: bool = True) -> list[int]:
        """The token ids of a prompt; an error names the field ``param`` if it is too long."""
        self.check_text(text, param)
        try:
            return self.encode_prompt(text, framed, self.context - 1)
        except TooManyTokensError as error:
            raise self.too_long(param, error.count) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, including special tokens. Decoding holds the GIL, so it is split."""
        if len(ids) <= DECODED_TOKENS:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
        decoder = Detokenizer(self.tokenizer, ())
        ends = range(0, len(ids), DECODED_TOKENS)
        parts = [decoder.add(ids[at : at + DECODED_TOKENS]) for at in ends]
        return "".join((*parts, decoder.add((), last=True)))

    def check_prompt(self, ids: Sequence[int], param: str = "prompt") -> Int32:
        """A prompt as int32 (n,); an ApiError if it is empty, too long, or has an unknown id."""
        refuse_unless(bool(ids), param, "it must have at least one token, got none")
        self.check_ids(ids, param)
        if len(ids) >= self.context:
            raise self.too_long(param, len(ids))
        return np.array(ids, np.int32)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        largest = max(ids, default=0)
        message = f"token ids must be below {self.vocabulary}, got {largest}"
        refuse_unless(largest < self.vocabulary, param, message)

    def too_long(self, param: str, tokens: int) -> ApiError:
        message = f"it must have fewer than {self.context} tokens, got {tokens}"
        return bad(param, message, "context_length_exceeded")

    def ends_of(self, prompt: Int32) -> tuple[int, ...]:
        """The ids that end an answer; a fill-in-the-middle prompt has additional ones."""
        if self.fim is None or not self.fim.asked(prompt):
            return self.eos
        return tuple(dict.fromkeys((*self.eos, *self.fim.ends)))

    def max_tokens(self, asked: int | None, prompt: Int32) -> int:
        """The limit on an answer, which the context cuts."""
        room = self.context - len(prompt)
        return min(self.settings.max_tokens if asked is None else asked, room)

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

    def reference_ids(self, name: str, given: str | list[int] | None) -> Int32:
        """The ids of text that an answer will probably resemble; none if it is not given."""
        try:
            ids = self.text.encode(given, MAX_REFERENCE_TOKENS) if isinstance(given, str) else given
            count = len(ids or ())
        except TooManyTokensError as error:
            count = error.count
        if count > MAX_REFERENCE_TOKENS:
            raise bad(name, f"at most {MAX_REFERENCE_TOKENS} tokens, got {count}")
        return np.array(ids or (), np.int32)

    def sampling(self, body: Common) -> Sampling:
        return Sampling(
            top_k=max(body.top_k or 0, 0),
            logit_bias=self.biases(body.logit_bias or {}),
            seed=None if body.seed is None else body.seed % 2**63,
            **body.model_dump(include=SAMPLING_FIELDS, exclude_none=True),
        )

    def biases(self, given: Any) -> dict[int, float]:
        """The bias of each token id, see ``LlamaBias``; a text's applies to each of its tokens."""
        found: dict[int, float] = {}
        for key, bias in given.items() if isinstance(given, dict) else given:
            number = isinstance(given, dict) and key.isascii() and key.isdigit() and len(key) <= 20
            ids = [int(key)] if number or isinstance(key, int) else self.text.encode(key)
            self.check_ids(ids, "logit_bias")
            for token in ids:
                found[token] = found.get(token, 0.0) + (BAN if bias is False else bias)
        return {token: bias for token, bias in found.items() if bias}


class Reply(ABC):
    """The answers to a request, and the response that is made of them.

    Making it checks the request and encodes its prompt, which can take seconds. An ApiError names
    the invalid field. ``requests`` is the completion request of each answer, and ``source`` the
    grammar of all. ``done``: whether a stream ends with ``[DONE]``, as OpenAI's.
    """

    body: Body
    requests: list[CompletionRequest]
    source: GrammarSource | None = None
    done = True

    def __init__(self, service: Service, body: Body, client: Client) -> None:
        service.check_model(body.model)
        self.service, self.body, self.client = service, body, client

    def ask(
        self,
        prompts: Sequence[Int32],
        n: int,
        sampling: Sampling,
        *,
        max_tokens: int | None,
        logprobs: tuple[int | None, str],
        texts: Sequence[Any] = (),
        **more: Any,
    ) -> list[CompletionRequest]:
        """The requests of ``n`` answers to each prompt, with ``more`` of their fields.

        ``logprobs`` is a value and the name of its field. Without a prediction, those of ``texts``,
        the prompts as they were given, that have the form of a next edit predict their window.
        """
        service, body = self.service, self.body
        common = {
            "user": self.client.user,
            "hidden": service.hidden,
            "stops": body.stops,
            "stores": service.stores(body.ngramspec, self.client),
            "speculate": body.ngramspec.speculate,
            "session": getattr(body, "prompt_cache_key", None) or None,
            "top_logprobs": logprobs[0],
        }
        like = service.reference_ids("ngramspec.reference", body.ngramspec.reference)
        prediction: Prediction | None = getattr(body, "prediction", None)
        text = None if prediction is None else joined(prediction.content)
        predicted = service.reference_ids("prediction", text)
        found: list[CompletionRequest] = []
        for prompt, given in zip_longest(prompts, texts if text is None else ()):
            ids = predicted
            if isinstance(given, str):
                ids = np.array(service.text.encode(next_edit(given)), np.int32)
            before = prompt[-JOINED_TOKENS:] if len(ids) else ids
            reference = np.concatenate((like, before, ids))
            own = {
                "prompt": prompt,
                "max_tokens": service.max_tokens(max_tokens, prompt),
                "eos": service.ends_of(prompt),
                "reference": reference if len(reference) else None,
            }
            found += answers_of(sampling, n, **(common | own | more))
        rows = [each for each in found if each.top_logprobs is not None]
        count = sum(each.max_tokens * (1 + (each.top_logprobs or 0)) for each in rows)
        message = f"a response may have at most {MAX_LOGPROBS} log-probabilities, got {count}"
        refuse_unless(count <= MAX_LOGPROBS, logprobs[1], message)
        return found

    @abstractmethod
    def whole(self, jobs: Sequence[AnswerJob], found: Sequence[Delta]) -> Any:
        """The JSON of whole answers. With log-probabilities this can take seconds."""

    @abstractmethod
    def events(self, answers: Answers) -> AsyncIterator[Any]:
        """The JSON of each event of a stream."""

    async def respond(self, request: Request) -> Response:
        """Have the answers made, and send them whole or as a stream."""
        requests, user = self.requests, self.client.user
        if self.source is not None:
            compiled = self.service.grammars.processor(user, self.source)
            grammar = await while_connected(request, compiled)
            requests = [
                replace(each, sampling=replace(each.sampling, grammar=grammar)) for each in requests
            ]
        answers = Answers(self.service.engine, requests, self.client)
        if self.body.stream:
            return Stream(self.events(answers), answers.cancel, done=self.done)
        found = await answers.whole(request)
        return await run_sync(lambda: json_response(self.whole(answers.jobs, found)))
