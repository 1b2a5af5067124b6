"""Control state: which nights ran and how they ended, and which models were promoted.

What lives here: the SQLite file `control.db`, shared by many processes, its schema and its migrations. What does not: what
decides a promotion (`leap.promotion`), and the results of a night (datasets, MLflow).

The journal is SQLite's default (`delete`), not write-ahead: a night writes a few rows, and one file that is whole after each
commit can be copied, backed up and opened by anything. Each call opens its own connection, so one `Control` may be shared by
threads and forked processes.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

# How long a call waits for another process that is writing; writers hold the file for milliseconds.
_BUSY_SECONDS = 30.0

# Statements that lead from schema version i to i + 1. Released ones are never changed: add another.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        create table runs (
            run_id text primary key,
            night text not null,
            as_of text not null,
            status text not null check (status in ('started', 'succeeded', 'failed', 'blocked', 'dead')),
            pid integer not null,
            started_at text not null,
            ended_at text,
            reason text not null,
            figures text not null,
            check ((status = 'started') = (ended_at is null))
        )
        """,
        "create index runs_by_start on runs (started_at, run_id)",
        """
        create table promotions (
            promotion_id integer primary key autoincrement,
            promoted_at text not null,
            night text not null,
            model_version text not null,
            fingerprint text not null,
            dataset_id text not null,
            code_version text not null,
            params_hash text not null,
            price_version text not null,
            snapshot_id text,
            verdict text not null,
            reason text not null
        )
        """,
        """
        create trigger promotions_no_update before update on promotions
        begin select raise(abort, 'promotions are append-only: record another promotion'); end
        """,
        """
        create trigger promotions_no_delete before delete on promotions
        begin select raise(abort, 'promotions are append-only: record another promotion'); end
        """,
        # `insert or replace` deletes without firing the trigger above.
        """
        create trigger promotions_no_replace before insert on promotions
        when exists (select 1 from promotions where promotion_id = new.promotion_id)
        begin select raise(abort, 'promotions are append-only: record another promotion'); end
        """,
    ),
    (
        """
        create table price_approvals (
            approval_id integer primary key autoincrement,
            hardware_type text not null,
            pool text not null,
            price_list text not null,
            usd_per_device_hour real not null check (usd_per_device_hour > 0),
            approved_at text not null,
            approved_by text not null check (approved_by != ''),
            reason text not null check (reason != '')
        )
        """,
        """
        create trigger price_approvals_no_update before update on price_approvals
        begin select raise(abort, 'price approvals are append-only'); end
        """,
        """
        create trigger price_approvals_no_delete before delete on price_approvals
        begin select raise(abort, 'price approvals are append-only'); end
        """,
    ),
)

CONTROL_SCHEMA_VERSION = len(_MIGRATIONS)


class ControlError(RuntimeError):
    """Control state cannot be read or does not allow what was asked; the message names file, reason and what to do."""


class RunStatus(StrEnum):
    """How a run of a night stands."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BLOCKED = "blocked"  # a gate kept the champion
    DEAD = "dead"  # its process ended without a word


@dataclass(frozen=True)
class Run:
    """A line of the run ledger. Times are UTC; `figures` are what a person would ask about the run."""

    run_id: str
    night: date
    as_of: datetime
    status: RunStatus
    pid: int
    started_at: datetime
    ended_at: datetime | None
    reason: str
    figures: dict[str, Any]


@dataclass(frozen=True)
class PriceApproval:
    """A person's word that a price is meant, however far it is from the one in force. `approved_at` is UTC."""

    hardware_type: str
    pool: str
    price_list: str
    usd_per_device_hour: float
    approved_at: datetime
    approved_by: str
    reason: str


@dataclass(frozen=True)
class Promotion:
    """A model that became champion, and all that is needed to say why and to make it again."""

    promoted_at: datetime
    night: date
    model_version: str
    fingerprint: str
    dataset_id: str
    code_version: str
    params_hash: str
    price_version: str
    snapshot_id: str | None
    verdict: Mapping[str, Any]
    reason: str


