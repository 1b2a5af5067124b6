"""`params.yaml` as a frozen typed model: an unknown key, a missing key or a value out of range is an error.

What does not live here: environment variables (`pipelines/settings.py`) and anything a person would not argue about.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

# The columns that a level of history may be keyed by.
STATE_KEY_COLUMNS = frozenset(
    {
        "job_id",
        "team",
        "model_type",
        "task",
        "framework",
        "framework_version",
        "precision",
        "optimizer",
        "global_batch_size",
        "hardware_type",
        "family",
        "vendor",
        "num_devices",
    }
)


class ParamsError(ValueError):
    """`params.yaml` (or an overlay) is not what the model asks for; the message names file, key and reason."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IngestParams(_Frozen):
    """What a record must be to be learned from."""

    max_label_disagreement: Share
    min_steady_seconds: Annotated[float, Field(ge=0)]


class QuarantineParams(_Frozen):
    """What counts as a sudden rise of faulty records."""

    days: Annotated[int, Field(ge=2)]
    max_rise: Share
    min_records: Count


class PriceParams(_Frozen):
    """Which prices are believed."""

    max_jump: Annotated[float, Field(gt=1)]


class FeatureParams(_Frozen):
    """The levels of history, and how many examples of a night get features."""

    state_levels: dict[str, tuple[str, ...]]
    max_attempts_a_night: Count

    @model_validator(mode="after")
    def _levels_are_known(self) -> FeatureParams:
        for level in ("job_hardware", "exact", "model_hardware", "model_family", "model", "hardware"):
            if level not in self.state_levels:
                raise ValueError(f"state_levels: level {level!r} is missing; tiers and the lookup table are read from it")
        for level, columns in self.state_levels.items():
            unknown = sorted(set(columns) - STATE_KEY_COLUMNS)
            if unknown or not columns:
                raise ValueError(f"state_levels.{level}: {unknown or 'no columns'}; choose among {sorted(STATE_KEY_COLUMNS)}")
        return self


class ModelParams(_Frozen):
    """How the booster is trained."""

    training_window_days: Count
    half_life_days: Annotated[float, Field(gt=0)]
    num_boost_round: Count
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    num_leaves: Annotated[int, Field(ge=2)]
    min_data_in_leaf: Count
    feature_fraction: Annotated[float, Field(gt=0, le=1)]
    bagging_fraction: Annotated[float, Field(gt=0, le=1)]
    lambda_l2: Annotated[float, Field(ge=0)]
    new_configuration_share: Share
    num_threads: Count


class ValidationParams(_Frozen):
    """What a night's challenger is scored on."""

    window_nights: Count
    calibration_nights: Count
    min_attempts: Count
    interval: Annotated[float, Field(gt=0, lt=1)]


class GateParams(_Frozen):
    """Limits that `leap.promotion.decide` applies. Not bounded to shares: an impossible gate is a way to hold every night."""

    min_answered: float
    min_within_20: float
    min_within_10_over_lookup: float
    min_within_10_over_champion: float
    min_coverage: float
    max_quarantined_share: float


class RankingParams(_Frozen):
    """What is ranked, and what counts as near-best."""

    active_days: Count
    hardware_seen_days: Count
    near_best_share: Share
    price_list: str


class PublishParams(_Frozen):
    """How many snapshots stay, and how long one may be used."""

    snapshots_kept: Count
    datasets_kept: Count
    fresh_hours: Annotated[float, Field(gt=0)]
    stale_hours: Annotated[float, Field(gt=0)]


class Params(_Frozen):
    """The whole of `params.yaml`."""

    seed: int
    ingest: IngestParams
    quarantine: QuarantineParams
    prices: PriceParams
    features: FeatureParams
    model: ModelParams
    validation: ValidationParams
    gates: GateParams
    ranking: RankingParams
    publish: PublishParams


def load_params(path: Path, overlay: Path | None = None) -> Params:
    """Read `path`, lay `overlay` (a file with some of the same keys) over it, and check the whole.

    Raises ParamsError with file, key and reason.
    """
    values = _read_mapping(path)
    if overlay is not None:
        values = _merge(values, _read_mapping(overlay))
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        where = f"{path}" if overlay is None else f"{path} with overlay {overlay}"
        problems = "; ".join(f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors())
        raise ParamsError(f"{where}: {problems}") from None


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path}: no such file; name a params file with --params, or set LEAP_PARAMS") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: cannot be read as text: {error}") from None
    except yaml.YAMLError as error:
        raise ParamsError(f"{path}: not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{path}: must hold a mapping of keys, holds {type(values).__name__}")
    return values


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
