"""Served models: the same episodes as a local one, and nothing that a server does harms a run or gives the key away."""

from __future__ import annotations

import email.utils
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ratchet.envs.base import Turn
from ratchet.envs.pool import EnvPool
from ratchet.envs.process import child_environment
from ratchet.episodes.files import write_table
from ratchet.episodes.formats import FORMATS, TOOL, format_reply
from ratchet.episodes.template import Template
from ratchet.errors import RatchetError
from ratchet.policies.base import Reply
from ratchet.policies.language_model import LanguageModelPolicy
from ratchet.policies.served import FAILED, ServedPolicy
from ratchet.policies.served_client import backoff_s, retry_after_s
from ratchet.policies.served_settings import Served
from ratchet.rollout.noise import episode_key
from ratchet.rollout.play import Job, play
from ratchet.settings import parse, render_params
from ratchet.yaml_files import parse_yaml, read_yaml
from tests.engines.serving import engine, serving, tiny_app
from tests.envs.toy import task
from tests.models import tiny
from tests.policies.hostile import Hostile, Say, hostile, reply

KEY = "sk-SECRET-0123456789"
VARIABLE = "RATCHET_TEST_KEY"
FIRST = Turn("Your task: count.", ())


def settings(url: str, **other: Any) -> Served:
    return Served(**{"url": url, "model": "tiny", "timeout_s": 60.0, "retries": 2, "backoff_s": 0.01, **other})


def policy(url: str, *, template: Template | None = None, journal: Path | None = None, share: float = 0.02, action_format: str = "plain",
           temperature: float = 0.0, max_tokens: int = 120, max_reply_tokens: int = 10, **other: Any) -> ServedPolicy:
    api = {"api": "completions", "tokenizer": "folder"} if template else {}
    return ServedPolicy("gpt", settings(url, **api, **other), temperature=temperature, max_tokens=max_tokens, max_reply_tokens=max_reply_tokens,
                        max_error_share=share, action_format=action_format, template=template, journal=journal)


def local(template: Template) -> LanguageModelPolicy:
    return LanguageModelPolicy(engine(template), template, policy_id="gpt", version="served:tiny", temperature=0.0, max_tokens=120, max_reply_tokens=10)


def episodes(one: Any, count: int = 6, rows: int = 4) -> tuple[pa.Table, pa.Table]:
    with EnvPool("tests.envs.toy:make", {}, 1, 5.0) as pool:
        return play([Job(task(number), 1) for number in range(count)], one, pool, max_steps=6, rows=rows)


def turn(url: str, rows: int = 1, share: float = 1.0, **other: Any) -> list[Reply | None]:
    """One turn of `rows` episodes; failures never end it, unless `share` says so."""
    with closing(policy(url, share=share, **other)) as one:
        for row in range(rows):
            one.begin(row, task(row), FIRST, f"e{row}", 1)
        return one.act(range(rows), [Turn(f"observation {row}", ()) for row in range(rows)])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(tiny_app()) as url:
        yield url


# The same as a local model


def test_a_served_models_greedy_episodes_are_those_of_the_model_in_this_process(server: str) -> None:
    template = tiny.template()
    with closing(policy(server, template=template)) as one:
        served = episodes(one)
    alone = episodes(local(template))
    exact = [name for name in alone[1].column_names if name not in ("logprobs", "entropy")]
    assert served[0].equals(alone[0]) and served[1].select(exact).equals(alone[1].select(exact))
    assert set(served[1]["tokens_from"].to_pylist()) == {"generated"}
    for name in ("logprobs", "entropy"):
        for found, wanted in zip(served[1][name].to_pylist(), alone[1][name].to_pylist(), strict=True):
            assert found == pytest.approx(wanted, abs=1e-4)
    assert alone[0]["truncated"].to_pylist().count(True) > 0  # budgets included


