"""Complete params from defaults (params.yaml of the checkout), a preset's differences and `--set a.b.c=value`.

DVC can neither lay one params file over another nor count in `foreach`, so every workspace gets a complete file, in which
`rounds=3` has become the mappings `rounds`, `evaluations` and `last`.
"""

from __future__ import annotations

import copy
import difflib
import re
from pathlib import Path
from typing import Any

from ratchet.envs.benchmarks import default_options, look_in, own_code
from ratchet.errors import RatchetError
from ratchet.models.pretrained import is_package, package_gguf
from ratchet.policies.served_settings import complete
from ratchet.settings import derived, parse, settings_type
from ratchet.settings_errors import unknown_key
from ratchet.yaml_files import dump_yaml, flow_yaml, parse_yaml, read_yaml

WHOLE = ("actors", "pool")  # replaced as they are: half an actor or half a pool of another preset makes no sense
DERIVED = ("evaluations", "last")
MAX_ROUNDS = 1000
NUMBER_OR_WORD = ("prefixes",)  # keys whose value may be either
_CODE = re.compile(r"^(env:.*\n(?:(?:[ \t].*)?\n)*?[ \t]+code: +)[^\s#]+", re.MULTILINE)


def render_params(
    base: dict[str, Any], preset: dict[str, Any], sets: list[str], preset_name: str = "the preset", folder: Path | None = None
) -> dict[str, Any]:
    """Merges, applies `sets` (`a.b.c=YAML value`), derives the mappings of rounds, and checks the result.

    Where preset or `sets` change `env.name`, `env.options` start from that benchmark's defaults; one's own is looked for in
    `folder`. Raises RatchetError, which says whether defaults, preset or `--set` gave the refused key.
    """
    if folder is not None:
        look_in(folder)
    try:
        params = _lay_over(copy.deepcopy(base), preset)
        _complete_served(params)
        for text in sorted(sets, key=lambda text: not _related(_key(text), "env.name")):  # options belong to a name
            _apply(params, text)
            _complete_served(params)
        _derive(params, base.get("rounds"), folder)
        parse(params, "", folder)
    except RatchetError as error:
        line = str(error).removeprefix(": ")
        if line.startswith("--set"):
            raise
        raise RatchetError(f"{_origin(line, preset, sets, preset_name)}: {line}") from None
    return params


def render_run(root: Path, preset: str | None, sets: list[str]) -> dict[str, Any]:
    """Params of a run from the files of a checkout: params.yaml, presets/NAME.yaml where a preset is named, and `sets`.

    Paths of pretrained actors and of tokenizers become absolute, since a run's workspace is another folder. Raises RatchetError, also for a preset or
    a model's folder that is not there.
    """
    differences = read_preset(root / "presets", preset) if preset else {}
    params = render_params(read_yaml(root / "params.yaml"), differences, sets, f"presets/{preset}.yaml", root)
    for name, actor in params["actors"].items():
        if is_package(actor.get("path", "")):
            package_gguf(actor["path"])  # one that is not installed is said before anything starts
        elif "path" in actor:
            folder = (root / actor["path"]).resolve()
            if not (folder / "config.json").is_file():
                raise RatchetError(f"actors.{name}.path: {folder} holds no config.json; give a local folder in Hugging Face's layout")
            actor["path"] = str(folder)
    for name, entry in params["served"].items():
        if entry["tokenizer"] is not None:
            entry["tokenizer"] = str((root / entry["tokenizer"]).resolve())
            if not Path(entry["tokenizer"], "tokenizer.json").is_file():
                raise RatchetError(f"served.{name}.tokenizer: {entry['tokenizer']} holds no tokenizer.json; give the folder of the model")
    return params


def read_preset(folder: Path, name: str) -> dict[str, Any]:
    """The differences of a preset. Raises RatchetError naming the nearest one, or all."""
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise RatchetError(f"--preset {name}: no such preset; {f'did you mean {near[0]}?' if near else 'there is ' + ', '.join(known)}")
    value = read_yaml(folder / f"{name}.yaml") or {}
    if not isinstance(value, dict):
        raise RatchetError(f"presets/{name}.yaml: holds {type(value).__name__}; write `key: value` lines as in params.yaml, or {{}}")
    return value


