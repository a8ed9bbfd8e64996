"""Deployments of prefect.yaml at Prefect's API: made or renewed, with forms from the flows' parameters; schedules of the UI stay."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from ratchet.yaml_files import read_yaml

EVOLVE = "flows.evolve.evolve"
STARTS = ("preset", "rounds", "seed", "settings", "name")  # parameters of evolve that `on_regression` may give
CRON_SLUG = "ratchet-serve"  # the schedule that --cron makes; all others are the user's


def read_deployments(root: Path) -> list[dict[str, Any]]:
    """The entries of prefect.yaml. Raises RatchetError where the file or something in it is missing."""
    path = root / "prefect.yaml"
    if not path.is_file():
        raise RatchetError(f"{path}: is not there; `ratchet init` puts one into a new project, copy it from there")
    value = read_yaml(path)
    entries = value.get("deployments") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not entries:
        raise RatchetError(f"{path}: holds no list of deployments")
    for place, entry in enumerate(entries):
        for key in ("name", "entrypoint", "work_pool"):
            if not isinstance(entry, dict) or not entry.get(key):
                raise RatchetError(f"{path}: deployments.{place}.{key} is missing")
        if not isinstance(entry["work_pool"], dict) or not entry["work_pool"].get("name"):
            raise RatchetError(f"{path}: deployments.{place}.work_pool: write {{name: NAME}}")
    return entries


def register(root: Path, url: str, deployments: list[dict[str, Any]], schedule: dict[str, Any] | None) -> list[str]:
    """Creates or renews the deployments at Prefect's API; schedules that were made in the UI stay. Returns `FLOW/NAME` of each.

    Raises RatchetError for a deployment of the same name that belongs to another folder.
    """
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    names = []
    with api(url, "a deployment") as client:
        for pool in sorted({entry["work_pool"]["name"] for entry in deployments}):
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=_job_template()))
        for entry in deployments:
            names.append(_register(root, client, entry, schedule if entry["entrypoint"] == EVOLVE else None))
    return names


@contextmanager
def api(url: str, what: str) -> Iterator[Any]:
    """A client of Prefect's API at `url`. Raises RatchetError where it refuses `what` of prefect.yaml."""
    from prefect import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        try:
            yield client
        except PrefectHTTPStatusError as error:
            said = " ".join(error.response.text.split())[:300]
            raise RatchetError(f"Prefect's API at {url} refused {what} of prefect.yaml: {said}") from None


def _register(root: Path, client: Any, entry: dict[str, Any], schedule: dict[str, Any] | None) -> str:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyOptions
    from prefect.exceptions import ObjectNotFound, ScriptError
    from prefect.flows import load_flow_from_entrypoint

    try:
        flow = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
    except (ImportError, ScriptError, AttributeError, ValueError) as error:
        raise RatchetError(f"prefect.yaml: {entry['name']}: no flow {entry['entrypoint']} ({error}); write MODULE.FLOW") from None
    name = f"{flow.name}/{entry['name']}"
    try:
        there = client.read_deployment_by_name(name)
    except ObjectNotFound:
        there = None
    pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(root)}}]
    if there is not None and there.pull_steps and there.pull_steps != pull:
        where = next(iter(there.pull_steps[0].values())).get("directory")
        raise RatchetError(
            f"deployment {name}: belongs to {where} at this server; rename the deployments in prefect.yaml, or delete that one in the UI"
        )
    limit = entry.get("concurrency_limit") or {}
    limit = {"limit": limit} if isinstance(limit, int) else limit
    client.create_deployment(
        flow_id=client.create_flow(flow),
        name=entry["name"],
        description=entry.get("description"),
        tags=entry.get("tags") or [],
        parameters=entry.get("parameters") or {},
        entrypoint=entry["entrypoint"],
        pull_steps=pull,
        work_pool_name=entry["work_pool"]["name"],
        schedules=[DeploymentScheduleCreate(**one) for one in _schedules(entry, there, schedule)],
        concurrency_limit=limit.get("limit"),
        concurrency_options=ConcurrencyOptions(collision_strategy=limit.get("collision_strategy", "ENQUEUE")) if limit else None,
        parameter_openapi_schema=form(root, flow),
        enforce_parameter_schema=True,
    )
    return name


