"""Rounds with a buffer, a critic and an offline update: what they write, what enters what, and that a kill changes no byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.torch import load_file

from ratchet.credit.share import beta_of
from ratchet.critic.learner import CriticLearner
from ratchet.episodes.files import read_table, write_table
from ratchet.errors import RatchetError
from ratchet.evaluation.panels import make_panel, read_panel
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY
from ratchet.learners.trl_preference import collator, pairs_of, rows
from ratchet.models.build import RERANK, card_of, version_of
from ratchet.policies.scripted import SLIP
from ratchet.settings import OF_A_ROUND, load
from tasks.common import Stage
from tasks.evaluate import play_panel
from tasks.evolve_offline import _Offline
from tasks.rounds import offline_candidate
from tasks.step_credit import _beta
from tests.models import tiny
from tests.rounds.conftest import change
from tests.tasks.conftest import CHECKOUT, run_stage
from tests.tasks.test_pipeline import digests


def told(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "reports/metrics" / f"{name}.json").read_text())


def table(folder: Path, path: str, kind: str) -> list[dict[str, Any]]:
    return read_table(folder / "data/rounds" / path, kind).to_pylist()


def test_a_round_without_them_skips_them_and_hands_its_start_on(finished: Path) -> None:
    for name in ("buffer", "fit_critic", "evolve_offline"):
        assert set(told(finished, f"{name}-1")) == {"skipped"}
    start, offline = (finished / "models/rounds" / name for name in ("0/start", "1/offline"))
    assert {path.name: path.read_bytes() for path in start.iterdir()} == {path.name: path.read_bytes() for path in offline.iterdir()}


def test_a_buffer_holds_experts_and_own_episodes_with_their_ages_and_versions(evolved: Path) -> None:
    first, second = (told(evolved, f"buffer-{key}") for key in "12")
    assert first["by_source"] == {"expert": 20, "own": 20} and first["by_age"] == {"0": 40}
    assert second["by_source"]["failure"] > 0 and second["by_age"]["1"] == second["by_source"]["failure"]
    assert first["success"] == 0.5 and first["one_sided"] is None and first["hash"] != second["hash"]
    rows = {row["episode_id"]: row for row in table(evolved, "2/buffer/buffer.parquet", "buffer")}
    episodes = table(evolved, "2/buffer/episodes.parquet", "episodes")
    assert [row["episode_id"] for row in episodes] == sorted(rows) and len({row["tokenizer_id"] for row in episodes}) == 1
    own = [rows[row["episode_id"]] for row in episodes if row["policy_id"] == "actor" and row["round"] == 2]
    assert {row["policy_version"] for row in own} == {second["start"]} and {row["source"] for row in own} == {"own"}
    sampled = [row for row in episodes if row["policy_id"] == "actor" and row["round"] == 2 and row["sample"] > 0]
    assert sorted(row["temperature"] for row in sampled) == [0.0] * 6 + [1.0] * 6


@pytest.mark.parametrize(("most", "count"), [("2", 2), ("true", None), ("false", 0)])
def test_failures_of_the_last_online_round_are_at_most_so_many(evolved_copy: Path, most: str, count: int | None) -> None:
    failed = {row["episode_id"] for row in table(evolved_copy, "1/online/episodes.parquet", "episodes") if not row["solved"]}
    change(evolved_copy, f"buffer.online_failures={most}")
    run_stage(evolved_copy, "buffer", "2")
    taken = {row["episode_id"] for row in table(evolved_copy, "2/buffer/buffer.parquet", "buffer") if row["source"] == "failure"}
    assert taken <= failed and len(taken) == (len(failed) if count is None else count) and len(failed) > 2


def test_every_step_of_a_buffer_has_tokens_labels_and_the_starts_log_probs(evolved: Path) -> None:
    steps = table(evolved, "1/buffer/steps.parquet", "steps")
    starts, labels = table(evolved, "1/buffer/logprobs.parquet", "logprobs"), table(evolved, "1/buffer/labels.parquet", "labels")
    keys = [(row["episode_id"], row["t"]) for row in steps]
    assert [(row["episode_id"], row["t"]) for row in starts] == [(row["episode_id"], row["t"]) for row in labels] == keys
    assert all(len(a["reply_ids"]) == len(b["logprobs"]) > 0 for a, b in zip(steps, starts, strict=True))
    generated = [(a, b) for a, b in zip(steps, starts, strict=True) if a["tokens_from"] == "generated"]
    assert max(np.abs(np.array(a["logprobs"]) - b["logprobs"]).max() for a, b in generated) < 1e-4, "of the very policy that played"
    wrote = {row["episode_id"]: row["n_tokens"] for row in table(evolved, "1/buffer/episodes.parquet", "episodes")}
    solved = {row["episode_id"] for row in table(evolved, "1/buffer/episodes.parquet", "episodes") if row["solved"]}
    assert all(row["ttg"] == (wrote[row["episode_id"]] if row["episode_id"] in solved else None) for row in labels if row["t"] == 0)
    assert {row["r_aux"] for row in labels} <= {np.float32(value) for value in (-0.3, -0.2, -0.1, 0.0)}


def test_a_buffer_whose_sampler_and_learner_differ_is_refused(evolved: Path, evolved_copy: Path) -> None:
    first = told(evolved, "buffer-1")
    assert 0 < first["logprob_mean_diff"] <= first["logprob_max_diff"] < 1e-4 and first["logprob_tokens"] > 100
    path = evolved_copy / "data/rounds/1/harvest/steps.parquet"
    steps = read_table(path, "steps")
    moved = [None if row is None else [value - 0.02 for value in row] for row in steps["logprobs"].to_pylist()]
    write_table(path, "steps", steps.set_column(steps.schema.get_field_index("logprobs"), "logprobs", [moved]))
    with pytest.raises(RatchetError, match=r"^buffer@1: sampler and learner differ by 0\.02 in the log-prob of a token, above evolve_online\.logprob_limit"):
        run_stage(evolved_copy, "buffer", "1")
    change(evolved_copy, "evolve_online.logprob_limit=0.05")
    run_stage(evolved_copy, "buffer", "1")
    assert told(evolved_copy, "buffer-1")["logprob_max_diff"] == pytest.approx(0.02, abs=1e-4)


def test_at_the_rounds_start_the_ratio_is_one_for_experts_and_own_data_alike(evolved: Path) -> None:
    first = told(evolved, "evolve_offline-1")["curve"][0]
    assert first["logprob_max_diff"] < 1e-4 and first["logprob_tokens"] > 100 and abs(first["ratio_deviation"]) < 1e-5 and first["clip_fraction"] == 0


def test_the_critics_sidecar_says_something_of_every_step_and_only_fitted_episodes_move_the_actor(evolved: Path) -> None:
    rows = table(evolved, "1/critic/critic.parquet", "critic")
    steps = table(evolved, "1/buffer/steps.parquet", "steps")
    assert [(row["episode_id"], row["t"]) for row in rows] == [(row["episode_id"], row["t"]) for row in steps]
    assert all(np.isfinite([row[name] for row in rows]).all() for name in ("value", "q", "advantage"))
    assert {row["weight"] for row in rows if row["t"] == 0} == {0.5, 1.0}
    held_out = {row["episode_id"] for row in table(evolved, "1/buffer/buffer.parquet", "buffer") if row["held_out"]}
    fit, offline = told(evolved, "fit_critic-1"), told(evolved, "evolve_offline-1")
    assert held_out and fit["held_out"] == len(held_out) and fit["fitted"] == offline["sequences"] == 40 - len(held_out)


def test_the_online_round_goes_on_from_the_offline_update_which_is_a_candidate_too(evolved: Path) -> None:
    start, offline = (card_of(evolved / "models/rounds" / name) for name in ("0/start", "1/offline"))
    assert offline["parents"] == [start["version"]] and offline["stage"] == "evolve_offline" and offline["version"] != start["version"]
    candidates = json.loads((evolved / "models/rounds/1/candidates/candidates.json").read_text())
    assert candidates == ["offline", "iter-001"]
    assert card_of(evolved / "models/rounds/1/candidates/iter-001")["parents"] == [offline["version"]]
    assert told(evolved, "evolve_offline-1")["ess"] <= 1


def test_drift_of_the_value_is_of_what_the_actor_played_at_the_rounds_start(evolved_copy: Path) -> None:
    path = evolved_copy / "data/rounds/1/buffer/buffer.parquet"
    rows = read_table(path, "buffer")
    old = next(row["episode_id"] for row in rows.to_pylist() if row["source"] == "own")
    ages = [int(row["episode_id"] == old) for row in rows.to_pylist()]
    write_table(path, "buffer", rows.set_column(rows.schema.get_field_index("age"), "age", [ages]))
    run_stage(evolved_copy, "drift", "1")
    own = {row["episode_id"] for row in rows.to_pylist() if row["source"] == "own"} - {old}
    values = [row["value"] for row in table(evolved_copy, "1/critic/critic.parquet", "critic") if row["episode_id"] in own]
    kept = pq.read_table(evolved_copy / "data/rounds/1/drift/credit.parquet").to_pylist()
    assert [row["value"] for row in kept if row["column"] == "value"] == pytest.approx(values)


def test_a_note_of_an_earlier_rounds_update_is_none_of_a_round_that_hands_its_start_on(evolved_copy: Path) -> None:
    (evolved_copy / "models/rounds/0/start/offline.json").write_text('{"ess": 0.1, "kl": 9.0}')
    change(evolved_copy, "evolve_offline.enabled=false")
    run_stage(evolved_copy, "evolve_offline", "1")
    assert (evolved_copy / "models/rounds/1/offline/model.safetensors").is_file()
    assert offline_candidate(Stage(evolved_copy, load(evolved_copy / "params.yaml"), "evolve_online", "1")) is None


@pytest.mark.parametrize(("method", "learns"), [("rft", False), ("awr", False), ("bppo", True)])
def test_what_an_expert_did_wrong_on_purpose_is_never_imitated(evolved_copy: Path, method: str, learns: bool) -> None:
    path = evolved_copy / "data/rounds/1/buffer/steps.parquet"
    steps, rows = read_table(path, "steps"), table(evolved_copy, "1/buffer/buffer.parquet", "buffer")
    name = next(row["episode_id"] for row in rows if row["source"] == "expert" and not row["held_out"])
    versions = [row["policy_version"] + (SLIP if row["episode_id"] == name and row["t"] == 0 else "") for row in steps.select(["episode_id", "t", "policy_version"]).to_pylist()]
    write_table(path, "steps", steps.set_column(steps.schema.get_field_index("policy_version"), "policy_version", [versions]))
    change(evolved_copy, f"evolve_offline.method={method}")
    stage = Stage(evolved_copy, load(evolved_copy / "params.yaml"), "evolve_offline", "1")
    found = {one.episode_id: one for one in _Offline(stage, evolved_copy / "data/rounds/1/buffer", evolved_copy / "models/rounds/0/start")._sequences()}
    first = (found[name].step == 0) & (found[name].role == REPLY)
    assert first.any() == learns and ((found[name].step == 1) & (found[name].role == REPLY)).any()


def test_beta_may_go_by_how_often_meter_and_critic_are_right_about_held_out_steps(
    evolved_copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def labels(settings: Any, games: Path, rows: list[dict[str, Any]], steps: Any) -> Any:
        asked.append(len(rows))
        return "plan", [np.array([1, -1] * row["n_steps"], np.int8)[: row["n_steps"]] for row in rows]

    monkeypatch.setattr("ratchet.evaluation.step_labels.step_labels", labels)
    change(evolved_copy, "evolve_online.share.beta=auto", "evolve_online.meter.enabled=true", "buffer.held_out_share=0.5")
    for name in ("buffer", "fit_critic"):
        run_stage(evolved_copy, name, "1")
    accuracy = told(evolved_copy, "fit_critic-1")["gate"]["step_accuracy"]
    assert asked[0] > 0 and 0 <= accuracy <= 1
    gate = {"gate": {"sign": {"signed_balanced_accuracy": 0.8}}}
    (evolved_copy / "data/rounds/1/meter/skipped.json").unlink(missing_ok=True)
    (evolved_copy / "data/rounds/1/meter/gate.json").write_text(json.dumps(gate))
    stage = Stage(evolved_copy, load(evolved_copy / "params.yaml"), "evolve_online", "1")
    assert _beta(stage) == pytest.approx(beta_of(0.8, accuracy))
    assert f"meter 0.800, critic {accuracy:.3f}" in capsys.readouterr().out


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("name", "learner"), [("buffer", ActorLearner), ("fit_critic", CriticLearner), ("evolve_offline", ActorLearner)])
def test_a_stage_of_round_2_that_is_killed_goes_on_to_the_same_bytes(
    evolved: Path, evolved_copy: Path, name: str, learner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "logprobs" if name == "buffer" else "update"
    real, calls = getattr(learner, method), []

    def killed(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == (1 if name == "buffer" else 4):
            raise Killed
        return real(self, *arguments, **options)

    for settings in ("ratchet.critic.learner.FitSettings", "ratchet.learners.offline.OfflineSettings"):
        monkeypatch.setattr(f"{settings}.checkpoint_every", 1, raising=False)
    monkeypatch.setattr(learner, method, killed)
    with pytest.raises(Killed):
        run_stage(evolved_copy, name, "2")
    monkeypatch.setattr(learner, method, real)
    run_stage(evolved_copy, name, "2")
    assert digests(evolved_copy) == digests(evolved)


def test_settings_of_one_round_change_that_round_alone(evolved: Path, evolved_copy: Path) -> None:
    change(evolved_copy, "rounds.2.set.evolve_offline.lr=0.002")
    for key in "12":
        run_stage(evolved_copy, "evolve_offline", key)
    same = ["models/rounds/1/offline/model.safetensors", "models/rounds/2/offline/model.safetensors"]
    assert [(evolved / path).read_bytes() == (evolved_copy / path).read_bytes() for path in same] == [True, False]


def test_older_episodes_stay_for_their_rounds_and_a_critic_may_go_on_from_the_last_one_by_low_rank_updates(evolved_copy: Path) -> None:
    change(evolved_copy, "buffer.max_age=1", "fit_critic.backbone=previous", "fit_critic.lora={rank: 2, alpha: 4.0}", "evolve_offline.max_ratio=0.5")
    for name in ("buffer", "fit_critic", "evolve_offline"):
        run_stage(evolved_copy, name, "2")
    rows = table(evolved_copy, "2/buffer/buffer.parquet", "buffer")
    older = [row for row in rows if row["age"] == 1 and row["source"] == "own"]
    assert {row["episode_id"] for row in older} <= {row["episode_id"] for row in table(evolved_copy, "1/buffer/buffer.parquet", "buffer")} and older
    critics = [card_of(evolved_copy / f"models/rounds/{key}/critic") for key in "12"]
    assert critics[1]["parents"] == [critics[0]["version"]] and critics[1]["kind"] == "critic"
    names = [{*load_file(str(evolved_copy / f"models/rounds/{key}/critic/model.safetensors"))} for key in "12"]
    assert names[0] == names[1], "low-rank updates are laid into the weights"
    assert "skipped" not in told(evolved_copy, "evolve_offline-2")


def test_in_dvc_only_a_round_depends_on_what_is_set_for_it_alone() -> None:
    stages = yaml.safe_load((CHECKOUT / "dvc.yaml").read_text())["stages"]
    for name, entry in stages.items():
        params = entry.get("do", entry).get("params", [])
        assert [one for one in params if one.startswith("rounds")] in ([], ["rounds.${key}"]), name
        reads = {one.split(".")[0] for one in params} & set(OF_A_ROUND)
        assert not reads or "rounds.${key}" in params, name


BASELINES = {
    "awr": ["evolve_offline.method=awr"],
    "rft": ["evolve_offline.method=rft", "fit_critic.enabled=false"],
    "eto": ["evolve_offline.method=eto", "fit_critic.enabled=false"],
    "forecast": ["evolve_offline.forecast.weight=0.1", "evolve_offline.batch_tokens=9000"],
    "k3": ["evolve_offline.reference.estimator=k3", "evolve_offline.epochs=2"],
    "no k3": ["evolve_offline.epochs=2"],
    "no reference": ["evolve_offline.reference.weight=0.0", "evolve_offline.clip.high=0.01"],
}


def test_each_method_and_term_reaches_the_weights(evolved: Path, evolved_copy: Path) -> None:
    rows = read_table(evolved_copy / "data/rounds/1/buffer/episodes.parquet", "episodes")
    held_out = {row["episode_id"] for row in table(evolved, "1/buffer/buffer.parquet", "buffer") if row["held_out"]}
    task = next(row["task_id"] for row in rows.to_pylist() if row["solved"] and row["episode_id"] not in held_out)
    tasks = [task if not row["solved"] else row["task_id"] for row in rows.to_pylist()]  # a task with both outcomes, for pairs
    field = rows.schema.get_field_index("task_id")
    write_table(evolved_copy / "data/rounds/1/buffer/episodes.parquet", "episodes", rows.set_column(field, "task_id", [tasks]))
    params, seen = (evolved_copy / "params.yaml").read_text(), {version_of(evolved / "models/rounds/1/offline")}
    for name, sets in BASELINES.items():
        (evolved_copy / "params.yaml").write_text(params)
        change(evolved_copy, *sets)
        run_stage(evolved_copy, "evolve_offline", "1")
        metrics = told(evolved_copy, "evolve_offline-1")
        assert "skipped" not in metrics and metrics["steps"] > 0, name
        assert metrics["kl"] > 0 and (name == "rft") == ("ess" not in metrics), name  # the stop rule's gates; the actor has no success
        assert (name == "forecast") == ("forecast" in metrics["curve"][0]), name
        seen.add(metrics["version"])
    assert len(seen) == len(BASELINES) + 1


def test_preference_pairs_are_of_one_task_and_compare_written_tokens_alone() -> None:
    sequences = tiny.sequences(6)
    for number, one in enumerate(sequences):
        one.solved, one.ids[0] = number < 3, 5  # a task's episodes begin alike
    tasks = {one.episode_id: "both" if number % 3 else "alike" for number, one in enumerate(sequences)}
    tasks[sequences[3].episode_id] = "failed"
    pairs = pairs_of(sequences, tasks, 3, seed=1)
    assert len(pairs) == 3 and {tasks[one.episode_id] for pair in pairs for one in pair} == {"both"}
    assert all(win.solved and not loss.solved for win, loss in pairs)
    batch = collator(0)(rows(pairs))
    for row, one in enumerate([*(win for win, _ in pairs), *(loss for _, loss in pairs)]):
        assert batch["input_ids"][row, : len(one.ids)].tolist() == one.ids.tolist()
        assert batch["completion_mask"][row, : len(one.ids)].tolist() == (one.role == REPLY).astype(int).tolist()
        assert not batch["completion_mask"][row, len(one.ids) :].any()


def test_a_reranker_is_a_version_of_its_own_that_plays_what_the_critic_prefers(evolved_copy: Path) -> None:
    change(evolved_copy, "evolve_offline.method=rerank", "evolve_offline.rerank.candidates=3", "evolve_online.enabled=false")
    for name in ("evolve_offline", "evolve_online"):
        run_stage(evolved_copy, name, "1")
    folder = evolved_copy / "models/rounds/1/candidates/offline"
    start = card_of(evolved_copy / "models/rounds/0/start")["version"]
    assert card_of(folder)["version"] == version_of(folder) != start and (folder / RERANK).is_file()
    assert json.loads((evolved_copy / "models/rounds/1/candidates/candidates.json").read_text()) == ["offline"]
    stage = Stage(evolved_copy, load(evolved_copy / "params.yaml"), "evaluate", "1")
    panel = make_panel("select", read_panel(evolved_copy / "data/panels/select.json").tasks[:3])
    models = {"reranked": folder, "plain": evolved_copy / "models/rounds/0/start"}
    chosen, plain = (play_panel(stage, model, panel, name)[2]["reply"].to_pylist() for name, model in models.items())
    assert chosen != plain and len(chosen) > 3


def test_a_buffer_of_one_outcome_teaches_nothing_and_the_round_goes_on(evolved_copy: Path) -> None:
    change(evolved_copy, "buffer.experts=0")
    path = evolved_copy / "data/rounds/1/harvest/episodes.parquet"
    harvest = read_table(path, "episodes")
    run_stage(evolved_copy, "buffer", "1")
    for name in ("fit_critic", "evolve_offline"):
        run_stage(evolved_copy, name, "1")
        assert "episodes of the buffer failed, and a critic learns from outcomes that differ" in told(evolved_copy, f"{name}-1")["skipped"]
    assert harvest.num_rows == 20
    start, offline = (card_of(evolved_copy / "models/rounds" / name)["version"] for name in ("0/start", "1/offline"))
    assert start == offline


def test_without_solved_demonstrations_the_strongest_policys_successes_seed_the_buffer(
    evolved_copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = evolved_copy / "data/demonstrations/episodes.parquet"
    found = read_table(path, "episodes")
    write_table(path, "episodes", found.set_column(found.schema.get_field_index("solved"), "solved", [[False] * found.num_rows]))
    monkeypatch.setattr("tasks.buffer.PENALTIES", None)  # and an environment that says nothing of an action
    run_stage(evolved_copy, "buffer", "1")
    said = capsys.readouterr().out
    assert "the successes of expert, the strongest of the harvest, take their place" in said
    assert said.count("no retrospective rewards") == 1
    assert told(evolved_copy, "buffer-1")["by_source"]["expert"] == 4
    assert {row["r_aux"] for row in table(evolved_copy, "1/buffer/labels.parquet", "labels")} == {0.0}


def test_advantages_that_are_not_finite_and_a_reference_of_other_tokens_are_refused(evolved_copy: Path) -> None:
    path = evolved_copy / "data/rounds/1/critic/critic.parquet"
    credit = read_table(path, "critic")
    values = credit["advantage"].to_pylist()
    values[3] = float("nan")
    row = credit.to_pylist()[3]
    tokenizer = evolved_copy / "models/warm/actor/tokenizer.json"
    text = tokenizer.read_text()
    tokenizer.unlink()
    tokenizer.write_text(text + " ")
    with pytest.raises(RatchetError, match="has another tokenizer than the actor at the round's start"):
        run_stage(evolved_copy, "evolve_offline", "1")
    write_table(path, "critic", credit.set_column(credit.schema.get_field_index("advantage"), "advantage", [values]))
    with pytest.raises(RatchetError, match=f"advantages are not finite at {row['episode_id']} t={row['t']} \\(1 in all\\)"):
        run_stage(evolved_copy, "evolve_offline", "1")
