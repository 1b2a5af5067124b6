"""Hold-out: everything about one hardware type, model or vendor is hidden, and what was hidden is predicted.

What lives here: which rows are hidden, the rounds of training without them, and the scores beside the simple answers of
`scaling.py`. What does not: reading datasets and building history (the caller hands in how), printing.

Two regimes. *Type unseen*: all rows of the type are gone. *Pair unseen*: the rows of the type with one model type are gone, so
that the type is known from other models; only here can two hardware types be compared on other models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leap.contracts import Outcome, Tier
from leap.evaluation.compare import Difference, paired_difference, within
from leap.evaluation.history import History, Rows, days, training_matrix
from leap.evaluation.metrics import Scorecard, score
from leap.evaluation.retrain import default_predictors, fit_with_intervals
from leap.evaluation.scaling import Runs, order_against_known, order_among, scaled_by_peak_rate, scaled_by_ratio
from leap.features import Floats, Nights, State
from leap.gaussian_process import GaussianProcess
from leap.params import Params
from leap.predictors import Prediction
from leap.predictors.gbdt import base

MIN_ATTEMPTS = 20
MIN_JOBS = 3
FIRST_NIGHTS = 60  # nights that nothing is scored on: hardly anything is known yet
GAP_DAYS = 30  # nights further apart than this start a new round of training
MAX_TRAININGS = 4

LEAP, PEAK, RATIO = "leap", "peak rate", "median ratio"

Rebuild = Callable[[pa.Table], pa.Table]
Progress = Callable[[str, int, int], None]


class Kind(StrEnum):
    """What may be hidden."""

    HARDWARE = "hardware"
    MODEL = "model"
    VENDOR = "vendor"


class Regime(StrEnum):
    """How much of it is hidden."""

    TYPE = "type-unseen"
    PAIR = "pair-unseen"


COLUMNS: Final = {Kind.HARDWARE: "hardware_type", Kind.MODEL: "model_type", Kind.VENDOR: "vendor"}


class NothingToHideError(ValueError):
    """No type has enough attempts and jobs to be hidden; the message says what there is."""


@dataclass(frozen=True)
class Comparison:
    """LEAP's share of hits less another's on the same n attempts."""

    against: str
    n: int
    within_10: Difference
    within_20: Difference


@dataclass(frozen=True)
class TypeScore:
    """How one hidden type was predicted: a scorecard per predictor, and the share of pairs of types put in the right order."""

    name: str
    scorecards: dict[str, Scorecard]
    order: dict[str, float]
    pairs: int


@dataclass(frozen=True)
class HoldOut:
    """The outcome of a hold-out; `overall` has every attempt once, `differences` compare LEAP with each simple answer.

    `where_answered` holds the same differences on the attempts that the other one answers: elsewhere it has no answer, which
    counts as wrong in `differences`.
    """

    kind: Kind
    regime: Regime
    before: np.datetime64
    trainings: int
    overall: TypeScore
    types: tuple[TypeScore, ...]
    differences: tuple[Comparison, ...]
    where_answered: tuple[Comparison, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the outcome as JSON values; NaN becomes null."""
        return {
            "hidden": self.kind.value,
            "regime": self.regime.value,
            "before": str(self.before),
            "trainings": self.trainings,
            "overall": _type_json(self.overall),
            "types": [_type_json(one) for one in self.types],
            "differences": [_comparison_json(one) for one in self.differences],
            "differences_where_answered": [_comparison_json(one) for one in self.where_answered],
        }


@dataclass(frozen=True)
class Hidden:
    """What is hidden at one time: a type (with every model, or with one), the rows that go, and those scored; shape (n,)."""

    name: str
    rows: Rows
    scored: Rows
    model: str | None = None


@dataclass(frozen=True)
class _Answers:
    """The predictions of the scored rows of one or more hidden things, side by side."""

    name: str
    label: Floats
    job: npt.NDArray[np.str_]
    predictions: dict[str, Prediction]
    right: dict[str, Floats]
    pairs: Floats


