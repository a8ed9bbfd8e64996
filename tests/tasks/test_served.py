"""A served model in the harvest's pool: killed, resumed, counted, checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.evaluating import evaluate_version
from ratchet.episodes.files import read_table
from ratchet.errors import RatchetError
from ratchet.files import write_json
from tests.policies.hostile import Hostile, Say, hostile, reply
from tests.tasks.conftest import lay, run_stage

KEY, VARIABLE = "sk-SECRET-0123456789", "RATCHET_TEST_KEY"
HARVEST = Path("data/rounds/1/harvest")


def workspace(folder: Path, server: Hostile, *sets: str, **entry: object) -> Path:
    """What a first harvest needs, with a pool of the expert and the served model `gpt`."""
    served = {"url": server.url, "model": "m", "backoff_s": 0, "retries": 1, **entry}
    pool = "harvest.pool=[{policy: expert, share: 0.25}, {policy: gpt, share: 0.75}]"
    lay(folder, "harvest.episodes=8", "harvest.shard=2", "env.max_steps=4", f"served.gpt={json.dumps(served)}", pool, *sets)
    run_stage(folder, "prepare")
    write_json(folder / "data/rounds/0/decision/decision.json", {"stop": None, "round": 0})
    return folder


def test_a_harvest_whose_key_expired_goes_on_with_the_new_one_and_asks_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with hostile(*[reply("> look")] * 13, Say(status=401), reply("> look")) as server:
        folder = workspace(tmp_path, server, key_env=VARIABLE, concurrency=1)
        with pytest.raises(RatchetError, match=f"answers 401: the key in the variable {VARIABLE} is wrong, expired"):
            run_stage(folder, "harvest", "1")
        assert len(server.bodies) == 14
        monkeypatch.setenv(VARIABLE, KEY + "-new")
        run_stage(folder, "harvest", "1")
        assert len(server.bodies) == 14 + 24 - 13 and server.headers[-1]["authorization"] == f"Bearer {KEY}-new"
    found = json.loads((folder / "reports/metrics/harvest-1.json").read_text())
    assert found["served"] == {"gpt": {"requests": 24, "retries": 0, "prompt_tokens": 264, "reply_tokens": 72, "actions": 24, "failures": 0}}
    assert found["by_policy"]["gpt"]["episodes"] == 6 and found["by_policy"]["expert"]["episodes"] == 2
    episodes = read_table(folder / HARVEST / "episodes.parquet", "episodes").to_pylist()
    assert {row["temperature"] for row in episodes if row["policy_id"] == "gpt"} == {1.0}
    for path in folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()


def test_a_shard_with_too_many_failures_is_not_kept_and_only_these_are_asked_again(tmp_path: Path) -> None:
    with hostile(*[reply("> look")] * 3, *[Say(status=500)] * 2, reply("> look")) as server:
        folder = workspace(tmp_path, server, concurrency=1)
        with pytest.raises(RatchetError, match="harvest@1 gpt: 1 of 8 actions of a shard failed, above env.max_error_share=0.02; see to served.gpt.url"):
            run_stage(folder, "harvest", "1")
        before = len(server.bodies)
        run_stage(folder, "harvest", "1")
        again = len(server.bodies) - before
    steps = read_table(folder / HARVEST / "steps.parquet", "steps").to_pylist()
    assert not any(row["policy_version"].endswith("+failed") for row in steps)
    assert 16 < again < 24  # two whole shards, and of the first one what followed from the failure


def test_a_served_model_is_measured_on_a_panel_and_a_second_time_only_where_something_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with hostile(*[reply("> look")] * 5, Say(status=403), reply("> look")) as server:
        entry = {"url": server.url, "model": "m", "concurrency": 1, "key_env": VARIABLE}
        lay(tmp_path, "env.max_steps=4", f"served.gpt={json.dumps(entry)}")
        with pytest.raises(RatchetError, match="answers 403: the key in the variable"):
            evaluate_version(tmp_path, "served:gpt", None, "select", 3)
        found = evaluate_version(tmp_path, "served:gpt", None, "select", 3)
        assert len(server.bodies) == 3 * 4 + 1 and {body["temperature"] for body in server.bodies} == {0.0}
        assert evaluate_version(tmp_path, "served:gpt", None, "select", 3) == found and len(server.bodies) == 3 * 4 + 1
    outcomes = read_table(Path(found["outcomes"]), "outcomes").to_pylist()
    assert found["version"] == "served:m" and found["n"] == 3 and {row["version"] for row in outcomes} == {"served:m"}
    with pytest.raises(RatchetError, match="served:gtp: params.yaml serves no model of this name; there is gpt"):
        evaluate_version(tmp_path, "served:gtp", None, "select", 3)


def test_tokens_of_a_server_without_entropies_pass_the_checks(tmp_path: Path) -> None:
    choice = {"text": "", "finish_reason": "stop", "token_ids": [70, 4], "logprobs": {"token_logprobs": [-0.5, -0.1]}}
    with hostile(Say({"choices": [choice]})) as server:
        folder = workspace(tmp_path, server, "check.max_invalid_share=1", "check.max_truncated_share=1", api="completions",
                           tokenizer=str(tmp_path / "models/tokenizer"))
        for name in ("harvest", "label", "check"):
            run_stage(folder, name, "1")
    steps = [row for row in read_table(folder / HARVEST / "steps.parquet", "steps").to_pylist() if row["policy_version"] == "served:m"]
    assert {row["tokens_from"] for row in steps} == {"generated"} and all(row["reply_ids"] == [70, 4] and row["entropy"] == [] for row in steps)
    verdict = json.loads((folder / "data/rounds/1/check/verdict.json").read_text())
    assert [one["name"] for one in verdict["checks"] if not one["passed"] and one["severity"] == "fail"] == []
