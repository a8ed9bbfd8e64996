"""YAML as DVC reads it: no key twice, `1e-4` is a number, and what is written reads back the same in both dialects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import RatchetError

# YAML 1.1 (PyYAML) takes 1e-4 for a text, YAML 1.2 (DVC) for a number; the same pattern for both, also when quoting is decided:
# a version id such as 12345e678901 must be written in quotes.
_NUMBER = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool)) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
            if isinstance(key, (str, int, float, bool)):
                seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes no anchors and quotes with double quotes, as params.yaml does."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def choose_scalar_style(self) -> str:
        style = super().choose_scalar_style()
        return '"' if style == "'" else style


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text. Raises RatchetError with the line where it is broken; `where` names the text."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RatchetError(f"{where}{place}: not valid YAML ({problem}); correct it there") from None


def read_yaml(path: Path) -> Any:
    """The value of a YAML file. Raises RatchetError where it is missing or broken."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RatchetError(f"{path}: no such file; run this in the checkout or in a run's workspace") from None
    except UnicodeDecodeError as error:
        raise RatchetError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    return parse_yaml(text, str(path))


def dump_yaml(value: Any) -> str:
    """Block style, keys in their order; texts that look like numbers are quoted."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=140)


def flow_yaml(value: Any) -> str:
    """One line, `{a: 1, b: [2]}`."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=True).strip()
