"""Tools in the template, calls in the answer, and calls in an answer's text."""

from __future__ import annotations

import json
import random

import pytest
from conftest import tiny_llama
from serving import END, HI, VOCAB, Script, ask, letters, parts_of, plain, refused, served
from serving import TOOLS_CHAT as CHAT

from ngramspec.server.engine import Sampling
from ngramspec.server.tools import Part, TagParser, TemplateParser, find_format, joined

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
ADDED = ("add", {"a": 1, "b": [2]})
NOTHING = "<tool_call>{}</tool_call>"
# An answer, its content, and its calls.
ANSWERS = [
    ("", "", []),
    ("only text < and <tool, \n", "only text < and <tool, \n", []),
    (ONE, "", [ADDED]),
    (f"\n\n{ONE}\n{ONE}\n", "", [ADDED, ADDED]),
    (f"Let me see.\n{ONE}", "Let me see.", [ADDED]),
    (f"before {ONE} between\n{ONE} behind \n", "beforebetweenbehind \n", [ADDED, ADDED]),
    (
        '<tool_call>[{"name": "f"}, {"name": "g", "parameters": {"x": 0}}]</tool_call>',
        "",
        [("f", {}), ("g", {"x": 0})],
    ),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", {"x": 1})]),
    (
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>é"}}</tool_call>',
        "",
        [("f", {"x": "</tool_call>é"})],
    ),
    # What cannot be read stays text, and what comes after it is read.
    (ONE[:-12], ONE[:-12], []),
    (ONE[:30], ONE[:30], []),
    (f"{ONE} {ONE[:-5]}", ONE[:-5], [ADDED]),
    (f"x {NOTHING} y", f"x {NOTHING} y", []),
    (f"x {NOTHING} y\n{ONE}", f"x {NOTHING} y", [ADDED]),
    (f"<tool_call>{ONE}", "<tool_call>", [ADDED]),
    ('<tool_call>{"name": "f", "arguments": "no object"}</tool_call>', None, []),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
    # What a response cannot hold as JSON: half a character, and a number that is infinite.
    ('<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', None, []),
    ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', None, []),
    ("<tool_call>" + "[" * 200_000 + "</tool_call>", None, []),
    # No calls are looked for in thoughts.
    (f"<think>{ONE}</think>\n{ONE}", f"<think>{ONE}</think>", [ADDED]),
    (f"<think>{ONE}", f"<think>{ONE}", []),
    ("a <think", "a <think", []),
]


def read(parser, text, size):
    """Content and calls of a text that comes in pieces of about ``size`` characters."""
    rng, parts, at = random.Random(size), [], 0
    while at < len(text):
        end = at + (size if size < 3 else rng.randint(1, size))
        parts += parser.add(text[at:end])
        at = end
    parts += parser.add("", last=True)
    calls = [(part.call.name, json.loads(part.call.arguments)) for part in parts if part.call]
    return "".join(part.content for part in parts), calls


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10**6])
@pytest.mark.parametrize(("text", "content", "calls"), ANSWERS, ids=lambda each: str(each)[:40])
def test_calls_are_read_whatever_the_pieces(text, content, calls, size):
    if len(text) > 10_000:
        size = max(size, 100_000)
    assert read(TagParser(), text, size) == (text if content is None else content, calls)


def test_text_is_shown_as_soon_as_it_can_be_no_call():
    parser = TagParser()
    assert parser.add("Hello ") == [Part("Hello")]
    assert parser.add("<too") == []
    assert parser.add("ls>") == [Part(" <tools>")]
    assert parser.add(f"\n{ONE}"[:-1]) == []
    assert [part.call.name for part in parser.add(">")] == ["add"]


