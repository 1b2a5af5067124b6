"""Predictors by name: LEAP's own, the lookup table it replaces, and the alternatives it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from leap.params import Params
from leap.predictors import Predictor
from leap.predictors.completion import MatrixCompletion
from leap.predictors.gbdt import GbdtPredictor
from leap.predictors.history_alone import LastValue, ProcessAlone
from leap.predictors.lookup import LookupTable
from leap.predictors.neighbours import NearestNeighbours
from leap.predictors.regression import RandomForest, Ridge, SubmittedFields, XGBoost
from leap.predictors.stack import Stack

# Members without the base that trees correct (neighbours, last value) made the stack worse, most where a configuration is new.
STACK_MEMBERS = ("leap", "xgboost", "forest")

# What a predictor needs beside LEAP's own dependencies: the modules of the extra `compare`.
NEEDS = {"ridge": ("sklearn",), "forest": ("sklearn",), "xgboost": ("xgboost",), "stack": ("sklearn", "xgboost")}


class MissingExtraError(RuntimeError):
    """A predictor was asked for whose library is not installed; the message says how to get it."""


def make(name: str, params: Params) -> Predictor:
    """Make the predictor of this name, not yet fitted.

    Raises ValueError for a name that is not in `NAMES`, MissingExtraError where its library is missing.
    """
    if name not in _MAKERS:
        raise ValueError(f"no predictor {name!r}; there are {', '.join(NAMES)}")
    missing = [module for module in NEEDS.get(name, ()) if find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"predictor {name!r} needs {', '.join(missing)}, which is not installed: pip install 'leap-fleet[compare]', "
            "or leave it out of --predictors"
        )
    return _MAKERS[name](params)


def _leap(params: Params) -> GbdtPredictor:
    return GbdtPredictor(params.model, params.features.state_levels, params.validation.interval, params.seed)


def _stack(params: Params) -> Stack:
    def maker(name: str) -> Callable[[], Predictor]:
        return lambda: make(name, params)

    return Stack(params.validation.interval, [maker(name) for name in STACK_MEMBERS])


_MAKERS: dict[str, Callable[[Params], Predictor]] = {
    "leap": _leap,
    "lookup": lambda params: LookupTable(params.validation.interval),
    "last_value": lambda params: LastValue(params.validation.interval),
    "process": lambda params: ProcessAlone(params.validation.interval),
    "ridge": lambda params: Ridge(params.validation.interval, params.model, params.features.state_levels, params.seed),
    "neighbours": lambda params: NearestNeighbours(params.validation.interval, params.model.half_life_days),
    "completion": lambda params: MatrixCompletion(params.validation.interval, params.seed),
    "forest": lambda params: RandomForest(params.validation.interval, params.model, params.features.state_levels, params.seed),
    "xgboost": lambda params: XGBoost(params.validation.interval, params.model, params.features.state_levels, params.seed),
    "submitted_fields": lambda params: SubmittedFields(params.validation.interval, params.model, params.seed),
    "stack": _stack,
}
NAMES = tuple(_MAKERS)