def test_what_a_server_generated_goes_back_to_it_as_the_ids_that_it_gave(server: str) -> None:
    template = tiny.template()
    with closing(policy(server, template=template)) as one:
        _, steps = episodes(one, count=1)
    for t, row in enumerate(steps.to_pylist()):
        assert row["prompt_ids"] == template.observation_ids(row["observation"], t == 0)
        assert row["reply"] == template.decode_replies([row["reply_ids"]])[0]


def completion(text: str, **choice: Any) -> Say:
    return Say({"choices": [{"text": text, "finish_reason": "stop", **choice}]})


def test_a_completions_server_without_ids_gives_texts_only() -> None:
    template = tiny.template()
    with hostile(completion("> up")) as server, closing(policy(server.url, template=template)) as one:
        rows, steps = episodes(one, count=1)
        assert rows["solved"].to_pylist() == [True] and rows["n_tokens"].to_pylist() == [0]
        assert set(steps["tokens_from"].to_pylist()) == {None}
        first = template.observation_ids("toy-0: ", True)
        assert server.bodies[1]["prompt"] == [*first, *template.replies_ids(["> up"])[0], *template.observation_ids("toy-0: up", False)]


@pytest.mark.parametrize(("choice", "said"), [
    ({"token_ids": [10**6], "logprobs": {"token_logprobs": [-1.0]}}, "1 token ids, where 10 below"),
    ({"token_ids": [-1], "logprobs": {"token_logprobs": [-1.0]}}, "1 token ids, where 10 below"),
    ({"token_ids": [5] * 11, "logprobs": {"token_logprobs": [-1.0] * 11}}, "11 token ids, where 10"),
    ({"token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0]}}, "2 token ids with 1 usable"),
    ({"token_ids": [5], "logprobs": {"token_logprobs": [0.5]}}, "1 token ids with 0 usable"),
    ({"token_ids": [5], "logprobs": {"token_logprobs": [None]}}, "1 token ids with 0 usable"),
])
def test_ids_that_cannot_be_are_no_answer(choice: dict, said: str) -> None:
    with hostile(completion("x", **choice)) as server, pytest.raises(RatchetError, match=said):
        turn(server.url, share=0.0, template=tiny.template())


# Chat


def test_a_chat_is_told_the_format_and_sees_observations_and_its_own_replies() -> None:
    with closing(policy("http://127.0.0.1:9/v1", extra={"temperature": None})) as one:
        assert one.temperature is None
    with hostile(reply("I count.\n> up\n")) as server, closing(policy(server.url, temperature=0.7, extra={"top_p": 0.9, "seed": None})) as one:
        rows, steps = episodes(one, count=1)
    assert rows["solved"].to_pylist() == [True] and set(steps["tokens_from"].to_pylist()) == {None}
    assert set(steps["action"].to_pylist()) == {"up"} and set(steps["policy_version"].to_pylist()) == {"served:tiny"}
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": FORMATS["plain"].instruction}, {"role": "user", "content": "toy-0: "},
        {"role": "assistant", "content": "I count.\n> up"}, {"role": "user", "content": "toy-0: up"},
    ]
    assert {name: value for name, value in server.bodies[1].items() if name != "messages"} == {
        "model": "tiny", "max_tokens": 10, "temperature": 0.7, "top_p": 0.9}
    assert one.counts == {"requests": 5, "retries": 0, "prompt_tokens": 55, "reply_tokens": 15}


def test_every_step_of_every_episode_has_a_seed_of_its_own_that_never_changes() -> None:
    seeds = []
    for _ in range(2):
        with hostile(reply("> wait")) as server, closing(policy(server.url, concurrency=1)) as one:
            episodes(one, count=3)
        seeds.append([body["seed"] for body in server.bodies])
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == len(seeds[0]) == 18


@pytest.mark.parametrize("action_format", list(FORMATS))
def test_each_action_format_is_read(action_format: str) -> None:
    with hostile(reply(format_reply("a thought", "go to desk 1", action_format))) as server:
        [found] = turn(server.url, action_format=action_format, instruction="Tidy up.")
        assert found and (found.action, found.format_ok) == ("go to desk 1", True)
        assert server.bodies[0]["messages"][0]["content"].startswith("Tidy up.\n\nYou act in a text environment")


def test_a_native_tool_call_is_read() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "act", "arguments": json.dumps({"action": "open the door"})}}
    with hostile(reply("I need out.", "tool_calls", tool_calls=[call]), reply(None, "tool_calls", tool_calls=[call, call])) as server:
        [found] = turn(server.url, action_format="tool")
        assert found and (found.action, found.format_ok) == ("open the door", True) and found.action in found.text
        assert server.bodies[0]["tools"] == [TOOL]
        [two] = turn(server.url, action_format="tool")
        assert two and not two.format_ok