BROKEN = [
    ('{"name": "f", "arguments": {"x": 1', "</tool_call>"),  # brackets are open
    ('{"name": "f", "arguments": {"x": 1}}', "}"),  # one too many
    ('{"name": "f", "arguments": {"x": ', "NaN"),
    ('{"name": "f", "arguments": {"x": "y', "\n"),  # no line ends in a string
    ('{"name": "f",', "}"),
    ("", "<function=f>"),
    ("\n", "add(1)"),
    ("{", "'name'"),
    ('{"name": 3', "}"),  # JSON, but no call
    ('{"arguments": {}', "}"),
    ('[{"name": "f"}, 1', "]"),
    ("[", "]"),
    ('{"name": "f"}', " and more"),
    ('{"name": "f"}\n</tool_', "_call>"),
]


@pytest.mark.parametrize(("begun", "clear"), BROKEN)
def test_a_broken_call_is_shown_as_soon_as_it_is_clear_that_it_is_none(begun, clear):
    parser = TagParser()
    assert parser.add("<tool_call>") == []
    for letter in begun:
        assert parser.add(letter) == []
    shown, at = "", 0
    while not shown:
        shown, at = "".join(part.content for part in parser.add(clear[at])), at + 1
    assert f"<tool_call>{begun}{clear[:at]}".startswith(shown)
    shown += "".join(part.content for part in parser.add(f"{clear[at:]} text."))
    assert shown == f"<tool_call>{begun}{clear} text."
    assert [part.call.name for part in parser.add(ONE)] == ["add"]


def test_a_prompt_may_end_in_a_thought():
    assert read(TagParser(thinking=True), f"{ONE}</think>{ONE}", 7) == (f"{ONE}</think>", [ADDED])


TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant:",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<call:(?P<name>\w+)>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"content": "text"},
    },
}
CALLED = '<call:add>{"a": 1, "b": [2]}</call>'


def template_parser(prefix="user:x;assistant:"):
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    return TemplateParser(parsing.ResponseParser(TEMPLATE, prefix=prefix), ["</call>"])


@pytest.mark.parametrize("size", [1, 3, 9, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text", "just text", []),
        (f"Let me see.\n{CALLED}", "Let me see.", [ADDED]),
        (f"{CALLED}\n{CALLED}", "", [ADDED, ADDED]),
        (f"text {CALLED[:-3]}", f"text {CALLED[:-3]}", []),
        (f"text {CALLED[:-7]}", f"text {CALLED[:-7]}", []),
        (f"{CALLED}{CALLED[:-9]}", CALLED[:-9], [ADDED]),
        ("text <call:add>no JSON</call> more", "text <call:add>no JSON</call> more", []),
        ("text <call:add>[1]</call> more", "text <call:add>[1]</call> more", []),
        (f"<call:add>no JSON</call>{CALLED}", f"<call:add>no JSON</call>{CALLED}", []),
    ],
)
def test_a_response_template_is_read_by_transformers(text, content, calls, size):
    assert read(template_parser(), text, size) == (content, calls)


def test_the_reasoning_of_a_response_template_is_apart():
    parts = template_parser().add(f"<think>hm, so</think>Yes.{CALLED}", last=True)
    assert joined(parts)[:2] == [Part(reasoning="hm, so"), Part("Yes.")]
    begun = template_parser("user:x;assistant:<think>").add("so</think>Yes.", last=True)
    assert begun == [Part(reasoning="so"), Part("Yes.")]


chat = pytest.importorskip("openai.types.chat", reason="pip install 'ngramspec[serve]'")
ROUTE = "/v1/chat/completions"
FLAG = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
FLAG["additionalProperties"] = False
ADD = {"name": "add", "description": "Adds.", "parameters": FLAG}
TOOLS = [{"type": "function", "function": ADD}]
NAMED = {"type": "function", "function": {"name": "add"}}
OTHER = {"type": "function", "function": {"name": "other"}}
HI = HI | {"temperature": 0}
NO_SPACES = {"logit_bias": {"0": -100, "95": -100}}  # else a random model writes them for ever
CALL = '<tool_call>\n{"name":"add","arguments":{"a":true}}\n</tool_call>'  # a space is padding


