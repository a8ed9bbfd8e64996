"""A version as a plain Hugging Face folder, with a model card that holds the evidence.

The folder needs nothing of Ratchet: standard architecture and attention, safetensors, a tokenizer whose chat template renders
exactly the sequence the version was trained on, stop tokens in generation_config.json. That is checked before it is handed out.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.episodes.formats import FORMATS
from ratchet.episodes.template import Template, load_template
from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.models.build import card_of, version_of

Card = dict[str, Any]  # a version card of the registry (ratchet/store/cards.py)
PROBE = (("You are in a room.\n\nOn the table is a cup 1.", "take cup 1"), (" 100 °C; naïve", "go north"), ("\nNothing happens.", "look around"))
LICENCE = "the licence of the base model applies to these weights; add your own terms for what you publish"


def export(version_folder: Path, target: Path, evidence: Card, lineage: Sequence[Card] = ()) -> Path:
    """Writes the model folder `version_folder` as `target`, which must not exist or be empty, and returns it.

    `evidence` is the version's card (`read_card`), `lineage` the cards of its ancestors, nearest first, as far as there are any.
    The same version and cards give the same bytes. Raises RatchetError where the version is not whole, the target is taken, or
    the tokenizer, reading a whole conversation, would not give the tokens that the version was trained on.
    """
    from ratchet.models.build import load_model

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RatchetError(f"{target}: is there and not empty; give another folder, or remove it")
    own = card_of(version_folder)
    if own["version"] != version_of(version_folder):
        raise RatchetError(f"{version_folder}: its files are not those of version {own['version']}; restore them (`dvc checkout`)")
    template = load_template(version_folder, own.get("action_format", "plain"))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        _write(load_model(version_folder), template, part)
        check_rendering(part, template)
        base = version_folder / "base.json"
        text = model_card(evidence, lineage, template, read_json(base) if base.is_file() else None)
        (part / "README.md").write_text(text, encoding="utf-8")
        if target.exists():
            target.rmdir()
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _write(model: Any, template: Template, folder: Path) -> None:
    from safetensors.torch import save_file

    from ratchet.models.build import WEIGHTS, stored_tensors

    folder.mkdir(parents=True)
    save_file(stored_tensors(model), str(folder / WEIGHTS), metadata={"format": "pt"})
    config = model.config
    config.architectures = [type(model).__name__]
    stops = list(template.ends) if len(template.ends) > 1 else template.end
    config.eos_token_id, config.pad_token_id = stops, template.pad
    config.save_pretrained(str(folder))
    write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": stops, "pad_token_id": template.pad})
    tokenizer = template.tokenizer
    tokenizer.chat_template = chat_template_of(template)
    tokenizer.save_pretrained(str(folder))
    settings = read_json(folder / "tokenizer_config.json")
    for name in ("local_files_only", "is_local"):  # of the machine it was loaded on
        settings.pop(name, None)
    write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "PreTrainedTokenizerFast"})  # known to older transformers too


def chat_template_of(template: Template) -> str:
    """A Jinja chat template that renders user and assistant messages as `template` does, observations being the user's.

    Where the pieces hold an instruction, it is the default system message; without one a system message is refused.
    """
    pieces, instruction = template.pieces, template.format.instruction
    before, found, after = pieces.head.partition(instruction)
    if found:
        head = f"{_text(before)} + instruction + {_text(after)}"
        opening = (
            f"{{%- if messages[0].role == 'system' -%}}{{%- set instruction = messages[0].content -%}}{{%- set turns = messages[1:] -%}}"
            f"{{%- else -%}}{{%- set instruction = {_text(instruction)} -%}}{{%- set turns = messages -%}}{{%- endif -%}}\n"
        )
    else:
        head, opening = _text(pieces.head), "{%- set turns = messages -%}\n"
    return (
        f"{opening}{{%- for message in turns -%}}\n"
        f"{{%- if message.role == 'user' -%}}{{{{- ({head}) if loop.first else {_text(pieces.mid)} -}}}}{{{{- message.content -}}}}\n"
        f"{{%- if not loop.last or add_generation_prompt -%}}{{{{- {_text(pieces.act)} -}}}}{{%- endif -%}}\n"
        f"{{%- elif message.role == 'assistant' -%}}{{{{- message.content + {_text(pieces.end)} -}}}}\n"
        "{%- else -%}{{- raise_exception('this model reads user and assistant messages in turn') -}}{%- endif -%}\n"
        "{%- endfor -%}"
    )


def _text(value: str) -> str:
    """A Jinja string; Jinja reads the escapes that JSON writes."""
    return json.dumps(value, ensure_ascii=False)


def check_rendering(folder: Path, template: Template) -> None:
    """Raises RatchetError unless the exported tokenizer, as plain transformers loads it, reads conversations as `template` does."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    messages: list[dict[str, str]] = []
    expected: list[int] = []
    for number, (observation, action) in enumerate(PROBE):
        messages.append({"role": "user", "content": observation})
        expected += template.observation_ids(observation, first=number == 0)
        found = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        if list(found) != expected:
            raise RatchetError(
                f"{folder.name}: the tokenizer reads turn {number + 1} of a whole conversation as other tokens than turn by turn, so a plain "
                "folder would not play as the version does; export a version with a byte-level tokenizer"
            )
        reply = template.format.reply("I need it.", action)
        messages.append({"role": "assistant", "content": reply})
        expected += template.replies_ids([reply])[0]


