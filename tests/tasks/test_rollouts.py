"""How a stage plays its shards changes none of its bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from ratchet.policies.language_model import LanguageModelPolicy
from tests.tasks.conftest import run_stage


def played(folder: Path, alternate: bool) -> dict[str, str]:
    """Digests of the harvest, played anew in shards of three episodes."""
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["env"] |= {"alternate": alternate}
    params["harvest"] |= {"shard": 3}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    run_stage(folder, "harvest", "1")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "data/rounds/1/harvest").iterdir()}


def test_two_shards_in_turns_are_the_same_bytes_as_one_after_the_other(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins: list[str] = []
    twin = LanguageModelPolicy.twin

    def counting(policy: LanguageModelPolicy) -> LanguageModelPolicy:
        twins.append(policy.policy_id)
        return twin(policy)

    monkeypatch.setattr(LanguageModelPolicy, "twin", counting)
    plain = played(copy, False)
    assert not twins
    assert played(copy, True) == plain and {"episodes.parquet", "steps.parquet"} <= set(plain)
    assert sorted(twins) == ["actor", "small"], "models alternate; an expert and a random walk have nothing to do meanwhile"