@pytest.fixture(scope="module")
def caller():
    """A server whose model knows tools, and ends its answers."""
    model = tiny_llama(vocab=VOCAB, positions=2048, eos_token_id=END)
    with served(model, letters(chat=CHAT)) as client:
        yield client


class Beginning(Script):
    """Has the model begin with a text, and go on as it likes."""

    def __call__(self, input_ids, scores):
        begun = input_ids.shape[1] - self.prompt < len(self.ids) - 1
        return super().__call__(input_ids, scores) if begun else scores


@pytest.fixture
def says(monkeypatch):
    def say(text):
        ids = letters()(text)["input_ids"]
        monkeypatch.setattr(Sampling, "_processors", lambda self, prompt: [Script(prompt, ids)])

    return say


def function_of(call):
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("arguments", ['{"a": true}', "{}", ""])
def test_tools_and_calls_go_through_the_models_template(caller, arguments):
    said = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [said]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    strict = [{"type": "function", "function": ADD | {"strict": False}}]
    answer = ask(caller, ROUTE, messages=messages, tools=strict, temperature=0, max_tokens=8)
    text = (
        json.dumps(TOOLS[0]) + 'as <tool_call>{"name": N}</tool_call>;user:hi;'
        f'assistant:{{"name": "add", "arguments": {arguments or "{}"}}};tool:3;assistant:'
    )
    model = tiny_llama(vocab=VOCAB, positions=2048, eos_token_id=END)
    assert answer["usage"]["prompt_tokens"] == len(letters()(text)["input_ids"])
    content = answer["choices"][0]["message"]["content"]
    assert content == plain(model, letters(), text, 8)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_an_answer(caller, says, stream):
    text, ids = f"Adding.\n{CALL}\n{CALL}", set()
    says(text)
    parts = parts_of(caller, ROUTE, stream, tools=TOOLS, n=2, logprobs=True, **HI)
    for part in parts:
        kind = chat.ChatCompletionChunk if stream else chat.ChatCompletion
        kind.model_validate(part, strict=True)
    choices = [choice for part in parts for choice in part["choices"]]
    for index in range(2):
        own = [choice for choice in choices if choice["index"] == index]
        said = [choice["delta" if stream else "message"] for choice in own]
        assert said[0]["role"] == "assistant"
        assert "".join(each.get("content") or "" for each in said) == "Adding."
        calls = [call for each in said for call in each.get("tool_calls") or []]
        assert [function_of(call) for call in calls] == [("add", {"a": True})] * 2
        assert [call["type"] for call in calls] == ["function"] * 2
        assert not stream or [call["index"] for call in calls] == [0, 1]
        ids.update(call["id"] for call in calls)
        reasons = [choice["finish_reason"] for choice in own]
        assert reasons == [None] * (len(own) - 1) + ["tool_calls"]
        rows = [(choice["logprobs"] or {"content": []})["content"] for choice in own]
        tokens = [row["token"] for some in rows for row in some]
        assert "".join(tokens[:-1]) == text, "log-probabilities are those of all tokens"
    assert len(ids) == 4
    says(CALL)
    assert ask(caller, ROUTE, tools=TOOLS, **HI)["choices"][0]["message"]["content"] is None


