"""Addresses of the page that `ratchet serve` shows: a browser with Prefect's UI follows no `file:` links."""

URL_VARIABLE = "RATCHET_REPORTS_URL"  # where flow runs learn from which address the page opens


def run_url(base: str, run_id: str) -> str:
    """Of a run, also while it is on."""
    return f"{base}/runs/{run_id}"


def report_url(base: str, run_id: str) -> str:
    """Of a run's report, once it is written."""
    return f"{base}/runs/{run_id}/report.html"


def monitor_url(base: str, look: str) -> str:
    """Of what the monitor wrote in one look."""
    return f"{base}/monitor/{look}/report.html"
