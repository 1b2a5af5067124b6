"""The typed records and the Arrow schemas of one border name the same fields."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from leap.contracts import CANDIDATE_SCHEMA, RANKING_SCHEMA, SUBMISSION_SCHEMA, Candidate, JobSubmission, RankingRow


def test_a_ranking_row_has_the_columns_of_the_published_table_in_their_order():
    assert list(RankingRow.model_fields) == RANKING_SCHEMA.names


def test_what_the_published_table_allows_to_be_empty_a_ranking_row_does_too():
    types = {name: getattr(field.annotation, "__args__", ()) for name, field in RankingRow.model_fields.items()}
    may_be_empty = [name for name, kinds in types.items() if type(None) in kinds]
    assert may_be_empty == [field.name for field in RANKING_SCHEMA if field.nullable]


def test_a_submission_asks_for_no_hardware():
    asked = set(JobSubmission.model_fields)
    assert set(SUBMISSION_SCHEMA.names) | {"num_devices", "eligible_hardware"} == asked
    assert set(Candidate.model_fields) <= set(CANDIDATE_SCHEMA.names)


@pytest.mark.parametrize(
    "change",
    [
        {"hardware_type": "H100"},
        {"num_devices": 0},
        {"model_type": "  "},
        {"global_batch_size": float("nan")},
        {"global_batch_size": -1},
    ],
)
def test_a_submission_with_what_it_may_not_say_is_refused(change):
    with pytest.raises(ValidationError):
        JobSubmission.model_validate({"model_type": "bert", "num_devices": 8} | change)


def test_numbers_of_a_submission_are_doubles_so_that_unknown_is_one_thing():
    assert {field.type for field in SUBMISSION_SCHEMA} == {pa.string(), pa.float64()}