class Control:
    """The control database at `path`; made if absent, and brought up to this LEAP's schema.

    Raises ControlError where the file is no control database, or one of a newer LEAP.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._reading() as connection:
            version = self._known_version(connection)
        if version < CONTROL_SCHEMA_VERSION:
            self._migrate()

    def start_run(self, run_id: str, *, night: date, as_of: datetime, pid: int, started_at: datetime) -> None:
        """Enter a run as started. Raises ControlError if the ledger has that run."""
        values = (run_id, night.isoformat(), _text(as_of), RunStatus.STARTED.value, pid, _text(started_at))
        try:
            with self._writing() as connection:
                connection.execute("insert into runs values (?, ?, ?, ?, ?, ?, null, '', '{}')", values)
        except sqlite3.IntegrityError:
            raise ControlError(f"{self.path}: run {run_id} is in the ledger already; give each run an id of its own") from None

    def finish_run(
        self,
        run_id: str,
        *,
        status: RunStatus,
        ended_at: datetime,
        reason: str = "",
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """Enter how a started run ended. Raises ControlError if it is not in the ledger as started."""
        with self._writing() as connection:
            changed = connection.execute(
                "update runs set status = ?, ended_at = ?, reason = ?, figures = ? where run_id = ? and status = 'started'",
                (RunStatus(status).value, _text(ended_at), reason, _json(figures or {}), run_id),
            ).rowcount
            found = connection.execute("select status from runs where run_id = ?", (run_id,)).fetchone()
        if not changed:
            stands = f"stands as {found['status']}" if found else "is not in the ledger"
            raise ControlError(f"{self.path}: run {run_id} cannot end as {status}: it {stands}; only a started run ends")

    def mark_dead_runs(self, alive: Callable[[int], bool], *, ended_at: datetime) -> list[Run]:
        """Enter started runs whose process is gone as dead, and give them.

        `alive` tells of a process id whether that run may still be going. Process ids come again (in a container, nearly
        always): under the night lock no other run can be alive, and `lambda pid: False` is the right answer.
        """
        with self._writing() as connection:
            started = connection.execute("select run_id, pid from runs where status = 'started'").fetchall()
            dead = [row["run_id"] for row in started if not alive(row["pid"])]
            connection.executemany(
                "update runs set status = 'dead', ended_at = ?, reason = 'its process ended without a word' where run_id = ?",
                [(_text(ended_at), run_id) for run_id in dead],
            )
            rows = connection.execute("select * from runs where status = 'dead' order by started_at, run_id").fetchall()
        return [_run(row) for row in rows if row["run_id"] in dead]

    def runs(self, limit: int = 30) -> list[Run]:
        """List the newest runs, newest first."""
        with self._reading() as connection:
            query = "select * from runs order by started_at desc, run_id desc limit ?"
            return [_run(row) for row in connection.execute(query, (limit,))]

    def record_promotion(self, promotion: Promotion) -> None:
        """Append a promotion; it is live from then on. Recording the live one again (a retry) adds nothing."""
        values = _promotion_values(promotion)
        columns = ", ".join(values)
        marks = ", ".join(f":{column}" for column in values)
        with self._writing() as connection:
            live = connection.execute(_NEWEST_PROMOTIONS, (1,)).fetchone()
            if live is None or any(live[column] != value for column, value in values.items() if column != "promoted_at"):
                connection.execute(f"insert into promotions ({columns}) values ({marks})", values)

    def live_promotion(self) -> Promotion | None:
        """Give the promotion that holds now, the last one recorded; None before the first."""
        return next(iter(self.promotions(limit=1)), None)

    def promotions(self, limit: int = 30) -> list[Promotion]:
        """List the last promotions, newest first."""
        with self._reading() as connection:
            return [_promotion(row) for row in connection.execute(_NEWEST_PROMOTIONS, (limit,))]

    def approve_price(self, approval: PriceApproval) -> None:
        """Record that a price is meant. Raises ControlError where name or reason is empty or the price is none."""
        values = vars(approval) | {"approved_at": _text(approval.approved_at)}
        columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        try:
            with self._writing() as connection:
                connection.execute(f"insert into price_approvals ({columns}) values ({marks})", values)
        except sqlite3.IntegrityError as error:
            raise ControlError(f"the approval is not recorded: {error}; it needs a price above 0, a name and a reason") from error

    def price_approvals(self) -> list[PriceApproval]:
        """List all approvals of prices, oldest first."""
        with self._reading() as connection:
            rows = connection.execute("select * from price_approvals order by approval_id").fetchall()
        return [
            PriceApproval(
                **{
                    name: row[name]
                    for name in ("hardware_type", "pool", "price_list", "usd_per_device_hour", "approved_by", "reason")
                },
                approved_at=datetime.fromisoformat(row["approved_at"]),
            )
            for row in rows
        ]

    def _migrate(self) -> None:
        with self._writing() as connection:
            # Read again under the write lock: another process may have migrated meanwhile.
            for version in range(self._known_version(connection), CONTROL_SCHEMA_VERSION):
                for statement in _MIGRATIONS[version]:
                    connection.execute(statement)
            connection.execute(f"pragma user_version = {CONTROL_SCHEMA_VERSION}")

    def _known_version(self, connection: sqlite3.Connection) -> int:
        version = int(connection.execute("pragma user_version").fetchone()[0])
        if version > CONTROL_SCHEMA_VERSION:
            raise ControlError(
                f"{self.path} was written by a newer LEAP: its schema version is {version}, this LEAP knows versions up to "
                f"{CONTROL_SCHEMA_VERSION}; use that LEAP, or another LEAP_HOME"
            )
        return version

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection in a transaction that holds the write lock from the start, so that it cannot fail half-way."""
        with self._reading() as connection:
            connection.execute("begin immediate")
            try:
                yield connection
            except BaseException:
                connection.execute("rollback")
                raise
            connection.execute("commit")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("pragma foreign_keys = on")
                yield connection
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise ControlError(
                f"{self.path}: {error}; see that it is LEAP's control database, that you may write it and nothing holds it"
            ) from error


