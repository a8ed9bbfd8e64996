"""Our own server: what it generates is what the engine generates, and what it cannot do it refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ratchet.engines.base import Generated
from ratchet.engines.server import chat_ids, create_app, main
from tests.engines.serving import engine, serving, tiny_app
from tests.models import tiny

PROMPTS = [tiny.template().observation_ids(f"toy-{number}: up wait", True) for number in range(12)]
HTTP = httpx.Client(trust_env=False, timeout=20)  # one for all: making one reads all certificates
IDS = {"model": "tiny", "max_tokens": 9, "temperature": 0, "logprobs": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any]]:
    app = tiny_app()
    with serving(app) as url:
        yield url, app.state.batcher


def complete(url: str, **body: Any) -> dict[str, Any]:
    answer = HTTP.post(f"{url}/completions", json={**IDS, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def local(prompts: list[list[int]], temperature: float = 0.0, keys: list[int] | None = None, limit: int = 9) -> list[Generated]:
    own, slots = engine(tiny.template(), slots=len(prompts)), range(len(prompts))
    return own.reply(list(slots), prompts, np.array(keys or [0] * len(prompts), np.uint64), [limit] * len(prompts), temperature)


def test_ids_log_probs_and_entropies_are_those_of_the_engine(server: tuple[str, Any]) -> None:
    url, _ = server
    for temperature, keys in ((0.0, None), (1.3, [7] * 12)):
        wanted = local(PROMPTS, temperature, keys)
        for prompt, one in zip(PROMPTS, wanted, strict=True):
            choice = complete(url, prompt=prompt, temperature=temperature, seed=7)
            assert choice["token_ids"] == one.ids
            np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], one.logprobs, atol=1e-4)
            np.testing.assert_allclose(choice["entropy"], one.entropy, atol=1e-4)
            assert choice["finish_reason"] == ("stop" if one.ids[-1] == tiny.template().end else "length")
            assert choice["text"] == tiny.template().decode_replies([one.ids])[0]


def test_requests_that_come_together_share_a_call_and_each_gets_its_own_answer() -> None:
    app = tiny_app()
    with serving(app) as url, ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda prompt: complete(url, prompt=prompt), PROMPTS))
        assert [one["token_ids"] for one in found] == [one.ids for one in local(PROMPTS)]
        assert app.state.batcher.calls < len(PROMPTS)
        mixed = list(threads.map(lambda at: complete(url, prompt=PROMPTS[at], temperature=at % 2, seed=at), range(12)))
        for at, one in enumerate(mixed):
            assert one["token_ids"] == local([PROMPTS[at]], at % 2, [at])[0].ids


def test_an_episode_is_read_on_from_where_it_stood_and_says_the_same_as_when_read_whole() -> None:
    app = tiny_app(slots=8)
    with serving(app) as url:
        ids, batcher = list(PROMPTS[0]), app.state.batcher
        for turn in range(4):
            answer = complete(url, prompt=ids)["token_ids"]
            assert answer == local([ids])[0].ids and batcher.reused == turn
            ids += [*answer, *tiny.template().observation_ids(f"turn {turn}", False)]
        for prompt in PROMPTS:  # more episodes than slots: the first one has to make room
            complete(url, prompt=prompt)
        assert complete(url, prompt=ids)["token_ids"] == local([ids])[0].ids


def test_a_text_is_read_with_its_special_tokens() -> None:
    with serving(tiny_app()) as url:
        text = complete(url, prompt="<begin><observe>toy-1: up<act>")
        assert text["prompt_token_ids"] == tiny.template().observation_ids("toy-1: up", True)


def test_a_chat_is_rendered_by_the_models_template_or_by_our_pieces(server: tuple[str, Any]) -> None:
    url, _ = server
    ours = tiny.template()
    messages = [{"role": "user", "content": "toy-1: up"}, {"role": "assistant", "content": "> up"}, {"role": "user", "content": "<end>"}]
    wanted = [*ours.observation_ids("toy-1: up", True), *ours.replies_ids(["> up"])[0], *ours.observation_ids("<end>", False)]
    assert chat_ids(ours, messages, None) == wanted and wanted.count(ours.end) == 1  # a special token in a text stays text
    answer = HTTP.post(f"{url}/chat/completions", json={"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 9}).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ours.decode_replies([local([wanted])[0].ids])[0]}
    assert answer["usage"]["prompt_tokens"] == len(wanted)
    first = [{"role": "system", "content": "Play."}, messages[0]]
    assert chat_ids(ours, first, None) == ours.observation_ids("Play.\n\ntoy-1: up", True)

    foreign = tiny.text_template()
    foreign.tokenizer.chat_template = "{% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}<|start|>"
    try:
        text = foreign.tokenizer.decode(chat_ids(foreign, first, None))
    finally:
        foreign.tokenizer.chat_template = None
    assert text == "<|start|>system Play.<|im_end|><|start|>user toy-1: up<|im_end|><|start|>"


REFUSED = [
    ("completions", {"prompt": []}, 400, "the prompt is empty"),
    ("completions", {"prompt": [5, 10**6]}, 400, "ids that are not below"),
    ("completions", {"prompt": [5] * 255}, 400, "exceed this model's maximum context length of 256"),
    ("completions", {"prompt": [5], "model": "gpt"}, 404, "no model 'gpt' here; there is 'tiny'"),
    ("completions", {"prompt": [5], "top_p": 0.5}, 400, "top_p: Extra inputs are not permitted"),
    ("completions", {"prompt": [5], "n": 2}, 400, "n: Input should be 1"),
    ("completions", {"prompt": [5], "temperature": -1}, 400, "temperature"),
    ("completions", {"prompt": [5], "stop_token_ids": [9]}, 400, "this model stops at"),
    ("chat/completions", {"messages": [{"role": "assistant", "content": "x"}]}, 400, "have to alternate"),
    ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, "no chat template"),
    ("chat/completions", {"messages": []}, 400, "messages"),
]


@pytest.mark.parametrize(("path", "body", "status", "said"), REFUSED, ids=[f"{path} {said}" for path, _, _, said in REFUSED])
def test_what_it_cannot_do_is_refused_in_openais_form(server: tuple[str, Any], path: str, body: dict, status: int, said: str) -> None:
    usual = {"model": "tiny", "max_tokens": 9}
    answer = HTTP.post(f"{server[0]}/{path}", json={**usual, **body})
    assert answer.status_code == status and said in answer.json()["error"]["message"]


def test_only_who_has_the_key_and_calls_it_by_its_name_is_served() -> None:
    with serving(tiny_app(key="k1")) as url:
        for headers, status in (({}, 401), ({"Authorization": "Bearer k2"}, 401), ({"Authorization": "Bearer k1"}, 200)):
            assert HTTP.get(f"{url}/models", headers=headers).status_code == status
        assert HTTP.get(f"{url}/models", headers={"Authorization": "Bearer k1", "Host": "evil.example"}).status_code == 400


class _Broken:
    """An engine that fails at its first call."""

    def __init__(self) -> None:
        self.real = engine(tiny.template())
        self.slots, self.failed = self.real.slots, False

    def clear(self, slots: Any) -> None:
        self.real.clear(slots)

    def reset(self) -> None:
        self.real.reset()

    def reply(self, *arguments: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise RuntimeError("out of memory")
        return self.real.reply(*arguments)


def test_an_engine_that_failed_once_answers_the_next_request_right() -> None:
    with serving(create_app(_Broken(), tiny.template(), name="tiny", context=256)) as url:
        assert HTTP.post(f"{url}/completions", json={**IDS, "prompt": PROMPTS[0]}).status_code == 500
        assert complete(url, prompt=PROMPTS[0])["token_ids"] == local([PROMPTS[0]])[0].ids


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "no tokenizer.json"), (["--host", "0.0.0.0"], "name the variable of a key with --key-env"), (["--key-env", "NOT_SET_ANYWHERE"], "is not set"),
])
def test_the_command_refuses_what_cannot_work_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["server", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and said in told and len(told.strip().splitlines()) == 1
