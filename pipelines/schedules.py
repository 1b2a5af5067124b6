"""The clock: when a night starts by itself.

What lives here: schedules. What does not: the job (`jobs.py`).
"""

from collections.abc import Sequence

import dagster as dg

from pipelines.jobs import NIGHTLY_JOB
from pipelines.settings import Source

# After the logs of the evening have arrived; the cut is 00:00 UTC of the same day.
_EVERY_NIGHT = "15 1 * * *"


def night_config(as_of: str, sources: Sequence[Source], overlay: str = "") -> dict[str, object]:
    """Give the run configuration of a night: `as_of` is YYYY-MM-DD, or empty for the UTC day of the newest known attempt."""
    return {
        "resources": {
            "night": {"config": {"as_of": as_of, "sources": [str(source) for source in sources]}},
            "params": {"config": {"overlay": overlay}},
        }
    }


def build_nightly_schedule(sources: Sequence[Source]) -> dg.ScheduleDefinition:
    """Make the schedule of the nightly job.

    It runs by default only where LEAP_SOURCES names something to read: a home that is fed by hand (a demo, a replay of old
    logs) would otherwise get a night a day that finds nothing new and ranks nothing. The Dagster UI can switch it either way.
    """

    def config(context: dg.ScheduleEvaluationContext) -> dict[str, object]:
        # by the clock and not by the newest attempt: logs that arrive late must not turn a night into the one before
        return night_config(context.scheduled_execution_time.date().isoformat(), sources)

    return dg.ScheduleDefinition(
        name="nightly_schedule",
        job=NIGHTLY_JOB,
        cron_schedule=_EVERY_NIGHT,
        execution_timezone="UTC",
        run_config_fn=config,
        default_status=dg.DefaultScheduleStatus.RUNNING if sources else dg.DefaultScheduleStatus.STOPPED,
        description="Starts the night of the same UTC day at 01:15, on "
        + (", ".join(map(str, sources)) if sources else "nothing new: LEAP_SOURCES names no logs, so it is off."),
    )
