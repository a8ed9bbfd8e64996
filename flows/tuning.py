"""`ratchet tune`: which precision an update's passes should have on this machine, measured side by side and written into the settings."""

import json as json_module
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from flows.calibration import demonstrate, untrained
from flows.commands import root, show
from flows.using import with_values
from ratchet.files import write_bytes
from ratchet.processor import cores
from ratchet.rendering import read_preset, render_run
from ratchet.settings import Settings, parse
from ratchet.store.throughput import machine
from ratchet.yaml_files import read_yaml

PRECISIONS = {"none": "fp32", "bf16": "bf16"}  # by learner.autocast
SECTIONS = ("warm_start", "evolve_online")  # both learn, with batches and optimisers of their own
UPDATES = 7  # timed in each precision
ENOUGH_S = 15.0  # of updates; three are timed in any case
BUSY = 1.5  # load a core above which a measurement says little; the updates themselves are 1
PAYS = 1.05  # bf16 has to be so many times faster, or the exact one stays


@dataclass(frozen=True)
class Tuning:
    """Tokens a second of updates: `rates` by section and autocast, `threads` by count of threads in the better precision.

    `seconds` by autocast: what a run would learn for, at these rates.
    """

    parameters: int
    rates: dict[str, dict[str, float]]
    threads: dict[int, float]
    default_threads: int
    seconds: dict[str, float]

    @property
    def best(self) -> str:
        """The autocast that pays."""
        return "bf16" if self.seconds["none"] > PAYS * self.seconds["bf16"] else "none"

    @property
    def best_threads(self) -> int:
        """The default, unless another count is clearly faster."""
        fastest = max(self.threads, key=lambda count: self.threads[count])
        return fastest if self.threads[fastest] > PAYS * self.threads[self.default_threads] else self.default_threads


def tune(preset: str | None, dry_run: bool, json: bool) -> None:
    """`ratchet tune`."""
    checkout = root()
    settings = parse(render_run(checkout, preset, []), "", checkout)
    with tempfile.TemporaryDirectory(prefix="ratchet-tune-") as scratch:
        found = measure(settings, Path(scratch), lambda text: print(f"measuring {text}", file=sys.stderr))
    file = owner(checkout, preset)
    before = settings.learner.autocast
    if not dry_run and before != found.best:
        write_autocast(file, found.best)
    if json:
        value = {"actor": settings.actor, "parameters": found.parameters, "machine": machine(), "tokens_per_s": found.rates}
        value |= {"threads_tokens_per_s": found.threads, "best_threads": found.best_threads, "autocast": found.best, "was": before}
        print(json_module.dumps(value | {"written": not dry_run and before != found.best}, indent=1))
        return
    print(f"{settings.actor}: {found.parameters:,} parameters, on {machine()}, {_threads(found.default_threads)}")
    rows = [{"updates of": name, **{PRECISIONS[key]: f"{rate:,.0f} tokens/s" for key, rate in one.items()}} for name, one in found.rates.items()]
    show(rows, ["updates of", *PRECISIONS.values()], False, "")
    factor = found.seconds["none"] / found.seconds["bf16"]
    print(f"a run's learning is {factor:.2f} times as fast in bf16 as in fp32" + ("" if factor > PAYS else f"; below {PAYS:g} fp32 stays"))
    print("; ".join(f"{_threads(count)}: {rate:,.0f} tokens/s" for count, rate in sorted(found.threads.items())))
    if found.best_threads != found.default_threads:
        print(f"more with {_threads(found.best_threads)}: `export OMP_NUM_THREADS={found.best_threads}`")
    if (load := os.getloadavg()[0]) > BUSY * cores():
        print(f"The machine was busy, under a load of {load:.1f}: measure again when nothing else runs.")
    said = f"{file.relative_to(checkout)}: learner.autocast"
    if before == found.best:
        print(f"{said} stays {before}")
    else:
        print(f"{said} would become {found.best}" if dry_run else f"{said} was {before} and is {found.best}; what learns runs again")