def model_card(evidence: Card, lineage: Sequence[Card], template: Template, base: dict[str, str] | None) -> str:
    """README.md: YAML front matter, what it is, evidence, lineage, how to use it, licence."""
    version = evidence["version"]
    licence = (base or {}).get("license", "other").lower()
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation", f"license: {licence}", "tags: [ratchet, language-agent]", "---"]
    origin = f"fine-tuned from {base['name']} ({base['source']})" if base else "trained from scratch"
    lines = [
        *front,
        "",
        f"# {evidence.get('line')} {version}",
        "",
        f"A language agent, {origin}, of the line `{evidence.get('line')}`: round {evidence.get('round')}, stage `{evidence.get('stage')}`. "
        f"It acts in a text environment turn by turn and writes its actions in the format `{template.format.name}`.",
        "",
        "## Evidence",
        "",
        *_evidence(evidence),
        "",
        "## Lineage",
        "",
        *[f"- `{one['version']}` (round {one.get('round')}, {one.get('stage')})" for one in (evidence, *lineage)],
        *[f"- {name}: `{digest}`" for name, digest in sorted(evidence.get("hashes", {}).items())],
        "",
        "## Use",
        "",
        *_usage(template),
        "",
        "## Licence",
        "",
        f"{base['name']}: {base['license']}; {LICENCE}." if base else "Trained from scratch; whoever publishes it says under which terms.",
    ]
    return "\n".join(lines) + "\n"


def _evidence(card: Card) -> list[str]:
    rows = [one for one in card.get("evaluations", []) if one.get("summary")]
    if not rows:
        return ["This version was not evaluated."]
    lines = ["| panel | tasks | success | 95 % interval | score | panel hash |", "|---|---|---|---|---|---|"]
    for one in rows:
        summary, success = one["summary"], one["summary"]["success"]
        score = "" if summary.get("score") is None else f"{summary['score']:.3f}"
        shown = [success["mean"], success["low"], success["high"]]
        mean, low, high = ("–" if value is None else f"{100 * value:.1f} %" for value in shown)
        lines.append(f"| {one['panel']} (round {one['round']}) | {summary['n']} | {mean} | {low} to {high} | {score} | `{one['panel_hash']}` |")
    lines += ["", "`select` chose among candidates, so success there is optimistic; `confirm` decided; `test` was played once, at the end."]
    decisions = [one for one in card.get("decisions", []) if one.get("event")]
    lines += [f"- round {one.get('round')}: {one['event']}; {'; '.join(one.get('reasons') or [])}" for one in decisions]
    return lines


def _usage(template: Template) -> list[str]:
    default = template.format.instruction in template.pieces.head
    return [
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")',
        'messages = [{"role": "user", "content": FIRST_OBSERVATION}]  # then its reply as assistant, the next observation as user',
        'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)',
        "reply = model.generate(**inputs, max_new_tokens=64)[0, inputs['input_ids'].shape[1] :]",
        "```",
        "",
        "The chat template renders exactly what the version was trained on"
        + (", its instruction as the default system message." if default else "; it takes no system message."),
        f"An action is read from a reply as `{template.format.name}`, for instance:",
        "",
        "```text",
        FORMATS[template.format.name].reply("a thought", "an action"),
        "```",
    ]