def test_one_call_ends_the_answer_where_there_may_be_no_more(caller, says):
    says(f"Adding.\n{CALL}\n{CALL}_more")
    body = {"tools": TOOLS, "parallel_tool_calls": False, **HI}
    answer = ask(caller, ROUTE, **body)
    choice = answer["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Adding.", "tool_calls")
    assert answer["usage"]["completion_tokens"] == len(f"Adding.\n{CALL}")
    cut = ask(caller, ROUTE, stop="</tool_call>", **body)["choices"][0]
    assert "tool_calls" not in cut["message"]
    assert cut["message"]["content"] == f"Adding.\n{CALL}".removesuffix("</tool_call>")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_stays_text(caller, says, stream):
    whole = f"{CALL}\n{CALL}"

    def answer(**body):
        found = parts_of(caller, ROUTE, stream, **{"tools": TOOLS, **HI, **body})
        parts = [each["choices"][0] for each in found]
        messages = [part["delta" if stream else "message"] for part in parts]
        content = "".join(each.get("content") or "" for each in messages)
        calls = [call for each in messages for call in each.get("tool_calls") or []]
        return content, len(calls), parts[-1]["finish_reason"]

    says(whole)
    assert answer() == ("", 2, "tool_calls")
    for count in (len(whole) - 1, len(CALL) + 20):
        assert answer(max_tokens=count) == (whole[len(CALL) + 1 : count], 1, "length")
    assert answer(max_tokens=len(CALL)) == ("", 1, "length")
    assert answer(max_tokens=20) == (whole[:20], 0, "length")
    assert answer(stop="true") == (whole[: whole.index("true")], 0, "stop")
    assert answer(stop="\n<tool") == ("", 1, "tool_calls")
    assert answer(tool_choice="none") == answer(tools=None) == (whole, 0, "stop")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_is_forced_by_a_grammar(caller, choice):
    pytest.importorskip("xgrammar")
    tools = TOOLS if choice == "required" else [OTHER, *TOOLS]
    body = {"tools": tools, "tool_choice": choice, "max_tokens": 90, **NO_SPACES, **HI}
    if choice == "required":
        body["parallel_tool_calls"] = False
    answer = ask(caller, ROUTE, **body)["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    name, arguments = function_of(call)
    assert name == "add"
    assert isinstance(arguments["a"], bool)


def test_a_schema_that_cannot_be_kept_is_refused(caller):
    pytest.importorskip("xgrammar")
    wrong = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "no"}}}}
    body = {"tools": [{"type": "function", "function": wrong}], "tool_choice": "required"}
    error = refused(caller, ROUTE, HI | body, "tools")
    assert "schema" in error["message"]


def test_a_strict_function_is_kept_to_where_it_is_called(caller, monkeypatch):
    pytest.importorskip("xgrammar")
    tools = [{"type": "function", "function": ADD | {"strict": True}}]
    body = {"tools": tools, "max_tokens": 120, **NO_SPACES, **HI}
    free = ask(caller, ROUTE, **body)["choices"][0]["message"]
    assert free["content"], "it may say anything else"
    assert "tool_calls" not in free
    own = Sampling._processors

    def begun(self, prompt):
        return [Beginning(prompt, letters()("So:<tool_call>")["input_ids"]), *own(self, prompt)]

    monkeypatch.setattr(Sampling, "_processors", begun)
    message = ask(caller, ROUTE, **body)["choices"][0]["message"]
    assert message["content"].startswith("So:")
    name, arguments = function_of(message["tool_calls"][0])
    assert (name, list(arguments)) == ("add", ["a"])


def test_a_special_token_may_begin_a_call(says, monkeypatch):
    from tokenizers import AddedToken

    tokenizer = letters(chat=CHAT)
    for name in ("<tool_call>", "</tool_call>", "<|x|>"):
        tokenizer.add_tokens([AddedToken(name, special=True)])
    text = CALL.replace("\n{", "<|x|>{")
    ids = tokenizer(text)["input_ids"]
    assert len(ids) < len(text) - 20
    model = tiny_llama(vocab=len(tokenizer) + 4, positions=2048, eos_token_id=END)
    monkeypatch.setattr(Sampling, "_processors", lambda self, prompt: [Script(prompt, ids)])
    with served(model, tokenizer) as client:
        answer = ask(client, ROUTE, tools=TOOLS, **HI)["choices"][0]
    assert [function_of(each) for each in answer["message"]["tool_calls"]] == [("add", {"a": True})]


MODELS = [
    (CHAT, True),
    (CHAT.replace("<tool_call>", "<call>"), False),
    (CHAT.replace('{"name": N}', "{function-name}"), False),
    (CHAT.replace('{"name": N}', "<function=N>"), False),
    ("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:", False),
]


