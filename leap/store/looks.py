"""Every look at the nights that are kept for the final score, noted in a document that people read.

What lives here: appending a look to docs/experiments.md. What does not: the score (`leap.evaluation`).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from leap.evaluation.backtest import BacktestResult
from leap.store.files import write_atomic

_HEADING = "## Looks at the final nights"
_TABLE = (
    "Each row is one look by `leap backtest --final`. A model chosen after a look has no honest score on those nights.\n\n"
    "| look | at | code | dataset | nights | attempts (jobs) | within 10%: LEAP (95% interval), table, paired difference "
    "| within 20% | without exact history | answered | p10 to p90 holds |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


class LooksError(OSError):
    """The look could not be noted; the message names the file and what to do."""


def record_look(document: Path, result: BacktestResult, dataset_id: str, code: str, at: datetime) -> int:
    """Append what was seen to `document`, and return how many looks it now holds. Raises LooksError."""
    try:
        text = document.read_text(encoding="utf-8") if document.exists() else "# Experiments\n"
        if _HEADING not in text:
            text = f"{text.rstrip()}\n\n{_HEADING}\n\n{_TABLE}"
        before, after = text.split(_HEADING, 1)
        lines = after.splitlines()
        first = next(index for index, line in enumerate(lines) if line.startswith("|"))
        last = next((index for index in range(first, len(lines)) if not lines[index].startswith("|")), len(lines))
        look = last - first - 1  # the rows so far, less heading and rule, and one more
        lines.insert(last, _row(look, result, dataset_id, code, at))
        document.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(document, (before + _HEADING + "\n".join(lines) + "\n").encode())
    except OSError as error:
        raise LooksError(
            f"the look could not be noted in {document}: {error.strerror}; make it writable and add the figures by hand"
        ) from error
    return look


def _row(look: int, result: BacktestResult, dataset_id: str, code: str, at: datetime) -> str:
    leap, table = result.scorecards["leap"], result.scorecards["lookup"]
    low, high = leap.interval_within_10
    paired = result.over_lookup["leap"]
    new = {part.predictor: part for part in result.slices if (part.axis, part.value) == ("exact history", "no")}
    unseen = f"{new['leap'].within_10:.1%} (n = {new['leap'].n}), table {new['lookup'].within_10:.1%}" if new else "none"
    cells = (
        str(look),
        f"{at:%Y-%m-%d %H:%M}",
        code,
        dataset_id,
        f"{result.nights[0]} to {result.nights[-1]}",
        f"{leap.n} ({leap.jobs})",
        f"{leap.within_10:.1%} ({low:.1%} to {high:.1%}), {table.within_10:.1%}, "
        f"{paired.value:+.1%} ({paired.low:+.1%} to {paired.high:+.1%})",
        f"{leap.within_20:.1%}, table {table.within_20:.1%}",
        unseen,
        f"{leap.answered:.1%}",
        f"{leap.coverage:.1%}",
    )
    return f"| {' | '.join(cells)} |"
