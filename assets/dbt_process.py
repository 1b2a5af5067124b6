"""dbt in a process that does not outlive the night: `python -m assets.dbt_process build ...`.

What lives here: ending dbt where the process that reads its output is gone. What does not: which dbt command is run
(`features.py`). A night that is killed would otherwise leave dbt behind, writing the warehouse and keeping it shut for the next.
"""

import os
import select
import signal
import sys
from threading import Thread


def _end_without_reader() -> None:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are reported whatever is asked for; a pipe without a reader is one
    output.poll()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Thread(target=_end_without_reader, daemon=True).start()
    # after the thread has begun: importing dbt takes seconds
    from dbt.cli.main import cli

    cli()
