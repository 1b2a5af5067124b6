"""What Dagster's daemon watches.

What lives here: sensors. What does not: how a dead run is told from a living one (`assets/runs.py`), which files are new
(`leap/store/landing.py`).
"""

import hashlib
from collections.abc import Sequence
from time import time

import dagster as dg

from assets.runs import clear_dead_runs
from leap.store.landing import from_text, look, to_text
from pipelines.jobs import INGEST_JOB
from pipelines.schedules import night_config
from pipelines.settings import Source


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs failed whose process is gone, so that they do not keep the queue shut for the next night.",
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Clear dead runs; start none."""
    cleared = clear_dead_runs(context.instance)
    return dg.SkipReason(f"marked failed: {', '.join(cleared)}" if cleared else "every run under way has a living process")


def build_landing_sensor(sources: Sequence[Source]) -> dg.SensorDefinition:
    """Make the sensor that reads logs soon after they land in a folder of LEAP_SOURCES, each content once.

    So a record's arrival is known to minutes and not to nights; the night reads the folders too and finds duplicates. What the
    sensor has seen is in its cursor; resetting it in the UI reads everything again, which changes nothing.
    """

    @dg.sensor(
        name="landed_logs",
        job=INGEST_JOB,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING if sources else dg.DefaultSensorStatus.STOPPED,
        description="Reads new log files of LEAP_SOURCES into the raw tables, each content once.",
    )
    def landed_logs(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        before, contents = from_text(context.cursor)
        new, remembered = look(sources, before, contents, time())
        cursor = to_text(remembered, contents | {landed.content for landed in new})
        if not new:
            return dg.SensorResult(skip_reason=f"nothing new in {', '.join(map(str, sources)) or 'no source'}", cursor=cursor)
        key = hashlib.sha256("".join(sorted(landed.content for landed in new)).encode()).hexdigest()
        files = [Source(landed.kind, landed.path) for landed in new]
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=key, run_config=night_config("", files))], cursor=cursor)

    return landed_logs