def test_a_reply_that_was_cut_holds_no_action() -> None:
    with hostile(reply("> go to de", "length")) as server:
        [found] = turn(server.url)
    assert found and found.text == "> go to de" and (found.action, found.format_ok) == ("", False)


def test_answers_come_in_the_order_of_the_rows_and_never_more_at_once_than_allowed() -> None:
    class Echo(Hostile):
        """Answers with what it was asked, the later ones sooner."""

        def take(self, handler: Any) -> Say:
            super().take(handler)
            said = self.bodies[-1]["messages"][-1]["content"]
            return Say(reply(f"> {said}").body, hang_s=0.4 - 0.04 * int(said.split()[-1]))

    with hostile(reply("")) as server:
        server.__class__ = Echo
        found = turn(server.url, rows=9, concurrency=3)
    assert [one.action for one in found if one] == [f"observation {row}" for row in range(9)]
    assert server.most_under_way == 3


# What servers do


NONSENSE = {
    "500": Say({"error": {"message": "boom"}}, 500),
    "503 in HTML": Say(b"<html><script>alert(1)</script></html>", 503, "text/html"),
    "HTML": Say(b"<html><script>alert(1)</script></html>", kind="text/html"),
    "no JSON": Say(b'{"choices": [{"mess'),
    "empty": Say(b""),
    "another JSON": Say(["choices"]),
    "no choices": Say({"choices": []}),
    "no message": Say({"choices": [{"index": 0}]}),
    "content of a wrong type": Say({"choices": [{"message": {"content": {"a": 1}}}]}),
    "invalid UTF-8": Say(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "half a surrogate": Say(b'{"choices": [{"message": {"content": "> \\ud800"}}]}'),
    "nested without end": Say(b'{"choices": ' + b"[" * 50000),
    "a megabyte": reply("> up" * 2**18),
    "compressed": Say(reply("> up").body, headers={"Content-Encoding": "gzip"}),
    "dropped": Say(drop=True),
    "a lie about its length": Say(b"{}", headers={"Content-Length": "999"}, trickle_s=0.001),
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_asked_again_and_then_the_action_is_invalid(said: Say) -> None:
    quick = {"timeout_s": 2.0, "retries": 1} if "length" in str(said.headers).lower() else {}
    with hostile(said, reply("> up")) as server:
        [found] = turn(server.url, **quick)
        assert found and found.action == "up" and len(server.bodies) == 2
    with hostile(said) as server:
        [found] = turn(server.url, **quick)
        assert found and (found.text, found.action, found.format_ok, found.version) == ("", "", False, "served:tiny" + FAILED)
        assert len(server.bodies) == (2 if quick else 3)


@pytest.mark.parametrize("slow", [Say(reply("> up").body, hang_s=20.0), Say(reply("> up").body, trickle_s=0.2)], ids=["hangs", "trickles"])
def test_a_server_that_takes_its_time_is_asked_again(slow: Say) -> None:
    with hostile(slow, reply("> up")) as server:
        began = time.monotonic()
        [found] = turn(server.url, timeout_s=1.0)
        assert found and found.action == "up" and time.monotonic() - began < 15


def test_a_failed_action_is_counted_and_the_episode_goes_on(tmp_path: Path) -> None:
    said = [reply("> up"), *[Say(status=500)] * 3, Say(status=502), reply("> up")]
    with hostile(*said) as server, closing(policy(server.url, journal=tmp_path / "journal")) as one:
        rows, steps = episodes(one, count=1)
        found = steps.to_pylist()
        assert rows["solved"].to_pylist() == [True] and one.failures == 1 and one.actions == 6
        assert [row["policy_version"].endswith(FAILED) for row in found] == [False, True, False, False, False, False]
        assert (found[1]["action"], found[1]["valid"], found[1]["format_ok"]) == ("", False, False)
        assert one.counts["requests"] == 9 and one.counts["retries"] == 3
        # turns alternate: what was not answered stands before the next observation
        assert [m["role"] for m in server.bodies[-1]["messages"]] == ["system", *["user", "assistant"] * 5][:-1]
        assert "toy-0: up\n\ntoy-0: up " in server.bodies[-1]["messages"][3]["content"]


def test_what_a_reply_says_is_text_and_nothing_more(tmp_path: Path) -> None:
    said = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\r\n\x00> up\u202e\x9b31m"
    with hostile(reply(said)) as server, closing(policy(server.url)) as one:
        _, steps = episodes(one, count=1)
    [first, *_] = steps["reply"].to_pylist()
    assert "<script>alert(1)</script>\n" in first and not set(first) & {"\x1b", "\x07", "\x00", "\r", "\x9b"}
    write_table(tmp_path / "steps.parquet", "steps", steps)


def test_429_waits_as_long_as_it_is_told_and_everybody_waits() -> None:
    with hostile(Say({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "0.4"}), reply("> up")) as server:
        found = turn(server.url, rows=3, concurrency=1)
        assert [one.action for one in found if one] == ["up"] * 3
        gaps = [later - earlier for earlier, later in zip(server.at, server.at[1:], strict=False)]
        assert gaps[0] >= 0.39  # whoever is next


def test_retry_after_is_read_in_both_forms_and_nothing_else_is_believed() -> None:
    assert retry_after_s("7") == 7.0 and retry_after_s("-3") == retry_after_s("soon") == retry_after_s("") == retry_after_s("nan") == 0.0
    assert 25 < retry_after_s(email.utils.formatdate(time.time() + 30, usegmt=True)) <= 31
    assert retry_after_s("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0 and retry_after_s("Thu, 99 Jan 99999 00:00:00 GMT") == 0.0


def test_retries_wait_longer_and_longer_and_not_all_alike() -> None:
    first = [backoff_s(1.0, 1, episode_key(1, str(number))) for number in range(200)]
    assert all(0.5 <= one < 1.0 for one in first) and len(set(first)) == 200 and max(first) - min(first) > 0.4
    assert first[7] == backoff_s(1.0, 1, episode_key(1, "7"))  # and the same whenever it is asked
    key = episode_key(1, "e")
    assert all(2.0 ** (attempt - 2) <= backoff_s(1.0, attempt, key) <= 2.0 ** (attempt - 1) for attempt in range(1, 7))
    assert 30.0 <= backoff_s(1.0, 20, key) <= 60.0
    with hostile(Say(status=500)) as server:
        turn(server.url, backoff_s=0.1)
    gaps = [later - earlier for earlier, later in zip(server.at, server.at[1:], strict=False)]
    assert gaps[0] >= 0.05 and gaps[1] >= 0.1


def test_requests_a_minute_are_spread_evenly() -> None:
    with hostile(reply("> up")) as server:
        turn(server.url, rows=5, requests_per_minute=600)
        assert server.at[-1] - server.at[0] >= 0.25  # 0.4, less what the first request may be late on a busy machine


# What ends a stage


ENDS: dict[str, tuple[Say, str]] = {
    "redirect": (Say(status=307, headers={"Location": "http://evil.example/v1"}), "a redirect to evil.example, which is not followed; set served.gpt.url"),
    "quota": (Say({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, 429), "the quota of this key is spent"),
    "a long wait": (Say(status=429, headers={"Retry-After": "7200"}), "asks to wait 7200 s"),
    "expired": (Say({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401), f"the key in the variable {VARIABLE} is wrong, expired or lacks a right"),
    "forbidden": (Say({"error": {"message": KEY}}, 403), f"the key in the variable {VARIABLE} is wrong"),
    "another model": (Say({"error": {"message": f"no model tiny for {KEY}"}}, 404), "refuses every request (404 no model tiny for [key]); correct url, model or extra"),
    "an unknown field": (Say({"detail": "max_tokens \x1b[31mis not supported"}, 400), "refuses every request (400 max_tokens [31mis not supported)"),
    "down": (Say({"error": {"message": f"boom {KEY}"}}, 500), "4 of 4 actions failed after 3 requests each (500 boom [key]), above env.max_error_share=0.02"),
}


@pytest.mark.parametrize(("said", "line"), ENDS.values(), ids=ENDS)
def test_what_cannot_get_better_ends_in_one_line_without_the_key(
    said: Say, line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    caplog.set_level(logging.DEBUG)
    with hostile(said) as server, pytest.raises(RatchetError) as caught:
        turn(server.url, rows=4, share=0.02, key_env=VARIABLE)
    text = str(caught.value)
    assert line in text and "\n" not in text and "\x1b" not in text
    assert KEY not in text + repr(caught.value) + caplog.text
    assert all(one["authorization"] == f"Bearer {KEY}" for one in server.headers)


def test_an_address_where_nobody_listens_is_a_clear_line() -> None:
    with pytest.raises(RatchetError, match=r"served.gpt: http://127.0.0.1:9/v1 does not answer: 2 of 2 actions failed .*Connect.*see to the server"):
        turn("http://127.0.0.1:9/v1", rows=2, share=0.02)


def test_a_server_that_dies_on_the_way_ends_the_stage_only_above_the_allowed_share() -> None:
    good = [reply("> wait")] * 6
    with hostile(*good, Say(status=500)) as server, closing(policy(server.url, share=0.5)) as one:
        with pytest.raises(RatchetError, match="8 of 14 actions failed after 3 requests each"):
            episodes(one, count=4, rows=1)
    with hostile(*good, *[Say(status=500)] * 3, reply("> up")) as server, closing(policy(server.url, share=0.2)) as one:
        rows, _ = episodes(one, count=4, rows=1)
        assert rows.num_rows == 4 and one.failures == 1


def test_a_key_that_expires_on_the_way_ends_the_stage_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with hostile(*[reply("> wait")] * 3, Say(status=401)) as server, closing(policy(server.url, share=1.0, key_env=VARIABLE)) as one:
        with pytest.raises(RatchetError, match=rf"answers 401: the key in the variable {VARIABLE} is wrong, expired"):
            episodes(one, count=1)
        assert len(server.bodies) == 4


def test_a_request_that_is_refused_on_the_way_costs_its_action_only() -> None:
    with hostile(reply("> up"), Say({"error": {"message": "content filter"}}, 400), reply("> up")) as server, closing(policy(server.url, share=0.9)) as one:
        rows, _ = episodes(one, count=1)
        assert rows["solved"].to_pylist() == [True] and one.failures == 1 and len(server.bodies) == 6


def test_an_episode_that_is_too_long_for_the_model_is_truncated() -> None:
    said = "This model's maximum context length is 2048 tokens."
    with hostile(reply("> up"), Say({"message": said}, 400)) as server, closing(policy(server.url)) as one:
        rows, _ = episodes(one, count=1)
    assert rows["truncated"].to_pylist() == [True] and rows["n_steps"].to_pylist() == [1] and one.failures == 0


# The key


@pytest.mark.parametrize(("value", "said"), [
    (None, f"served.gpt.key_env: {VARIABLE} is not set"), ("  ", "is not set"), ("sk-1\nsk-2", "holds no usable key"),
    ("sk 1", "holds no usable key"), ("schlüssel", "holds no usable key"),
])
def test_a_key_that_is_not_there_or_is_none_is_named_and_not_shown(value: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(RatchetError, match=said) as caught:
        policy("http://127.0.0.1:9/v1", key_env=VARIABLE)
    assert "sk" not in str(caught.value) and "schl" not in str(caught.value)


def test_the_key_of_a_secret_comes_from_the_variable_that_the_flow_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RatchetError, match="served.gpt.key_secret: .*`ratchet run` takes it from Prefect.* RATCHET_SECRET_MY_KEY"):
        policy("http://127.0.0.1:9/v1", key_secret="my-key")
    monkeypatch.setenv("RATCHET_SECRET_MY_KEY", f"{KEY}\n")
    with hostile(reply("> up")) as server:
        turn(server.url, key_secret="my-key")
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_an_environment_gets_no_key_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_SECRET_MY_KEY", KEY)
    monkeypatch.setenv("OTHER", "kept")
    assert KEY not in child_environment().values() and child_environment()["OTHER"] == "kept"


def test_no_key_is_sent_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy is not for this machine
    with hostile(reply("> up"), Say(status=401)) as server:
        turn(server.url)
        assert "authorization" not in server.headers[0]
        with pytest.raises(RatchetError, match="it wants a key; name the variable that holds one in served.gpt.key_env"):
            turn(server.url)


def test_a_server_that_says_the_key_gets_it_into_no_episode_journal_or_repr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with hostile(reply(f"Your key is {KEY}\n> say {KEY}")) as server, closing(policy(server.url, key_env=VARIABLE, journal=tmp_path / "j")) as one:
        _, steps = episodes(one, count=1)
        shown = repr(one) + repr(one._client) + repr(vars(one._client)) + str(steps.to_pylist()) + (tmp_path / "j").read_text()
    assert KEY not in shown and "say [key]" in shown


# Resuming


def test_what_was_answered_before_a_kill_is_not_asked_again(tmp_path: Path) -> None:
    journal = tmp_path / "scratch" / "gpt.jsonl"
    with hostile(*[reply("> up")] * 7, Say(status=401)) as server, closing(policy(server.url, journal=journal)) as one:
        with pytest.raises(RatchetError):
            episodes(one, count=3, rows=1)
    with journal.open("a") as file:
        file.write('{"key": "torn')  # by the kill
    with hostile(reply("> up")) as server, closing(policy(server.url, journal=journal)) as one:
        resumed = episodes(one, count=3, rows=1)
        assert len(server.bodies) == 15 - 7 and one.counts == {"requests": 15, "retries": 0, "prompt_tokens": 165, "reply_tokens": 45}
    with hostile(Say(status=500)) as server, closing(policy(server.url, journal=journal)) as one:
        again = episodes(one, count=3, rows=1)
        assert not server.bodies and again[1].equals(resumed[1])
    with hostile(reply("> wait")) as server, closing(policy(server.url, journal=journal, model="other")) as one:
        episodes(one, count=1)
        assert server.bodies  # another model is another request


def test_a_ctrl_c_stops_what_is_under_way() -> None:
    with hostile(Say(reply("> up").body, hang_s=3.0)) as server:

        def press() -> None:
            while not server.bodies:
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            turn(server.url, retries=20, timeout_s=30.0)
        assert server.under_way == 1  # nobody waited for the answer


def test_the_settings_in_the_documentation_are_valid() -> None:
    checkout = Path(__file__).parents[2]
    text = (checkout / "docs" / "served.md").read_text(encoding="utf-8")
    blocks = [parse_yaml(block.split("```")[0], "served.md") for block in text.split("```yaml\n")[1:]]
    sets = [line.strip().removesuffix("\\").strip().split("'")[1] for line in text.splitlines() if line.strip().startswith("--set")]
    base = read_yaml(checkout / "params.yaml")
    names = [list(parse(render_params(base, block, [])).served) for block in blocks]
    assert [*names, list(parse(render_params(base, {}, sets)).served)] == [["gpt"], ["qwen"], ["smol"]]
    for field in Served.model_fields:
        assert f"`{field}`" in text