_NEWEST_PROMOTIONS = "select * from promotions order by promotion_id desc limit ?"


def _run(row: sqlite3.Row) -> Run:
    return Run(
        run_id=row["run_id"],
        night=date.fromisoformat(row["night"]),
        as_of=datetime.fromisoformat(row["as_of"]),
        status=RunStatus(row["status"]),
        pid=row["pid"],
        started_at=datetime.fromisoformat(row["started_at"]),
        ended_at=datetime.fromisoformat(row["ended_at"]) if row["ended_at"] else None,
        reason=row["reason"],
        figures=json.loads(row["figures"]),
    )


def _promotion(row: sqlite3.Row) -> Promotion:
    return Promotion(
        promoted_at=datetime.fromisoformat(row["promoted_at"]),
        night=date.fromisoformat(row["night"]),
        model_version=row["model_version"],
        fingerprint=row["fingerprint"],
        dataset_id=row["dataset_id"],
        code_version=row["code_version"],
        params_hash=row["params_hash"],
        price_version=row["price_version"],
        snapshot_id=row["snapshot_id"],
        verdict=json.loads(row["verdict"]),
        reason=row["reason"],
    )


def _promotion_values(promotion: Promotion) -> dict[str, str | None]:
    return {
        "promoted_at": _text(promotion.promoted_at),
        "night": promotion.night.isoformat(),
        "model_version": promotion.model_version,
        "fingerprint": promotion.fingerprint,
        "dataset_id": promotion.dataset_id,
        "code_version": promotion.code_version,
        "params_hash": promotion.params_hash,
        "price_version": promotion.price_version,
        "snapshot_id": promotion.snapshot_id,
        "verdict": _json(promotion.verdict),
        "reason": promotion.reason,
    }


def _text(time: datetime) -> str:
    """Write a time so that texts sort as times do."""
    if time.tzinfo is None:
        raise ControlError(f"the time {time.isoformat()} has no offset; give an aware time in UTC")
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(_finite(values), sort_keys=True, allow_nan=False)


def _finite(value: Any) -> Any:
    """Put null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
