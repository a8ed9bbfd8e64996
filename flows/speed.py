"""How fast stages are, for people: one line, or one row of a table."""

from pathlib import Path
from typing import Any

from ratchet.clock import COUNTS, PHASES
from ratchet.store.throughput import DONE, Record, finished, record_of, shares


def speed_text(record: Record) -> str:
    """`decoding 55 % (3.2k tokens/s), environment 20 %, other 25 %; 812 MB at the peak`, the largest share first."""
    parts = []
    for name, share in sorted(shares(record).items(), key=lambda item: (item[0] == "other", -item[1])):
        rate = record.get(f"{name}_tokens_per_s")
        parts.append(f"{name} {100 * share:.0f} %" + (f" ({_short(rate)} tokens/s)" if rate else ""))
    return f"{', '.join(parts)}; {record['peak_memory_mb']:,.0f} MB at the peak"


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 12 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def measured(workspace: Path, stage: str) -> Record | None:
    """What a stage that ran to its end said of itself; None where it spent no time in a phase that the clock knows."""
    record = record_of(workspace, stage)
    return record if record is not None and record["state"] == DONE and _is_telling(record) else None


def speed_rows(workspace: Path) -> list[dict[str, Any]]:
    """One row a stage that was measured, in the order in which they ended: seconds, share of the time in percent and tokens/s by
    phase, peak memory."""
    return [_row(record) for record in sorted(finished(workspace), key=lambda one: one["measured_at"]) if _is_telling(record)]


def _row(record: Record) -> dict[str, Any]:
    share = shares(record)
    return {
        "stage": record["stage"],
        "seconds": round(record["wall_s"], 1),
        **{f"{name} %": round(100 * share.get(name, 0.0), 1) for name in (*PHASES, "other")},
        **{f"{name} tokens/s": round(record.get(f"{name}_tokens_per_s") or 0) or None for name in COUNTS},
        "peak MB": round(record["peak_memory_mb"]),
    }


def _is_telling(record: Record) -> bool:
    return any(record["seconds"].get(name) for name in PHASES)


def _short(rate: float) -> str:
    return f"{rate / 1e3:.1f}k" if rate >= 1e3 else f"{rate:.0f}"