def measure(settings: Settings, scratch: Path, say: Any) -> Tuning:
    """Updates of the first actor, in `scratch`. Raises RatchetError where the settings cannot run here."""
    import torch

    say(f"what an expert of {settings.env.name} plays")
    demonstrate(settings, scratch)
    _, model, sequences = untrained(settings, settings.actor, scratch)
    rates = {}
    for section in SECTIONS:
        say(f"updates of {section} in {' and '.join(PRECISIONS.values())}")
        rates[section] = update_rates(settings, section, model, sequences)
    amounts = _tokens(settings, sum(len(one.ids) for one in sequences) / len(sequences))
    seconds = {key: sum(amounts[section] / rates[section][key] for section in SECTIONS) for key in PRECISIONS}
    most = max(SECTIONS, key=lambda section: amounts[section])
    best = min(seconds, key=lambda key: seconds[key])
    default = torch.get_num_threads()
    threads = {default: rates[most][best]}
    for count in sorted({1, default // 2, default * 2} - {0, default}):
        if count > cores():
            continue
        say(f"{count} threads")
        torch.set_num_threads(count)
        try:
            threads[count] = update_rates(settings, most, model, sequences, (best,))[best]
        finally:
            torch.set_num_threads(default)
    return Tuning(sum(one.numel() for one in model.parameters()), rates, threads, default, seconds)


def update_rates(
    settings: Settings, section: str, model: Any, sequences: list[Any], precisions: tuple[str, ...] = tuple(PRECISIONS)
) -> dict[str, float]:
    """Tokens a second of a whole update by autocast, from the median of several. They take turns on the same batches, so that what else
    the machine does slows all of them alike."""
    from ratchet.learners.actor import ActorLearner
    from ratchet.learners.imitation import batches
    from ratchet.losses.likelihood import Likelihood

    own = getattr(settings, section)
    learners = {
        key: ActorLearner(
            model, [Likelihood()], optimizer=own.optimizer, batch_tokens=own.batch_tokens, max_grad_norm=own.max_grad_norm, autocast=key
        )
        for key in precisions
    }
    spent: dict[str, list[float]] = {key: [] for key in precisions}  # seconds a token
    began = time.monotonic()
    for number, batch in enumerate(islice(batches(sequences, own.batch_tokens, settings.seed), 1 + UPDATES)):
        tokens = sum(len(one.ids) for one in batch)
        for key in precisions if number % 2 else reversed(precisions):
            start = time.perf_counter()
            learners[key].update(batch, own.lr * 1e-3)
            if number:  # the first update makes what the others use again
                spent[key].append((time.perf_counter() - start) / tokens)
        if number >= 3 and time.monotonic() - began > ENOUGH_S:
            break
    return {key: 1 / median(values) for key, values in spent.items()}


def owner(checkout: Path, preset: str | None) -> Path:
    """The file that a run takes learner.autocast from: a preset that gives it lies over params.yaml."""
    if preset is not None and "autocast" in (read_preset(checkout / "presets", preset).get("learner") or {}):
        return checkout / "presets" / f"{preset}.yaml"
    return checkout / "params.yaml"


def write_autocast(file: Path, value: str) -> None:
    """Changes that one value; comments and layout stay."""
    values = read_yaml(file)
    values["learner"] = {**values["learner"], "autocast": value}
    write_bytes(file, with_values(file.read_text(encoding="utf-8"), values).encode())


def _tokens(settings: Settings, length: float) -> dict[str, float]:
    """Tokens that a run learns from in each section, with episodes of `length` tokens; one at least, so that none is left out."""
    own = settings.evolve_online
    online = len(settings.rounds) * own.iterations * own.tasks * own.samples * length
    return {"warm_start": max(1, settings.actors[settings.actor].tokens), "evolve_online": online}


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"