def render_rounds(count: int, settings_of: dict[str, Any] | None = None) -> dict[str, Any]:
    """`rounds` as a mapping with string keys; what `settings_of` says about a round stays."""
    if isinstance(count, bool) or not 1 <= count <= MAX_ROUNDS:
        raise RatchetError(f"rounds: {count!r} is not a count from 1 to {MAX_ROUNDS}; give one, as in `--set rounds=3`")
    kept = settings_of or {}
    keys = [str(number) for number in range(1, count + 1)]
    return {key: {**kept.get(key, {}), "prev": str(int(key) - 1)} for key in keys}


def rerender(text: str, folder: Path | None = None) -> str:
    """A params.yaml whose `rounds` may be a count, or a mapping or list that went out of step, with its derived mappings renewed.

    Everything else, comments included, stays as it is. An environment of one's own is also looked for in `folder`. Raises
    RatchetError where the rest of the file cannot work.
    """
    params = parse_yaml(text, "params.yaml")
    if not isinstance(params, dict) or "rounds" not in params:
        raise RatchetError("params.yaml: has no rounds; write `rounds: 2` into it and run `ratchet render` again")
    old = params["rounds"]
    given = {str(key): value for key, value in old.items() if isinstance(value, dict)} if isinstance(old, dict) else {}
    params["rounds"] = render_rounds(len(old) if isinstance(old, (dict, list)) else old, given)
    if folder is not None:
        look_in(folder)
    _derive(params, None, folder)
    parse(params, folder=folder)
    text = _CODE.sub(lambda found: found[1] + dump_yaml(params["env"]["code"]).splitlines()[0], text, count=1)
    for key in ("rounds", *DERIVED):
        text = _replace_block(text, key, _block(key, params[key]))
    return text


def _block(key: str, value: Any) -> str:
    if isinstance(value, str):
        return f'{key}: "{value}"\n'
    lines = [f'  "{name}": {flow_yaml(item)}\n' for name, item in value.items()]
    return "".join([f"{key}:\n", *lines])


def _replace_block(text: str, key: str, block: str) -> str:
    """The top-level `key` with all indented lines below it becomes `block`; a key that is not there is added at the end."""
    pattern = re.compile(rf"^{key}[ ]*:.*\n?(?:[ \t-].*\n?)*", re.MULTILINE)
    if pattern.search(text) is None:
        return text.rstrip("\n") + "\n" + block
    return pattern.sub(lambda _: block, text, count=1)


def _merge(below: Any, above: Any, name: str = "") -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)) or name in WHOLE:
        return copy.deepcopy(above)
    for key, value in above.items():
        below[key] = _merge(below.get(key), value, key)
    return below