def hold_out(
    examples: pa.Table,
    rebuild: Rebuild,
    params: Params,
    kind: Kind,
    regime: Regime,
    *,
    before: np.datetime64,
    first_nights: int | None = None,
    only: Sequence[str] = (),
    progress: Progress = lambda _name, _done, _total: None,
) -> HoldOut:
    """Hide one type after the other, train without it, and score what was hidden on nights before `before`.

    Args:
        examples: `marts.fct_training_examples`; rows of nights from `before` on are not looked at.
        rebuild: builds `marts.state_history` from examples.
        params: which levels of history there are, and how LEAP's model is trained.
        kind: what is hidden.
        regime: all of it, or all of it with one model.
        before: the first night that is out of bounds.
        first_nights: so many nights with runs at the start are learned from and not scored; `FIRST_NIGHTS` by default, half of
            the nights where there are few.
        only: the types to hide; all that are large enough by default.
        progress: told which type is next, how many are done, and of how many.

    Raises NothingToHideError where no type (of `only`) has `MIN_ATTEMPTS` attempts of `MIN_JOBS` jobs, ValueError for a model
    hidden pair by pair.
    """
    if kind is Kind.MODEL and regime is Regime.PAIR:
        raise ValueError("a model is hidden whole: hide hardware or vendor to hide pairs of a type and a model")
    examples = examples.filter(pc.less(examples["night"], pa.scalar(before.astype(object), pa.date32())))
    hidden = list(choose_hidden(examples, kind, regime, first_nights=first_nights, only=only))
    if not hidden:
        raise NothingToHideError("no type that is large enough has run more than one model; hide types whole")
    runs = Runs.of(examples)
    jobs = np.asarray(pc.coalesce(examples["job_id"], examples["attempt_id"]).to_numpy(zero_copy_only=False), dtype=np.str_)
    answers: list[_Answers] = []
    trainings = 0
    for done, one in enumerate(hidden):
        progress(one.name if one.model is None else f"{one.name} with {one.model}", done, len(hidden))
        history = history_without(examples, one.rows, rebuild, params)
        asked, evidence = runs.take(one.scored), runs.take(~one.rows)
        learned, count = _learned(history, asked.night, one.scored, params)
        trainings += count
        predictions = {LEAP: learned} | _simple(evidence, asked, kind, regime)
        right, pairs = _ordered(evidence, asked, predictions, kind)
        answers.append(_Answers(one.name, asked.label, jobs[one.scored], predictions, right, pairs))
    progress("", len(hidden), len(hidden))
    whole = _together("all", answers)
    by_type = {
        name: _together(name, [one for one in answers if one.name == name]) for name in dict.fromkeys(h.name for h in hidden)
    }
    others = [name for name in whole.predictions if name != LEAP]
    everywhere = np.ones(len(whole.label), dtype=bool)
    return HoldOut(
        kind=kind,
        regime=regime,
        before=before,
        trainings=trainings,
        overall=_scored(whole, params.seed),
        types=tuple(_scored(one, params.seed) for one in by_type.values()),
        differences=tuple(_compared(whole, name, everywhere, params.seed) for name in others),
        where_answered=tuple(_compared(whole, name, np.isfinite(whole.predictions[name].p50), params.seed) for name in others),
    )


