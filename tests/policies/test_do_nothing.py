"""What a policy that does nothing solves."""

from pathlib import Path
from types import SimpleNamespace

from ratchet.envs.pool import EnvPool
from ratchet.envs.proving_ground.benchmark import ProvingGround
from ratchet.policies.do_nothing import do_nothing
from ratchet.rollout.play import Job, play


def test_on_the_proving_ground_doing_nothing_solves_the_idle_stratum_and_no_other(tmp_path: Path) -> None:
    one = ProvingGround()
    settings = SimpleNamespace(options=ProvingGround.Options())
    tasks = one.prepare(tmp_path, settings, {"train": 40}, 1)["train"]
    with EnvPool(one.factory, one.arguments(tmp_path, settings, ["train"]), 1, 30.0, False) as pool:
        episodes, steps = play([Job(task, 1) for task in tasks], do_nothing(one.null_action, "tagged"), pool, max_steps=5, rows=8)
    rows = episodes.to_pylist()
    assert {row["stratum"] for row in rows if row["solved"]} == {"idle"} and {row["stratum"] for row in rows if not row["solved"]} >= {"plain", "fragile"}
    assert not any(row["error"] for row in rows) and set(steps["action"].to_pylist()) == {one.null_action}