def _lay_over(params: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` merged into `params`, with the options of the environment complete."""
    old, new = (_at(values, "env", "name") for values in (params, above))
    if new is not None and new != old and isinstance(params.get("env"), dict):
        params["env"]["options"] = {}
    params = _merge(params, above)
    name, options = (_at(params, "env", key) for key in ("name", "options"))
    if isinstance(name, str) and isinstance(options, dict | None):
        params["env"]["options"] = _merge(default_options(name), options or {})
    return params


def _complete_served(params: dict[str, Any]) -> None:
    """Served models with all their keys; what is no mapping is left for `parse` to refuse."""
    if isinstance(params.get("served"), dict):
        params["served"] = {name: complete(entry) for name, entry in params["served"].items()}


def _at(values: Any, *path: str) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def _apply(params: dict[str, Any], text: str) -> None:
    """One `a.b.c=value` into `params`. Every key on the way must be there; the last one may name a new actor or served model."""
    dotted, equals, value_text = text.partition("=")
    path = dotted.strip().split(".")
    if not equals or not all(path):
        raise RatchetError(f"--set {text}: not of the form key=value; write for instance `--set evolve_online.lr=1e-4`")
    if path == ["env", "code"]:
        raise RatchetError(f"--set {dotted}: is the hash of your environment's code, and derived from it")
    if path[0] in DERIVED or (path[0] == "rounds" and path[-1] == "prev"):
        raise RatchetError(f"--set {dotted}: is derived from the count of rounds; write `--set rounds=3` instead")
    if path[0] == "rounds" and path[2:3] == ["set"] and len(path) > 4:
        return _set_of_round(params, path, parse_yaml(value_text, f"--set {dotted}"))
    parent = _parent(params, path)
    last: Any = int(path[-1]) if isinstance(parent, list) else path[-1]
    old = parent[last] if isinstance(parent, list) else parent.get(last)
    value = parse_yaml(value_text, f"--set {dotted}")
    if isinstance(old, str) and not isinstance(value, (str, dict, list)) and path[-1] not in NUMBER_OR_WORD:
        value = value_text.strip()  # a text stays a text: `--set line=2024`, or a version's id that looks like a number
    if path == ["env", "name"]:
        _lay_over(params, {"env": {"name": value}})
    elif path == ["env"]:
        _lay_over(params, {"env": value})
    else:
        parent[last] = _merge(old, value, path[-1])


def _set_of_round(params: dict[str, Any], path: list[str], value: Any) -> None:
    """`rounds.3.set.SECTION.KEY=value`: the section's own keys are checked where the round's settings are."""
    if isinstance(params["rounds"], int):
        params["rounds"] = render_rounds(params["rounds"])
    _parent(params, path[:2])
    item = params["rounds"][path[1]]
    for part in path[2:-1]:
        item = item.setdefault(part, {})
    item[path[-1]] = _merge(item.get(path[-1]), value, path[-1])


def _parent(params: dict[str, Any], path: list[str]) -> Any:
    current: Any = params
    for place, part in enumerate(path):
        found = _holds(current, part)
        is_last = place == len(path) - 1
        if not found and not (is_last and path[:-1] in (["actors"], ["served"])):
            raise RatchetError(f"--set {unknown_key(path[: place + 1], settings_type(params))}")
        if is_last:
            return current
        current = current[int(part)] if isinstance(current, list) else current[part]
    raise AssertionError("a path has at least one part")


def _holds(current: Any, part: str) -> bool:
    if isinstance(current, list):
        return part.isdigit() and int(part) < len(current)
    return isinstance(current, dict) and part in current


def _derive(params: dict[str, Any], before: Any, folder: Path | None) -> None:
    """Fills what follows from `rounds`, the first actor and the environment's code in `folder`. What is malformed is left as it is,
    for `parse` to refuse."""
    name = _at(params, "env", "name")
    if isinstance(name, str):
        params["env"]["code"] = None if folder is None else own_code(name, folder)
    rounds = params.get("rounds")
    if isinstance(rounds, int):
        params["rounds"] = render_rounds(rounds, before if isinstance(before, dict) else None)
    actors = params.get("actors")
    keys = list(params["rounds"]) if isinstance(params.get("rounds"), dict) else []
    if keys and all(isinstance(key, str) for key in keys) and isinstance(actors, dict) and actors:
        params |= derived(keys, str(next(iter(actors))))


def _origin(line: str, preset: dict[str, Any], sets: list[str], preset_name: str) -> str:
    """Who gave the key that `line` begins with."""
    key = line.split(":")[0].split(" ")[0]
    if any(_related(_key(text), key) for text in sets):
        return "--set"
    current: Any = preset
    for part in key.split("."):
        if not isinstance(current, dict) or part not in current:
            return "params.yaml" if current is preset or isinstance(current, dict) else preset_name
        current = current[part]
    return preset_name


def _related(one: str, other: str) -> bool:
    return one == other or other.startswith(f"{one}.") or one.startswith(f"{other}.")
