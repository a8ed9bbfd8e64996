"""What a benchmark brings besides its engine: tasks, options, an expert, and where its environment is built.

`env.name` is a key of `BENCHMARKS` or `module:Class`, a class of one's own that fulfils `Benchmark`; its module is found in the
workspace or among the installed packages.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ratchet.envs.base import Expert, Task
from ratchet.envs.pool import EnvPool
from ratchet.envs.worker import reason_of
from ratchet.errors import RatchetError
from ratchet.files import sha256_files, sha256_json
from ratchet.section import Section


class Benchmark(Protocol):
    """A class without arguments to its constructor. `settings` is the `env` section, `settings.options` an `Options`.

    It may have `penalties`, three numbers: the retrospective rewards of a broken format, an invalid action and an unchanged
    observation, where they are not those of ratchet/episodes/labels.py; `words`, a sequence of all words that are ever said in it,
    each of which is then one token of models from scratch; and `null_action`, the action of a policy that does nothing.
    """

    Options: ClassVar[type[Section]]
    """Settings of this benchmark alone, each with a default; `env.options` in params.yaml."""

    @property
    def factory(self) -> str:
        """`module:callable`, called in a worker process with `arguments(…)`, which returns an Environment."""
        ...

    def prepare(self, folder: Path, settings: Any, counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
        """Writes what the environment plays into `folder` and returns the tasks of each split of `counts`."""
        ...

    def arguments(self, folder: Path, settings: Any, splits: list[str]) -> dict[str, Any]:
        """Keyword arguments of `factory` in a worker that plays tasks of `splits`."""
        ...

    def expert(self, folder: Path) -> Expert:
        """A new expert, for one episode; `folder` is what `prepare` wrote. Raises RatchetError where there is none."""
        ...


BENCHMARKS = {
    "alfworld": "ratchet.envs.alfworld.benchmark:Alfworld",
    "scienceworld": "ratchet.envs.scienceworld.benchmark:Scienceworld",
    "proving-ground": "ratchet.envs.proving_ground.benchmark:ProvingGround",
}
_METHODS = ("prepare", "arguments", "expert")


def benchmark(name: str) -> Benchmark:
    """Raises RatchetError for an unknown name, with the nearest one, and for a class that is no benchmark."""
    try:
        return benchmark_class(name)()
    except RatchetError:
        raise
    except Exception as error:  # of anybody's class
        raise RatchetError(f"env.name: {name}() cannot be made without arguments ({reason_of(error)})") from error


def benchmark_class(name: str) -> type[Benchmark]:
    """The class behind `env.name`, with all that a benchmark has. Raises RatchetError as `benchmark` does."""
    if ":" not in name and name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0.0)[0]
        raise RatchetError(
            f"env.name: no environment {name!r}; did you mean {near!r}? (known: {', '.join(sorted(BENCHMARKS))}, or module:Class of your own)"
        )
    module_name, _, attribute = BENCHMARKS.get(name, name).partition(":")
    module = _module(name, module_name)
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__]
        near = difflib.get_close_matches(attribute, classes, n=1)
        there = f"did you mean {module_name}:{near[0]}?" if near else f"its classes are {', '.join(classes) or 'none'}"
        raise RatchetError(f"env.name: {module_name} has no class {attribute!r}; {there}")
    missing = [one for one in _METHODS if not callable(getattr(found, one, None))]
    if missing:
        raise RatchetError(f"env.name: {name} has no method {', '.join(missing)}; a benchmark has {', '.join(_METHODS)}")
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, Section)):
        raise RatchetError(f"env.name: {name} has no class Options; write `class Options(Section)` in it, empty where there is nothing to set")
    needed = [key for key, field in options.model_fields.items() if field.is_required()]
    if needed:
        raise RatchetError(f"env.name: {name}.Options.{needed[0]} has no default; give each option one, so that params.yaml can be completed")
    if not isinstance(getattr(found, "factory", None), str):
        raise RatchetError(f"env.name: {name} has no text factory = 'module:callable', which makes its environment in a worker")
    return found


def default_options(name: str) -> dict[str, Any]:
    """The options of the benchmark `name` as plain values, all of them. Raises RatchetError as `benchmark` does."""
    try:
        return benchmark_class(name).Options().model_dump(mode="json")
    except ValueError as error:  # a validator of its own
        raise RatchetError(f"env.name: {name}.Options refuses its own defaults ({reason_of(error)}); mend them") from error


def _module(name: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):  # a module that it imports
            raise RatchetError(f"env.name: {name} needs the package {error.name}, which is not installed; install it") from error
        raise RatchetError(
            f"env.name: no module {module_name!r}; put {module_name.replace('.', '/')}.py beside params.yaml, or install its package"
        ) from error
    except Exception as error:  # of anybody's module
        raise RatchetError(f"env.name: {module_name} cannot be imported ({reason_of(error)}); mend it") from error


def look_in(folder: Path) -> None:
    """Modules are also found in `folder`, here and in the workers that start from here; the installed ones come first."""
    path = str(folder.resolve())
    if path not in (entry if entry else str(Path.cwd()) for entry in sys.path):
        sys.path.append(path)


def own_files(name: str, folder: Path) -> list[Path]:
    """The code of `module:Class` where it lies in `folder`: a module's file, or all files of the package that it is in."""
    first = name.partition(":")[0].partition(".")[0]
    if ":" not in name or not first or first == __name__.partition(".")[0]:
        return []
    package, module = folder / first, folder / f"{first}.py"
    if package.is_dir():
        return sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [module] if module.is_file() else []


def own_code(name: str, folder: Path) -> str | None:
    """A hash of `own_files`, None where there are none. It stands in params.yaml, so that stages see when the code changes."""
    paths = own_files(name, folder)
    return sha256_json([[str(path.relative_to(folder)) for path in paths], sha256_files(paths)])[:12] if paths else None


def open_pool(folder: Path, settings: Any, splits: list[str], *, admissible: bool) -> EnvPool:
    """The process pool for tasks of `splits`; `settings` is the `env` section."""
    one = benchmark(settings.name)
    return EnvPool(one.factory, one.arguments(folder, settings, splits), settings.workers, settings.step_timeout_s, admissible)
