"""The page "Agents": its clients, run by OpenAI's client against a tiny model that calls a tool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import tiny_llama
from serving import END, TOOLS_CHAT, VOCAB, Script, letters, listening

from ngramspec.server.engine import Sampling

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest.importorskip("openai", reason="pip install 'ngramspec[serve]'")
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "agents.md"
CODE = "area=lambda(width,height):\nwidth*height"  # the tokenizer hides spaces
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture
def address(monkeypatch):
    """A server whose model calls the tool first, and then answers with text of the prediction."""
    texts = iter([CALL, "Snow.", CODE])
    prompts: dict[int, Script] = {}

    def processors(self, prompt):
        if prompt > 2 and prompt not in prompts:  # 2: the server tries the model out
            prompts[prompt] = Script(prompt, letters()(next(texts))["input_ids"])
        return [prompts[prompt]] if prompt in prompts else []

    monkeypatch.setattr(Sampling, "_processors", processors)
    model = tiny_llama(vocab=VOCAB, positions=2048, eos_token_id=END)
    with listening(model, letters(chat=TOOLS_CHAT)) as (address, _):
        yield address


def test_the_clients_of_the_page_run(address, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    loop = blocks[0].replace("http://127.0.0.1:8012", address)
    names: dict = {}
    exec(loop, names)
    roles = [each["role"] for each in names["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert names["messages"][2]["content"] == '{"sky": "snow", "city": "Oslo"}'
    assert names["answer"].usage.prompt_tokens_details.cached_tokens > 0
    assert names["answer"].usage.ngramspec["tokens_per_call"] > 0
    text, counts = capsys.readouterr().out.splitlines()
    drafted, accepted = map(int, counts.split())
    assert text == "Snow. stop"
    assert drafted >= accepted >= 0
    predicted = names["client"].chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Add type hints."}],
        prediction={"type": "content", "content": CODE},
        temperature=0,
    )
    assert predicted.choices[0].message.content == CODE
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 5
