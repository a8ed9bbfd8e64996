"""Turns pydantic's findings about settings into one line: which dotted key, what is wrong with it, and what to do."""

from __future__ import annotations

import difflib
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

_TAGS = ("scratch", "pretrained")  # pydantic puts the kind of an actor into the path of an error


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The most telling finding (an unknown key before all others, since it often causes them), and how many more there are."""
    findings = error.errors(include_url=False)
    findings.sort(key=lambda item: item["type"] != "extra_forbidden")
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return _one(findings[0], model) + more


def _one(finding: Any, model: type[BaseModel]) -> str:
    path = [str(part) for place, part in enumerate(finding["loc"]) if not (place == 2 and part in _TAGS)]
    kind, value = finding["type"], finding["input"]
    if kind == "extra_forbidden":
        return unknown_key(path, model)
    if path[-1:] == ["[key]"]:
        return (
            f"{'.'.join(path[:-1])}: the key {value!r} is not a string, and DVC makes no stage of it; "
            f'write it in quotes ("{value}"), or run `ratchet render`'
        )
    if kind == "value_error":
        return ".".join([*path, str(finding["ctx"]["error"])])
    meaning = describe(path, model)
    key = ".".join(path)
    if kind == "missing":
        return f"{key} is missing ({meaning}); add it, with the value of the checkout's params.yaml"
    message = finding["msg"][0].lower() + finding["msg"][1:]
    return f"{key}: {value!r} is refused, {message}; it is: {meaning}"


def unknown_key(path: list[str], model: type[BaseModel]) -> str:
    """One line about a key that nothing knows: the nearest one beside it, else the same name elsewhere, else what is there."""
    beside = [name for name in known_keys(model) if name.split(".")[:-1] == _pattern(path[:-1], model)]
    names = [name.split(".")[-1] for name in beside]
    near = difflib.get_close_matches(path[-1], names, n=1)
    prefix = ".".join(path[:-1])
    dotted = ".".join(path)
    if path[-1] in names:
        return f"{dotted}: cannot stand beside the other keys of {prefix}; remove it, or them"
    if near:
        return f"{dotted}: unknown key; did you mean {f'{prefix}.' if prefix else ''}{near[0]}?"
    elsewhere = [name for name in known_keys(model) if name.split(".")[-1] == path[-1]]
    elsewhere = elsewhere or difflib.get_close_matches(dotted, known_keys(model), n=1, cutoff=0.85)
    if elsewhere:
        return f"{dotted}: unknown key; did you mean {' or '.join(elsewhere)}?"
    return f"{dotted}: unknown key; known there: {', '.join(names)}"


def describe(path: list[str], model: type[BaseModel]) -> str:
    """The description of a setting, or of the nearest one above it."""
    text = "a setting"
    current: Any = model
    for part in path:
        models = _models(current)
        field = next((item.model_fields[part] for item in models if part in item.model_fields), None)
        if field is None:
            current = _element(current)
            continue
        text, current = field.description or text, field.annotation
    return text


def known_keys(model: type[BaseModel]) -> list[str]:
    """All dotted keys; what stands for a name of your own (an actor, a round) is `*`."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(name)
        keys += [f"{name}.{key}" for key in _below(field.annotation)]
    return keys


def _below(annotation: Any) -> list[str]:
    models = _models(annotation)
    if models:
        return [key for model in models for key in known_keys(model)]
    element = _element(annotation)
    return [f"*.{key}" for key in _below(element)] if element is not None else []


def _element(annotation: Any) -> Any:
    """What a dict or list holds, or None."""
    if get_origin(annotation) in (dict, list):
        return get_args(annotation)[-1]
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (dict, list, None):
        return []
    return [model for item in get_args(annotation) for model in _models(item)]


def _pattern(path: list[str], model: type[BaseModel]) -> list[str]:
    """The path with names of your own replaced by `*`."""
    known = {tuple(key.split(".")) for key in known_keys(model)}
    pattern: list[str] = []
    for part in path:
        fits = (*pattern, part) in known
        pattern.append(part if fits else "*")
    return pattern