@pytest.mark.parametrize(("chat", "known"), MODELS)
def test_the_form_of_calls_is_found_in_the_template(model, chat, known):
    found, why = find_format(model, letters(chat=chat))
    assert (found is not None, not why) == (known, known)


def test_a_models_own_response_template_is_used(model, says):
    pytest.importorskip("transformers.utils.chat_parsing")
    tokenizer = letters(chat=CHAT.replace("<tool_call>", "<call>"))
    tokenizer.response_template = TEMPLATE
    model = tiny_llama(vocab=VOCAB, positions=2048, eos_token_id=END)
    says('<think>so</think>Yes.<call:add>{"a":true}</call>')
    with served(model, tokenizer) as client:
        message = ask(client, ROUTE, tools=TOOLS, **HI)["choices"][0]["message"]
        assert message["content"] == "Yes."
        assert message["reasoning_content"] == "so"
        assert [function_of(call) for call in message["tool_calls"]] == [("add", {"a": True})]
        body = {**HI, "tools": TOOLS, "tool_choice": "required"}
        refused(client, ROUTE, body, "tool_choice")


SAID = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
BAD_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}
CUSTOM = {"type": "custom", "custom": {"name": "x"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {}}
REFUSED = [  # each with what to use
    ({"tools": TOOLS, "tool_choice": ALLOWED}, "tool_choice", "only the allowed"),
    ({"tools": TOOLS, "tool_choice": CUSTOM}, "tool_choice", "custom tools are not"),
    ({"tools": [*TOOLS, CUSTOM]}, "tools", "custom tools are not"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [OTHER], "tool_choice": NAMED}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
    ({"functions": [ADD]}, "functions"),
    ({"messages": [BAD_CALL]}, "messages"),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_cannot_be_is_refused_by_the_fields_name(caller, case):
    body, param, *words = case
    error = refused(caller, ROUTE, HI | body, param)
    assert all(each in error["message"] for each in words)
    assert "validation" not in error["message"]


PICKY = (
    "{% if messages[0].role == 'ipython' %}{{ raise_exception('No robots.') }}{% endif %}"
    "{% if tools and messages[0].role != 'user' %}"
    "{{ raise_exception('Cannot put tools before the first user message.') }}{% endif %}"
)


def test_what_a_template_refuses_is_named(model):
    with served(model, letters(chat=PICKY + CHAT)) as client:
        for role, tools, blamed in [
            ("ipython", None, "messages"),
            ("ipython", TOOLS, "messages"),
            ("system", TOOLS, "tools"),
        ]:
            body = {"messages": [{"role": role, "content": "hi"}], "tools": tools, "max_tokens": 1}
            error = refused(client, ROUTE, body, blamed)
            said = "No robots" if blamed == "messages" else "Cannot put tools"
            assert f"refuses them: {said}" in error["message"]
        ask(client, ROUTE, messages=[{"role": "system", "content": "hi"}], max_tokens=1)
        ask(client, ROUTE, tools=TOOLS, max_tokens=1, **HI)


def test_without_xgrammar_a_form_is_refused_by_the_fields_name(caller, monkeypatch):
    monkeypatch.setattr("ngramspec.server.service.find_spec", lambda name: None)
    strict = [{"type": "function", "function": ADD | {"strict": True}}]
    for body, param in (
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": strict}, "tools"),
    ):
        error = refused(caller, ROUTE, HI | body, param)
        assert "xgrammar" in error["message"]


def test_a_model_that_knows_no_tools_refuses_them(client):
    for body, param in (({"tools": TOOLS}, "tools"), ({"messages": [SAID]}, "messages")):
        error = refused(client, ROUTE, HI | body, param)
        assert "does not support tools" in error["message"]
    ask(client, ROUTE, tools=TOOLS, tool_choice="none", max_tokens=2, **HI)
