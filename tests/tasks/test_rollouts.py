"""How a stage plays its shards changes none of its bytes."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest
import yaml

from ratchet.errors import RatchetError
from ratchet.policies.language_model import LanguageModelPolicy, ModelSpec
from ratchet.rollout.players import Players
from tests.tasks.conftest import run_stage


def lay_settings(folder: Path, **env: object) -> None:
    """Shards of three episodes, and these settings of `env`."""
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["env"] |= env
    params["harvest"] |= {"shard": 3}
    params["evolve_online"] |= {"shard": 4}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def played(folder: Path, **env: object) -> dict[str, str]:
    """Digests of the harvest, played anew."""
    lay_settings(folder, **env)
    run_stage(folder, "harvest", "1")
    return digests(folder / "data/rounds/1/harvest")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def test_two_shards_in_turns_are_the_same_bytes_as_one_after_the_other(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins: list[str] = []
    twin = LanguageModelPolicy.twin

    def counting(policy: LanguageModelPolicy) -> LanguageModelPolicy:
        twins.append(policy.policy_id)
        return twin(policy)

    monkeypatch.setattr(LanguageModelPolicy, "twin", counting)
    plain = played(copy)
    assert not twins
    assert played(copy, alternate=True) == plain and {"episodes.parquet", "steps.parquet"} <= set(plain)
    assert sorted(twins) == ["actor", "small"], "models alternate; an expert and a random walk have nothing to do meanwhile"


def test_players_side_by_side_make_the_bytes_of_one_process_also_after_one_was_killed_and_while_the_model_learns(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [played(copy, players=1), learned(copy)]
    whole, versions = Players.play, list[str]()

    def noting(self: Players, shards: object, spec: ModelSpec, *rest: object) -> object:
        versions.append(spec.version.partition("+")[2])
        for number, one in enumerate(whole(self, shards, spec, *rest)):
            yield one
            if number == 0 and len(versions) == 1:
                os.kill(self.processes[0].popen.pid, signal.SIGKILL)

    monkeypatch.setattr(Players, "play", noting)
    with pytest.raises(RatchetError, match=r"ended \(signal 9\).*lower env.players.*--resume"):
        played(copy, players=2)
    kept = {path.name for path in copy.glob(".ratchet/scratch/harvest@1/*/parts/*.parquet")}
    assert any(name.startswith("actor-") for name in kept), "what was played is kept"
    assert [played(copy, players=2), learned(copy)] == plain
    assert versions[-2:] == ["1.0", "1.1"], "each iteration's own weights"


def learned(folder: Path) -> tuple[dict[str, str], str]:
    """Digests of the online round's episodes and of its last candidate's weights; its card holds a hash of all settings."""
    run_stage(folder, "evolve_online", "1")
    weights = digests(folder / "models/rounds/1/candidates/iter-002")["model.safetensors"]
    return digests(folder / "data/rounds/1/online"), weights
