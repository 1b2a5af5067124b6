"""What Dagster's daemon watches.

What lives here: sensors. What does not: how a dead run is told from a living one (`assets/runs.py`).
"""

import dagster as dg

from assets.runs import clear_dead_runs


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs failed whose process is gone, so that they do not keep the queue shut for the next night.",
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Clear dead runs; start none."""
    cleared = clear_dead_runs(context.instance)
    return dg.SkipReason(f"marked failed: {', '.join(cleared)}" if cleared else "every run under way has a living process")
