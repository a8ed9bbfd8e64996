"""Checkpoints of long work: safetensors and JSON, no pickle; a resumed run goes on with the same bytes.

`manifest.json`, written last, holds the checksum of every file and whose checkpoint it is. A damaged one is put aside, and the work
starts anew; one of another configuration is refused, because somebody put it there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratchet.errors import RatchetError
from ratchet.files import checksums, difference, flush, flush_tree, put_aside, read_json, write_json

MANIFEST = "manifest.json"


def save_checkpoint(
    folder: Path,
    model: Any,
    optimizers: list[Any],
    progress: dict[str, Any],
    average: dict[str, Tensor] | None = None,
    configuration: str | None = None,
) -> None:
    """Writes weights, optimiser states, `progress` (data position, counters, curve) and an `average` of weights into `folder`, whole
    or not at all: where writing fails, the checkpoint before stays.

    `configuration` names what the work depends on; `load_checkpoint` refuses another one.
    """
    for left in folder.parent.glob(f".{folder.name}.*.part"):  # of a process that was killed
        shutil.rmtree(left)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        _write(part, model, optimizers, progress, average)
        write_json(part / MANIFEST, {"configuration": configuration, "files": checksums(part)})
        flush_tree(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write(part: Path, model: Any, optimizers: list[Any], progress: dict[str, Any], average: dict[str, Tensor] | None) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}, str(part / "model.safetensors"))
    for index, optimizer in enumerate(optimizers):
        tensors, values = _flatten(optimizer.state_dict()["state"])
        save_file(tensors, str(part / f"optimizer-{index}.safetensors"))
        write_json(part / f"optimizer-{index}.json", values)
    if average is not None:
        save_file({name: tensor.cpu().contiguous() for name, tensor in average.items()}, str(part / "average.safetensors"))
    write_json(part / "progress.json", progress)


def load_checkpoint(
    folder: Path, model: Any, optimizers: list[Any], average: dict[str, Tensor] | None = None, configuration: str | None = None
) -> dict[str, Any] | None:
    """Restores what `save_checkpoint` wrote (`average` in place) and returns its progress; None where there is none, or a damaged one,
    which is put aside and said. Raises RatchetError for a checkpoint of another configuration or of another model."""
    manifest = _sound(folder)
    if manifest is None:
        return None
    if manifest["configuration"] != configuration:
        raise RatchetError(
            f"{folder}: a checkpoint of another configuration ({manifest['configuration']}, this one is {configuration}); "
            "move it away to start this stage anew"
        )
    return _restore(folder, model, optimizers, average)


def read_progress(folder: Path) -> dict[str, Any] | None:
    """The progress that `load_checkpoint` would return, and nothing restored."""
    return None if _sound(folder) is None else read_json(folder / "progress.json")


def drop_checkpoint(folder: Path, why: str) -> None:
    """Puts a checkpoint aside that cannot be gone on from; `why` ends the line that says so."""
    put_aside([folder], why)


def _sound(folder: Path) -> dict[str, Any] | None:
    """The manifest of an undamaged checkpoint. One that a kill left between two renames is put back first."""
    old = folder.with_name(f".{folder.name}.old")
    if not folder.exists() and old.exists():
        os.replace(old, folder)
    if not folder.exists():
        return None
    try:
        manifest = read_json(folder / MANIFEST)
        wrong = difference(folder, manifest["files"])
    except (RatchetError, KeyError, TypeError):
        manifest, wrong = None, f"{MANIFEST} cannot be read"
    if wrong is not None:
        drop_checkpoint(folder, f"{wrong}; what it held is learned again")
        return None
    return manifest


def _restore(folder: Path, model: Any, optimizers: list[Any], average: dict[str, Tensor] | None) -> dict[str, Any]:
    from safetensors.torch import load_file

    state = load_file(str(folder / "model.safetensors"))
    own = model.state_dict()
    if {name: tensor.shape for name, tensor in state.items()} != {name: tensor.shape for name, tensor in own.items()}:
        raise RatchetError(f"{folder}: a checkpoint of another model; move it away to start this stage anew")
    model.load_state_dict(state)
    for index, optimizer in enumerate(optimizers):
        tensors = load_file(str(folder / f"optimizer-{index}.safetensors"))
        values = read_json(folder / f"optimizer-{index}.json")
        full = optimizer.state_dict()
        full["state"] = _unflatten(tensors, values)
        optimizer.load_state_dict(full)
    if average is not None:
        for name, tensor in load_file(str(folder / "average.safetensors")).items():
            average[name].copy_(tensor)
    return read_json(folder / "progress.json")


def _flatten(state: dict[int, dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for index, entries in state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous().clone()
            else:
                values[f"{index}.{name}"] = value
    return tensors, values


def _unflatten(tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *values.items()]:
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state


def rng_seed(*parts: int) -> int:
    """One seed out of several (base-stable; no global state)."""
    mixed = 0
    for part in parts:
        mixed = (mixed * 1_000_003 + part + 0x9E3779B9) % (1 << 63)
    return mixed


def seeded(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(rng_seed(*parts))
