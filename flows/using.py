"""`ratchet use`: a preset's settings written into the checkout's params.yaml, comments kept, own changes never lost by accident."""

from io import StringIO
from pathlib import Path
from typing import Any

from flows.commands import root
from flows.project import template
from flows.workspace import git
from ratchet.errors import RatchetError
from ratchet.files import write_bytes
from ratchet.rendering import read_preset, render_params, rerender
from ratchet.yaml_files import parse_yaml, read_yaml

SHOWN = 5  # settings of one's own that a refusal names


def use_preset(preset: str, settings: list[str], force: bool) -> None:
    """`ratchet use`."""
    checkout = root()
    path = checkout / "params.yaml"
    text = _defaults_text(checkout)
    defaults = parse_yaml(text, "the defaults")
    wanted = render_params(defaults, read_preset(checkout / "presets", preset), settings, f"presets/{preset}.yaml", checkout)
    before = read_yaml(path)
    own = own_changes(checkout, defaults, before)
    if own and not force:
        more = f" and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
        raise RatchetError(
            f"params.yaml: holds settings of your own ({', '.join(own[:SHOWN])}{more}) that would be lost; keep them as a preset in presets/, "
            f"or give --force. To run {preset} once, with your settings below it: `ratchet run --preset {preset}`"
        )
    write_bytes(path, rerender(with_values(text, wanted), checkout).encode())
    changed = differing(before, wanted)
    print(f"params.yaml: {preset}, {len(changed)} settings changed{': ' + ', '.join(changed[:12]) if changed else ''}")


def own_changes(checkout: Path, defaults: dict[str, Any], params: dict[str, Any]) -> list[str]:
    """Dotted keys in which params.yaml differs from the defaults and from every preset; of the nearest one where there is no equal."""
    known = sorted(file.stem for file in (checkout / "presets").glob("*.yaml"))
    rendered = [defaults, *(_rendered(checkout, defaults, name) for name in known)]
    return min((differing(one, params) for one in rendered if one is not None), key=len)


def differing(one: Any, other: Any, above: str = "") -> list[str]:
    """Dotted keys of the leaves in which two settings differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return [name for key in keys for name in differing(one.get(key), other.get(key), f"{above}.{key}" if above else str(key))]
    return [] if one == other else [above]


def with_values(text: str, values: dict[str, Any]) -> str:
    """A YAML text with other values; its comments and its layout stay where a value stays."""
    from ruamel.yaml import YAML

    yaml = YAML()  # round trip, YAML 1.2 as DVC reads it
    yaml.preserve_quotes = True
    yaml.width = 1000
    yaml.representer.add_representer(type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null"))
    document = yaml.load(text)
    _assign(document, values)
    out = StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(document, out)
    written = out.getvalue()
    if parse_yaml(written, "params.yaml") != values:
        raise RatchetError(f"params.yaml: could not be written ({_first_difference(parse_yaml(written, ''), values)}); please report this")
    return written


def _assign(node: Any, values: dict[str, Any]) -> None:
    for key in [key for key in node if key not in values]:
        del node[key]
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(node.get(key), dict):
            _assign(node[key], value)
        elif key not in node or node[key] != value:
            node[key] = value


def _first_difference(one: Any, other: Any) -> str:
    return next(iter(differing(one, other)), "")


def _rendered(checkout: Path, defaults: dict[str, Any], preset: str) -> dict[str, Any] | None:
    try:
        return render_params(defaults, read_preset(checkout / "presets", preset), [], preset, checkout)
    except RatchetError:
        return None  # a preset that cannot work is nobody's settings


def _defaults_text(checkout: Path) -> str:
    """The params.yaml that presets are differences to: the package's; in Ratchet's own checkout, the one last committed."""
    source = template()
    if source.resolve() != checkout.resolve():
        return (source / "params.yaml").read_text(encoding="utf-8")
    return git(checkout, "show", "HEAD:params.yaml")
