"""Keys of served models out of Prefect's Secret blocks. A stage gets them by its environment; they are never written or logged."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.quiet import prepare_prefect
from ratchet.errors import RatchetError
from ratchet.policies.served_settings import Served, secret_variable
from ratchet.settings import load

STAGES = ("harvest",)  # those that ask served models


def keys_for(workspace: Path, stage: str) -> dict[str, str]:
    """Environment variables for one run of `stage` (`harvest@1`); read anew each time, so a renewed key is found by a resumed run."""
    if stage.partition("@")[0] not in STAGES:
        return {}
    settings = load(workspace / "params.yaml")
    return secrets({member.policy: settings.served[member.policy] for member in settings.harvest.pool if member.policy in settings.served})


def secrets(served: dict[str, Served]) -> dict[str, str]:
    """{variable: key} of those that name a Secret block. Raises RatchetError where Prefect has no such block, or it holds no text."""
    return {secret_variable(one.key_secret): _secret(name, one.key_secret) for name, one in served.items() if one.key_secret is not None}


@contextmanager
def in_environment(served: dict[str, Served]) -> Iterator[None]:
    """The keys of `served` in this process's environment, for as long as the `with` lasts."""
    found = secrets(served)
    os.environ.update(found)
    try:
        yield
    finally:
        for variable in found:
            os.environ.pop(variable, None)


def _secret(name: str, block: str) -> str:
    prepare_prefect()
    from prefect.blocks.system import Secret

    try:
        value = Secret.load(block).get()
    except ValueError:  # there is none, or it cannot be read any more
        raise RatchetError(
            f"served.{name}.key_secret: Prefect has no Secret block {block}; make one in its UI (Blocks, Secret), or name a variable "
            f"with served.{name}.key_env"
        ) from None
    if not isinstance(value, str) or not value.strip():
        raise RatchetError(f"served.{name}.key_secret: the Secret block {block} holds no text; put the key there as it is")
    return value
