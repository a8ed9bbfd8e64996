"""A pretrained chat model through the stages: no tokenizer is made, demonstrations and replies are in the chosen format, and a
version is not played in another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.episodes.files import read_table
from ratchet.episodes.formats import parse_reply
from ratchet.episodes.template import load_template
from ratchet.errors import RatchetError
from ratchet.models.build import save_model, version_of
from ratchet.settings import dump_params, load
from tests.episodes import chat_templates as chat
from tests.models import tiny
from tests.tasks.conftest import lay, run_stage


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tokenizer = tiny.chat_folder(chat.QWEN3)
    save_model(tiny.model(283), tokenizer, folder, {})
    (folder / "base.json").write_text(json.dumps({"name": "Tiny-Instruct", "source": "here", "license": "MIT"}))
    (folder / "ratchet.json").unlink()
    return folder


def test_a_pretrained_chat_model_learns_and_plays_in_the_chosen_format(base: Path, tmp_path: Path) -> None:
    run = lay(
        tmp_path, "env.action_format=tagged", "env.max_steps=6", "env.max_tokens=2500", "prepare.vocab_size=null", "demonstrate.episodes=24",
        "prepare.games={train: 60, seen: 6, select: 6, confirm: 6, test: 6}", "harvest.pool=[{policy: random, share: 1.0}]",
        f"actors={{actor: {{path: {base}, tokens: 2600}}}}", "warm_start.batch_tokens=2500", "warm_start.optimizer=adamw", "learner.autocast=bf16",
        "evaluate.temperature=1.0", "evolve_online.batch_tokens=2500", "env.max_reply_tokens=8",
    )
    for name, key in (("prepare", None), ("demonstrate", None), ("warm_start", "actor")):
        run_stage(run, name, key)
    assert [file.name for file in (run / "models/tokenizer").iterdir()] == ["skipped.json"]
    for step in read_table(run / "data/demonstrations/steps.parquet", "steps", ["reply", "action"]).to_pylist():
        assert step["reply"].startswith(("<think>", "<action>")) and parse_reply(step["reply"], "tagged") == (step["action"], True)
    warm = run / "models/warm/actor"
    card = json.loads((warm / "ratchet.json").read_text())
    assert card["action_format"] == "tagged" and card["version"] == version_of(warm) != version_of(base)
    for name in ("base.json", "chat_template.jinja", "tokenizer.json"):
        assert (warm / name).read_bytes() == (base / name).read_bytes()
    assert json.loads((run / "reports/metrics/warm_start-actor.json").read_text())["tokens"] >= 2600

    settings = load(run / "params.yaml")
    plain = settings.model_dump(mode="json")
    plain["env"]["action_format"] = "plain"
    (run / "params.yaml").write_text(dump_params(plain))
    with pytest.raises(RatchetError, match=f"version {card['version']} learned to write actions as tagged; set env.action_format to tagged"):
        run_stage(run, "evaluate", "0")
    (run / "params.yaml").write_text(dump_params(settings.model_dump(mode="json")))
    run_stage(run, "evaluate", "0")
    steps = read_table(run / "data/rounds/0/evaluation/steps.parquet", "steps", ["t", "reply", "action", "format_ok", "prompt_ids"]).to_pylist()
    assert steps and all(step["action"] in step["reply"] for step in steps)
    assert all(parse_reply(step["reply"], "tagged") == (step["action"], True) for step in steps if step["format_ok"])
    head = list(load_template(base, "tagged").head_ids)
    assert all(step["prompt_ids"][: len(head)] == head for step in steps if step["t"] == 0)