def choose_hidden(
    examples: pa.Table, kind: Kind, regime: Regime, *, first_nights: int | None = None, only: Sequence[str] = ()
) -> Iterator[Hidden]:
    """Give what is hidden, largest type first: each type, or each pair of a type and a model that is not its only one.

    A type takes part with `MIN_ATTEMPTS` scored attempts of `MIN_JOBS` jobs. Scored are the newest labels of attempts that
    succeeded, after the first nights (see `hold_out`). Raises NothingToHideError.
    """
    night = days(examples["night"])
    nights = np.unique(night)
    start = min(FIRST_NIGHTS, len(nights) // 2) if first_nights is None else first_nights
    late = night >= nights[min(start, len(nights) - 1)] if len(nights) else np.zeros(0, dtype=bool)
    succeeded = pc.and_(examples["is_newest"], pc.equal(examples["outcome"], Outcome.SUCCEEDED.value))
    scored = late & np.asarray(pc.fill_null(succeeded, False).to_numpy(), dtype=bool)
    types, models = (_text(examples[column]) for column in (COLUMNS[kind], "model_type"))
    jobs = _text(pc.coalesce(examples["job_id"], examples["attempt_id"]))
    large = [
        (int((scored & (types == name)).sum()), str(name))
        for name in np.unique(types[scored])
        if (not only or name in only)
        and (scored & (types == name)).sum() >= MIN_ATTEMPTS
        and len(np.unique(jobs[scored & (types == name)])) >= MIN_JOBS
    ]
    if not large:
        wanted = f"of {', '.join(only)} none" if only else "none"
        raise NothingToHideError(
            f"{wanted} has {MIN_ATTEMPTS} attempts of {MIN_JOBS} jobs among the {int(scored.sum())} that are scored; there are: "
            f"{', '.join(np.unique(types).tolist()) or 'no types'}"
        )
    for _, name in sorted(large, key=lambda pair: (-pair[0], pair[1])):
        rows = types == name
        if regime is Regime.TYPE:
            yield Hidden(name, rows, rows & scored)
            continue
        of_type = np.unique(models[rows])
        for model in of_type if len(of_type) > 1 else ():
            pair = rows & (models == model)
            if (pair & scored).any():
                yield Hidden(name, pair, pair & scored, str(model))


def history_without(examples: pa.Table, rows: Rows, rebuild: Rebuild, params: Params) -> History:
    """Give the history of all examples as it would be had the marked rows never been known.

    The rows stay, to be asked about: their features are of their own nights, from a history without them. They have no label and
    are visible at no cut.
    """
    hidden = pa.array(rows)
    rest = examples.filter(pc.invert(hidden))
    state = State.from_table(rebuild(rest), params.features.state_levels, GaussianProcess.from_examples(rest))
    never = pa.scalar(np.datetime64("9999-12-31").astype(object), pa.date32())
    gone = {"visible_from": never, "throughput": None, "log_throughput_per_device": None}
    for name, value in gone.items():
        if name in examples.column_names:
            field = examples.schema.field(name)
            masked = pc.if_else(hidden, pa.scalar(None if value is None else value.as_py(), field.type), examples[name])
            examples = examples.set_column(examples.column_names.index(name), field.with_nullable(True), masked)
    return History.from_matrix(training_matrix(examples, state))


def rounds(nights: Nights) -> list[tuple[np.datetime64, np.datetime64]]:
    """Divide nights into rounds without a gap of `GAP_DAYS`, at most `MAX_TRAININGS`: the first and the last night of each.

    Where there are more rounds than trainings, neighbouring ones are joined, evenly.
    """
    distinct = np.unique(nights)
    starts = np.flatnonzero(np.diff(distinct) > np.timedelta64(GAP_DAYS, "D")) + 1
    blocks = np.split(distinct, starts)
    joined = [
        np.concatenate([blocks[part] for part in parts])
        for parts in np.array_split(np.arange(len(blocks)), MAX_TRAININGS)
        if len(parts)
    ]
    return [(block[0], block[-1]) for block in joined]


def _learned(history: History, nights: Nights, scored: Rows, params: Params) -> tuple[Prediction, int]:
    """Predict the scored rows by a model trained at the first night of each round; NaN where nothing could be learned."""
    features = history.features.filter(pa.array(scored))
    parts = {part: np.full(len(nights), np.nan) for part in ("p10", "p50", "p90")}
    tier = np.full(len(nights), Tier.NONE.value, dtype=object)
    trainings = 0
    has_base = np.isfinite(base(history.features))
    for start, end in rounds(nights):
        if not has_base[history.known_at(start, params.model.training_window_days)].any():
            continue
        of_round = (nights >= start) & (nights <= end)
        model = fit_with_intervals(default_predictors(params)[0](), history, start, params)
        answer = model.predict(features.filter(pa.array(of_round)))
        trainings += 1
        for part, values in parts.items():
            values[of_round] = getattr(answer, part)
        tier[of_round] = answer.tier
    return Prediction(**parts, tier=tier.astype(np.str_)), trainings


def _simple(evidence: Runs, asked: Runs, kind: Kind, regime: Regime) -> dict[str, Prediction]:
    """Give the simple answers that the regime allows: of a hidden model nothing can be scaled."""
    if kind is Kind.MODEL:
        return {}
    answers = {PEAK: scaled_by_peak_rate(evidence, asked)}
    if regime is Regime.PAIR:
        answers[RATIO] = scaled_by_ratio(evidence, asked)
    return {name: _point(values) for name, values in answers.items()}


def _point(values: Floats) -> Prediction:
    """Give an answer without an interval."""
    nothing = np.full(len(values), np.nan)
    return Prediction(nothing, values, nothing, np.where(np.isfinite(values), Tier.ANALYTIC.value, Tier.NONE.value))


def _ordered(evidence: Runs, asked: Runs, predictions: dict[str, Prediction], kind: Kind) -> tuple[dict[str, Floats], Floats]:
    """Count pairs in the right order and all pairs, per row; of a hidden model, whose pairs are its own, on the first row."""
    right: dict[str, Floats] = {}
    pairs = np.zeros(len(asked.label))
    for name, prediction in predictions.items():
        if kind is Kind.MODEL:
            good, count = order_among(asked, prediction.p50)
            right[name], pairs = np.zeros(len(asked.label)), np.zeros(len(asked.label))
            right[name][0], pairs[0] = good, count
        else:
            right[name], pairs = order_against_known(evidence, asked, prediction.p50)
    return right, pairs


def _together(name: str, answers: Sequence[_Answers]) -> _Answers:
    parts = ("p10", "p50", "p90", "tier")
    first = answers[0]
    return replace(
        first,
        name=name,
        label=np.concatenate([one.label for one in answers]),
        job=np.concatenate([one.job for one in answers]),
        predictions={
            key: Prediction(*(np.concatenate([getattr(one.predictions[key], part) for one in answers]) for part in parts))
            for key in first.predictions
        },
        right={key: np.concatenate([one.right[key] for one in answers]) for key in first.right},
        pairs=np.concatenate([one.pairs for one in answers]),
    )


def _scored(answers: _Answers, seed: int) -> TypeScore:
    total = float(answers.pairs.sum())
    cards = {name: score(name, answers.label, value, answers.job, seed=seed) for name, value in answers.predictions.items()}
    nan = float("nan")
    return TypeScore(
        name=answers.name,
        # A simple answer has no interval to hold a label.
        scorecards={
            name: card if name == LEAP else replace(card, coverage=nan, median_width=nan, tiers={})
            for name, card in cards.items()
        },
        order={name: float(right.sum()) / total if total else float("nan") for name, right in answers.right.items()},
        pairs=int(total),
    )


def _compared(answers: _Answers, against: str, rows: Rows, seed: int) -> Comparison:
    def difference(limit: float) -> Difference:
        ours, theirs = (within(answers.label, answers.predictions[name].p50, limit)[rows] for name in (LEAP, against))
        return paired_difference(ours, theirs, answers.job[rows], seed=seed)

    return Comparison(against=against, n=int(rows.sum()), within_10=difference(0.10), within_20=difference(0.20))


def _text(column: pa.ChunkedArray) -> npt.NDArray[np.str_]:
    return np.asarray(pc.fill_null(column, "").to_numpy(zero_copy_only=False), dtype=np.str_)


def _comparison_json(one: Comparison) -> dict[str, Any]:
    parts = {"within_10": one.within_10, "within_20": one.within_20}
    return {"against": one.against, "n": one.n, **{name: asdict(part) if one.n else None for name, part in parts.items()}}


def _type_json(one: TypeScore) -> dict[str, Any]:
    return {
        "name": one.name,
        "pairs": one.pairs,
        "order": {name: share if np.isfinite(share) else None for name, share in one.order.items()},
        "scorecards": {name: card.to_json() for name, card in one.scorecards.items()},
    }
