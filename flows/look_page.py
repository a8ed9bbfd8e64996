"""A look of the monitor as a page of one file."""

from typing import Any

from flows.results import comparison_rows, percent
from monitoring.drift_page import drift_page
from monitoring.pages import page, table, text


def look_page(record: dict[str, Any]) -> str:
    """HTML of monitor.json: success, what it is compared with, what drifted, what was served."""
    summary, judged, comparison = record["summary"], record["regression"], record["comparison"]
    parts = [
        f"<p>{text(record['version'])}, champion of line {text(record['line'])}: <b>{text(percent(summary['success']))}</b> of "
        f"{summary['n']} tasks of {text(record['env'])}, panel <code>{text(summary['panel_hash'][:12])}</code>.</p>"
    ]
    parts += [f"<p>{text(record['note'])}</p>"] if record["note"] else []
    if comparison is None:
        parts.append("<p>The first look on this panel: there is nothing to compare with yet.</p>")
    else:
        level = "fail" if judged["regression"] else "ok"
        parts.append(f'<h2>Against version {text(record["against"]["version"])}, looked at {text(record["against"]["at"])}</h2>')
        parts += [f'<p class="{level}">{text(reason)}</p>' for reason in judged["reasons"]]
        rows = comparison_rows(comparison)
        parts.append(table(list(rows[0]), [[text(value) for value in row.values()] for row in rows], (1, 2, 3, 4)))
    served = record["served"]
    parts.append(f"<h2>Served</h2><p>{served['episodes']} new episodes in {len(served['files'])} files.</p>")
    parts += [f'<p class="warn">{text(problem)}</p>' for problem in served["problems"]]
    inner = drift_page("Drift", record["drift"])
    parts.append("<h2>Drift</h2>" + inner[inner.index("</h1>") + len("</h1>") : inner.index("</body>")])
    return page(f"Monitor: {record['line']}", parts)
