"""An actor of the pool by imitation of the demonstrations that solved their task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.files import read_table
from ratchet.episodes.template import Template, load_template
from ratchet.errors import RatchetError
from ratchet.learners.batches import Sequence, sequences_of, silence
from ratchet.models.pretrained import base_folder, note_origin
from ratchet.policies.scripted import slips_of
from ratchet.settings import Pretrained, Settings, params_hash
from tasks.common import Progress, Stage, main, say, tensorboard

HELD_OUT = 128  # demonstrations that train nothing, for the held-out loss


def run(stage: Stage) -> None:
    """Writes models/warm/ACTOR."""
    assert stage.key is not None
    settings, actor = stage.settings, stage.settings.actors[stage.key]
    if settings.start != "scratch" and stage.key == settings.actor:
        return _continue_from(stage, settings.start)
    source = base_folder(actor.path, stage.scratch / "base") if isinstance(actor, Pretrained) else stage.path("models/tokenizer")
    template = load_template(source, settings.env.action_format)
    model = model_of(settings, stage.key, source, template)
    sequences = demonstrations(stage.path("data/demonstrations"), template, settings.env.max_tokens)
    say(f"{stage.title}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(sequences)} demonstrations")
    model, metrics = _train(stage, model, template, sequences)
    _save(stage, model, source, metrics, parents=[])


def model_of(settings: Settings, name: str, source: Path, template: Template) -> Any:
    """The actor `name` before it is trained: from scratch, or the pretrained one that lies in `source`."""
    from ratchet.models.build import from_scratch, load_model

    actor = settings.actors[name]
    if isinstance(actor, Pretrained):
        return load_model(source)
    return from_scratch(
        layers=actor.layers,
        width=actor.width,
        heads=actor.heads,
        kv_heads=actor.kv_heads,
        mlp=actor.mlp,
        vocab=len(template.tokenizer),
        context=settings.env.max_tokens,
        seed=settings.seed,
        begin=template.tokenizer.bos_token_id,
        end=template.end,
        pad=template.pad,
    )


def demonstrations(folder: Path, template: Template, max_tokens: int) -> list[Sequence]:
    """Solved demonstrations as sequences in the template's tokens, those that fit into an episode's budget.

    Raises RatchetError where none does.
    """
    episodes = read_table(folder / "episodes.parquet", "episodes", ["episode_id", "solved"])
    good = episodes.filter(episodes["solved"])["episode_id"].combine_chunks()
    steps = read_table(folder / "steps.parquet", "steps")
    steps = steps.filter(pc.is_in(steps["episode_id"], value_set=good))
    prompts = template.observations_ids(steps["observation"].to_pylist(), [t == 0 for t in steps["t"].to_pylist()])
    replies = template.replies_ids(steps["reply"].to_pylist())
    for name, values in (("prompt_ids", prompts), ("reply_ids", replies)):
        steps = steps.set_column(steps.schema.get_field_index(name), name, pa.array(values, pa.list_(pa.int32())))
    sequences = [one for one in sequences_of(steps) if len(one.ids) <= max_tokens]
    slips = slips_of(steps)
    for one in sequences:
        silence(one, slips.get(one.episode_id, ()))
    if not sequences:
        raise RatchetError(f"{folder}: no solved demonstration fits into env.max_tokens={max_tokens}; raise it")
    return sequences


def _train(stage: Stage, model: Any, template: Template, sequences: list[Sequence]) -> tuple[Any, dict[str, Any]]:
    from ratchet.learners.imitation import ImitationSettings, imitate

    assert stage.key is not None
    warm, actor = stage.settings.warm_start, stage.settings.actors[stage.key]
    settings = ImitationSettings(
        tokens=actor.tokens,
        batch_tokens=warm.batch_tokens,
        lr=warm.lr,
        optimizer=warm.optimizer,
        observation_weight=warm.observation_weight,
        warmup_share=warm.warmup_share,
        floor=warm.floor,
        max_grad_norm=warm.max_grad_norm,
        seed=stage.settings.seed,
        autocast=stage.settings.learner.autocast,
        max_grad_norm_ratio=stage.settings.learner.max_grad_norm_ratio,
        max_skipped_share=stage.settings.learner.max_skipped_share,
    )
    held_out = sequences[: min(HELD_OUT, len(sequences) // 10)]
    train = sequences[len(held_out) :]
    bar = Progress(stage.title, actor.tokens, "tokens", first=None)
    with tensorboard(stage) as log:

        def progress(done: int, total: int, point: dict[str, Any]) -> None:
            bar(min(done, total), f"loss {point['loss']:.3f}")
            for name, value in point.items():
                if value is not None and name != "tokens":
                    log(name, value, done)

        if warm.trainer == "trl":
            from ratchet.learners.trl_imitation import imitate_with_trl

            model, result = imitate_with_trl(model, template, train, held_out, settings, scratch=stage.scratch, progress=progress)
        else:
            model, result = imitate(model, train, held_out, settings, scratch=stage.scratch, progress=progress)
    return model, {"trainer": warm.trainer, **vars(result)}


def _save(stage: Stage, model: Any, source: Path, metrics: dict[str, Any], parents: list[str]) -> None:
    from ratchet.models.build import save_model

    card = {
        "stage": "warm_start",
        "actor": stage.key,
        "line": stage.settings.line,
        "round": 0,
        "iteration": 0,
        "parents": parents,
        "action_format": stage.settings.env.action_format,
        "params_hash": params_hash(stage.settings),
    }
    version = save_model(model, source, stage.out(f"models/warm/{stage.key}"), card)
    actor = stage.settings.actors[stage.key or ""]
    if isinstance(actor, Pretrained):
        note_origin(actor.path, stage.out(f"models/warm/{stage.key}"))
    parameters = sum(p.numel() for p in model.parameters())
    stage.metrics({"version": version, "parameters": parameters, **metrics})
    say(f"{stage.title}: version {version}, held-out loss {metrics['held_out_loss']}")
    stage.finish()


def _continue_from(stage: Stage, start: str) -> None:
    """`start` names a version: its weights, laid into models/start when the workspace was made, take the place of training."""
    import shutil

    from ratchet.models.build import card_of, version_of

    folder = stage.path("models/start")
    if not (folder / "config.json").is_file():
        raise RatchetError(f"start: {start}: no weights in models/start; begin with `ratchet run`, which lays them there")
    if start != "champion" and version_of(folder) != start:
        raise RatchetError(f"start: {start}: models/start holds version {version_of(folder)}; begin a new run with `ratchet run`")
    shutil.copytree(folder, stage.out(f"models/warm/{stage.key}"), dirs_exist_ok=True)
    stage.metrics({"version": card_of(folder)["version"], "skipped": f"starts from version {start}"})
    stage.finish()


if __name__ == "__main__":
    main("warm_start", run, key="actor")
