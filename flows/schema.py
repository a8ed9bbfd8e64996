"""`ratchet schema`: JSON Schema of params.yaml, so that an editor completes keys and says what is wrong while it is typed."""

import json
from pathlib import Path
from typing import Any

from flows.commands import root
from ratchet.envs.benchmarks import BENCHMARKS, benchmark_class
from ratchet.files import write_bytes
from ratchet.settings import Settings
from ratchet.yaml_files import read_yaml

FILE = "params.schema.json"
HINT = f"# yaml-language-server: $schema={FILE}\n"


def print_or_write(write: bool) -> None:
    """`ratchet schema`."""
    if not write:
        print(text(_names(root())), end="")
        return
    write_bytes(root() / FILE, text(_names(root())).encode())
    params = root() / "params.yaml"
    before = params.read_text(encoding="utf-8")
    if HINT not in before:
        write_bytes(params, (HINT + before).encode())
    print(f"{root() / FILE}: written, and named in the first line of params.yaml")


def text(names: list[str]) -> str:
    """The schema for the benchmarks `names` as JSON text, always the same for the same settings."""
    return json.dumps(schema(names), indent=1, ensure_ascii=False) + "\n"


def schema(names: list[str]) -> dict[str, Any]:
    """The settings' schema, in which `env.options` depends on `env.name`."""
    value = Settings.model_json_schema()
    definitions = value["$defs"]
    cases = []
    for name in names:
        prefix = name.replace(":", ".")
        options = benchmark_class(name).Options.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
        definitions |= {f"{prefix}.{key}": one for key, one in options.pop("$defs", {}).items()}
        definitions[f"{prefix}.Options"] = options
        then = {"properties": {"options": {"$ref": f"#/$defs/{prefix}.Options"}}}
        cases.append({"if": {"properties": {"name": {"const": name}}}, "then": then})
    definitions["Env"]["allOf"] = cases
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **value}


def _names(checkout: Path) -> list[str]:
    """All benchmarks that come with the package, and the one of one's own that params.yaml names."""
    from ratchet.envs.benchmarks import look_in

    own = (read_yaml(checkout / "params.yaml").get("env") or {}).get("name")
    look_in(checkout)
    return [*BENCHMARKS, *([own] if isinstance(own, str) and ":" in own else [])]
