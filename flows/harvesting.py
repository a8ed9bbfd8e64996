"""The flow `harvest`: a run as far as its first round's data, and no further.

No `from __future__ import annotations` here: it breaks the parameters of served flows.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from flows.quiet import prepare_prefect

prepare_prefect()

from prefect import flow  # noqa: E402  (it reads its environment when imported)
from prefect.logging import get_run_logger  # noqa: E402

from flows import workspace  # noqa: E402
from flows.evolve import open_run, run_stages, way_on  # noqa: E402

LAST = "check@1"


@flow(name="harvest", persist_result=False)
def harvest(
    preset: str | None = None,
    episodes: Annotated[int, Field(ge=1)] | None = None,
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None,
    settings: list[str] | None = None,
    name: str | None = None,
) -> str:
    """Plays the pool of policies, labels and checks what came of it, and trains nothing on it. Returns the run's id.

    The run goes on where it stopped: start evolve with its id as `resume`.

    Args:
        preset: What to run, a file of presets/. Empty runs params.yaml as it is.
        episodes: How many to play. Empty takes the preset's.
        seed: Seed of everything random. Empty takes the preset's.
        settings: Settings on top, each KEY=VALUE, such as harvest.temperature=0.7.
        name: First part of the new run's id. Empty takes its line.
    """
    root = workspace.find_root(Path.cwd())
    fields = {"harvest.episodes": episodes, "seed": seed}
    on_top = [*(f"{key}={value}" for key, value in fields.items() if value is not None), *(settings or [])]
    run_id, folder = open_run(root, preset or None, on_top, None, False, name or None)
    with workspace.running(folder):
        run_stages(root, folder, run_id, LAST)
    get_run_logger().info("harvested; go on with %s", way_on(run_id))
    return run_id