def _schedules(entry: dict[str, Any], there: Any, added: dict[str, Any] | None) -> list[dict[str, Any]]:
    """All of a deployment's schedules: registering replaces them, and those made in the UI must stay as they are."""
    named: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(entry.get("schedules") or []):
        slug = one.get("slug") or f"prefect-yaml-{place}"
        named[slug] = _cron(one.get("cron"), f"prefect.yaml: schedules.{place}", one.get("timezone")) | {
            "slug": slug,
            "parameters": one.get("parameters") or {},
            "active": one.get("active", True),
        }
    if added is not None:
        named[CRON_SLUG] = added
    kept = []
    for one in there.schedules if there is not None else []:
        if one.slug in named:
            named[one.slug]["active"] = one.active  # paused in the UI stays paused
        elif not (one.slug or "").startswith("prefect-yaml-"):
            kept.append({"schedule": one.schedule, "active": one.active, "parameters": one.parameters or {}, "slug": one.slug})
    return [*kept, *named.values()]


def named(deployments: list[dict[str, Any]], names: list[str], entrypoint: str) -> str | None:
    """`FLOW/NAME` of the first deployment of a flow, if prefect.yaml has one."""
    return next((name for entry, name in zip(deployments, names, strict=True) if entry["entrypoint"] == entrypoint), None)


def on_regression(root: Path) -> dict[str, Any] | None:
    """Parameters of the run that a regression starts, which is rendered now, so that it does not fail when it is needed."""
    starts = read_yaml(root / "prefect.yaml").get("on_regression") if (root / "prefect.yaml").is_file() else None
    if starts is None:
        return None
    unknown = [key for key in starts if key not in STARTS] if isinstance(starts, dict) else [str(starts)]
    if unknown:
        raise RatchetError(f"{root / 'prefect.yaml'}: on_regression: {unknown[0]} is no field of evolve; there is {', '.join(STARTS)}")
    sets = [f"{key}={starts[key]}" for key in ("rounds", "seed") if starts.get(key) is not None]
    render_run(root, starts.get("preset"), [*sets, *(starts.get("settings") or [])])
    return starts


def nightly(root: Path, cron: str | None, preset: str | None, settings: list[str]) -> dict[str, Any] | None:
    """The schedule of `--cron`. What it would run is rendered now, so that it does not fail at night."""
    if cron is None:
        if preset or settings:
            raise RatchetError("--preset and --set say what a schedule runs; give --cron with them, or choose them in the form")
        return None
    render_run(root, preset, settings)
    parameters = {"preset": preset, "settings": settings or None}
    given = {key: value for key, value in parameters.items() if value is not None}
    return _cron(cron, "--cron") | {"slug": CRON_SLUG, "parameters": given, "active": True}


def _cron(text: Any, where: str, timezone: str | None = None) -> dict[str, Any]:
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        return {"schedule": CronSchedule(cron=text, timezone=timezone)}
    except ValidationError:
        raise RatchetError(f"{where}: {text!r} is no cron line; write minute, hour, day, month and weekday, such as '0 2 * * *'") from None


def form(root: Path, flow: Any) -> dict[str, Any]:
    """JSON Schema of a flow's parameters as the UI's form shows them: presets are choices; where a run lives is not asked."""
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(flow).model_dump_for_openapi()
    schema["properties"] = {name: _optional(one) for name, one in schema["properties"].items() if name not in ("here", "checkout")}
    if "preset" in schema["properties"]:
        schema["properties"]["preset"]["enum"] = sorted(path.stem for path in (root / "presets").glob("*.yaml"))
    return schema


def _optional(field: dict[str, Any]) -> dict[str, Any]:
    """A field that may be left empty, as the field that it is when it is not: the UI shows `X or null` as a choice between the two."""
    kinds = [one for one in field.get("anyOf", []) if one.get("type") != "null"]
    if len(kinds) != 1:
        return field
    return {**{key: value for key, value in field.items() if key not in ("anyOf", "default")}, **kinds[0]}


def _job_template() -> dict[str, Any]:
    from prefect.workers.process import ProcessWorker

    return ProcessWorker.get_default_base_job_template()
