"""Models that a package brings as GGUF become plain folders: the same bytes each time, trained and played like any other."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.episodes.template import load_template
from ratchet.errors import RatchetError
from ratchet.files import read_json
from ratchet.models.build import COMPANIONS, load_model, save_model, version_of
from ratchet.models.pretrained import base_folder, is_package, note_origin, package_gguf
from tests.episodes import chat_templates as chat
from tests.models import tiny

HAS_GGUF = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="the package gguf is not installed")


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A two-layer Llama with tied embeddings and a byte-level tokenizer, as llama.cpp stores one."""
    import gguf

    tokenizer = load_template(tiny.chat_folder(chat.SMOLLM2)).tokenizer
    vocab = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = [" ".join(pair) for pair in json.loads(tokenizer._tokenizer.to_str())["model"]["merges"]]
    special = {name: vocab.index(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    for add, value in ((writer.add_context_length, 256), (writer.add_embedding_length, 32), (writer.add_block_count, 2),
                       (writer.add_feed_forward_length, 48), (writer.add_head_count, 4), (writer.add_head_count_kv, 2),
                       (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 10000.0), (writer.add_vocab_size, len(vocab))):
        add(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocab)
    writer.add_token_types([3 if name in special else 1 for name in vocab])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(special["<|im_start|>"])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|im_end|>"])
    writer.add_chat_template(chat.SMOLLM2)
    rng = np.random.default_rng(1)
    shapes: dict[str, Any] = {"token_embd.weight": (len(vocab), 32), "output_norm.weight": (32,)}
    for n in range(2):
        shapes |= {f"blk.{n}.attn_q.weight": (32, 32), f"blk.{n}.attn_k.weight": (16, 32), f"blk.{n}.attn_v.weight": (16, 32),
                   f"blk.{n}.attn_output.weight": (32, 32), f"blk.{n}.ffn_gate.weight": (48, 32), f"blk.{n}.ffn_up.weight": (48, 32),
                   f"blk.{n}.ffn_down.weight": (32, 48), f"blk.{n}.attn_norm.weight": (32,), f"blk.{n}.ffn_norm.weight": (32,)}
    tensors = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `tiny-gguf` without any file yet."""
    folder = tmp_path / "site" / "tiny_gguf"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('never imported')\n")
    info = tmp_path / "site" / "tiny_gguf-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.2\nLicense: Apache-2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


@HAS_GGUF
def test_a_package_becomes_a_folder_with_tokenizer_template_and_origin_the_same_bytes_each_time(package: Path, tmp_path: Path) -> None:
    tensors = write_gguf(package / "Tiny-Instruct.gguf")
    folders = [base_folder("package:tiny-gguf", tmp_path / name) for name in ("a", "b")]
    for file in folders[0].iterdir():
        assert file.read_bytes() == (folders[1] / file.name).read_bytes()
    assert read_json(folders[0] / "base.json") == {"name": "Tiny-Instruct", "source": "tiny-gguf 1.2", "license": "Apache-2.0"}
    model = load_model(folders[0])
    assert {p.dtype for p in model.parameters()} == {torch.float32} and model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.model.embed_tokens.weight, torch.from_numpy(tensors["token_embd.weight"]))
    template = load_template(folders[0], "tagged")
    names = template.tokenizer.convert_ids_to_tokens([template.end, template.pad])
    assert names == ["<|im_end|>", "<|endoftext|>"] and template.end not in (template.pad, model.config.pad_token_id)
    assert template.pieces.act == "<|im_end|>\n<|im_start|>assistant\n"
    assert "tiny_gguf" not in sys.modules


@HAS_GGUF
def test_it_is_converted_once_and_what_belongs_to_it_stays_with_every_version_made_of_it(package: Path, tmp_path: Path) -> None:
    write_gguf(package / "Tiny-Instruct.gguf")
    base = base_folder("package:tiny-gguf", tmp_path / "base")
    made = (base / "model.safetensors").stat().st_mtime_ns
    assert base_folder("package:tiny-gguf", tmp_path / "base") == base and (base / "model.safetensors").stat().st_mtime_ns == made
    (base / "base.json").unlink()  # killed before it was whole
    base_folder("package:tiny-gguf", tmp_path / "base")
    assert (base / "model.safetensors").stat().st_mtime_ns != made
    save_model(load_model(base), base, tmp_path / "version", {})
    for name in COMPANIONS:
        assert (tmp_path / "version" / name).is_file() == (base / name).is_file()
    assert (tmp_path / "version" / "base.json").is_file() and (tmp_path / "version" / "chat_template.jinja").is_file()
    assert version_of(tmp_path / "version") == version_of(base)
    assert load_template(tmp_path / "version").pieces == load_template(base).pieces


@pytest.mark.parametrize("path", ["package:not-installed-here", "package:", "package:os.path", "package:../x", "package:json"])
def test_a_package_that_is_not_there_or_holds_no_model_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(RatchetError, match="^" + path.replace(".", r"\.")) as caught:
        package_gguf(path)
    assert "\n" not in str(caught.value)
    assert is_package(path) and not is_package("models/base")


@HAS_GGUF
def test_a_damaged_file_and_two_files_are_refused(package: Path, tmp_path: Path) -> None:
    (package / "one.gguf").write_bytes(b"GGUF nonsense")
    with pytest.raises(RatchetError, match=r"one\.gguf: cannot be converted") as caught:
        base_folder("package:tiny-gguf", tmp_path / "base")
    assert "\n" not in str(caught.value)
    (package / "two.gguf").write_bytes(b"GGUF")
    with pytest.raises(RatchetError, match="2 \\*.gguf files"):
        base_folder("package:tiny-gguf", tmp_path / "base")


def test_a_version_says_which_folder_it_was_made_from_and_under_which_licence(tmp_path: Path) -> None:
    base, version = tmp_path / "My-Base", tmp_path / "version"
    for folder in (base, version):
        folder.mkdir()
    note_origin(str(base), version)
    assert read_json(version / "base.json") == {"name": "My-Base", "source": "a local folder", "license": "unknown"}
    note_origin(str(tmp_path), version)  # what is known stays
    assert read_json(version / "base.json")["name"] == "My-Base"
    (version / "base.json").unlink()
    (base / "README.md").write_text("---\nlibrary_name: transformers\nlicense: mit\n---\nlicense: no\n")
    note_origin(str(base), version)
    assert read_json(version / "base.json")["license"] == "mit"


def test_a_folder_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    assert base_folder(str(tmp_path), tmp_path / "cache") == tmp_path and not (tmp_path / "cache").exists()
