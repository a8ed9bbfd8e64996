"""Environment that Prefect and DVC get from us: no telemetry, enough time to start, nothing on the terminal but errors."""

import os

# Prefect's temporary API takes up to 17 s on a cold disk, against a limit of 20.
PREFECT = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal is ours (flows/view.py); the API still gets all
    "PREFECT_CLI_COLORS": "false",
    "DO_NOT_TRACK": "1",
}
STAGE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads sleep, so that they leave the cores to environments and players,
    "GOMP_SPINCOUNT": "3000",  # but not between one product and the next: updates of a small model run a third faster
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",  # progress lines come when they are written
}


def prepare_prefect() -> None:
    """Sets what the user has not set; to be called before Prefect is imported."""
    for name, value in PREFECT.items():
        os.environ.setdefault(name, value)
