"""Failed checks that a person lets pass, for a reason: waivers.yaml, a tracked file that every run sees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from monitoring.quality_checks import known_names, nearest
from ratchet.errors import RatchetError
from ratchet.files import write_bytes


def fails(check: Mapping[str, Any]) -> bool:
    """Whether this check of a verdict stops what it was made for: it failed, not only as a warning, and nobody waived it."""
    return not check["passed"] and check["severity"] != "warn" and "waived" not in check


def passes(checks: list[dict[str, Any]]) -> bool:
    return not any(map(fails, checks))


def apply_waivers(verdict: Mapping[str, Any], waivers: list[dict[str, str]]) -> dict[str, Any]:
    """The verdict with `"waived": reason` at each failed check that a person lets pass, and `passed` decided again."""
    reasons = {waiver["check"]: waiver["reason"] for waiver in waivers}
    checks = [
        {**check, "waived": reasons[check["name"]]} if not check["passed"] and check["name"] in reasons else dict(check)
        for check in verdict["checks"]
    ]
    return {**verdict, "passed": passes(checks), "checks": checks}


def read_waivers(path: Path) -> list[dict[str, str]]:
    """The waivers of a file (`waivers: [{check, reason}, …]`); none where there is no file. Raises RatchetError."""
    if not path.is_file():
        return []
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RatchetError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or set(content) - {"waivers"} or not isinstance(content.get("waivers") or [], list):
        raise RatchetError(f"{path}: expected `waivers:` with a list of `{{check, reason}}`")
    return [_waiver(waiver, path) for waiver in content.get("waivers") or []]


def _waiver(waiver: Any, where: Path) -> dict[str, str]:
    if not isinstance(waiver, dict) or set(waiver) != {"check", "reason"}:
        raise RatchetError(f"{where}: a waiver has exactly `check` and `reason`, found {waiver!r}")
    if not isinstance(waiver["check"], str) or waiver["check"] not in known_names():
        raise RatchetError(f"{where}: no check {waiver['check']!r}; did you mean {nearest(str(waiver['check']), known_names())!r}?")
    if not isinstance(waiver["reason"], str) or not waiver["reason"].strip():
        raise RatchetError(f"{where}: the waiver of {waiver['check']} needs a reason, in words")
    return {"check": waiver["check"], "reason": " ".join(waiver["reason"].split())}


def add_waiver(path: Path, check: str, reason: str) -> None:
    """Writes a waiver into the file, in place of an earlier one of the same check."""
    added = _waiver({"check": check, "reason": reason}, path)
    waivers = [waiver for waiver in read_waivers(path) if waiver["check"] != check] + [added]
    content = {"waivers": sorted(waivers, key=lambda waiver: waiver["check"])}
    write_bytes(path, yaml.safe_dump(content, sort_keys=True, allow_unicode=True).encode())
