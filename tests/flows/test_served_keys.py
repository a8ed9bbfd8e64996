"""Keys of served models: out of Prefect's Secret blocks into the environment of the stage that asks, and nowhere else."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from flows.keys import keys_for
from flows.stages import run_stage
from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from ratchet.settings import dump_params
from tests.flows.conftest import CHECKOUT, make_checkout

KEY = "sk-SECRET-0123456789"
POOL = "harvest.pool=[{policy: expert, share: 0.5}, {policy: gpt, share: 0.5}]"
STAGES = """
stages:
  harvest:
    cmd: python -c "import hashlib, os, pathlib; pathlib.Path('out').write_text(hashlib.sha256(os.environ['RATCHET_SECRET_MY_KEY'].encode()).hexdigest())"
    outs: [out]
"""


def workspace(folder: Path, block: str, pool: str = POOL) -> Path:
    entry = f"served.gpt={{url: 'http://127.0.0.1:9/v1', model: m, key_secret: {block}}}"
    folder.mkdir(exist_ok=True)
    (folder / "params.yaml").write_text(dump_params(render_run(CHECKOUT, None, [entry, pool])))
    return folder


def test_a_secret_reaches_the_stage_that_asks_and_no_file(tmp_path: Path, prefect_api: dict[str, str]) -> None:
    from prefect.blocks.system import Secret

    folder = workspace(make_checkout(tmp_path / "checkout", STAGES), "my-key")
    with pytest.raises(RatchetError, match="served.gpt.key_secret: Prefect has no Secret block my-key; make one in its UI"):
        keys_for(folder, "harvest@1")
    Secret(value=KEY).save("my-key", overwrite=True)
    assert keys_for(folder, "harvest@1") == {"RATCHET_SECRET_MY_KEY": KEY}
    assert keys_for(folder, "evaluate@1") == {}
    run_stage(folder, "harvest", lambda line: None, keys_for(folder, "harvest"))
    assert (folder / "out").read_text() == sha256(KEY.encode()).hexdigest()
    for path in folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    Secret(value="").save("my-key", overwrite=True)
    with pytest.raises(RatchetError, match="the Secret block my-key holds no text"):
        keys_for(folder, "harvest@1")


def test_prefect_is_not_asked_for_a_model_that_does_not_play(tmp_path: Path) -> None:
    assert keys_for(workspace(tmp_path, "no-such-block", "harvest.pool=[{policy: expert, share: 1}]"), "harvest@1") == {}
