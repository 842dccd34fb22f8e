"""Predictions follow the sizes of inputs: at half to twice the sizes of earlier runs, too."""

from __future__ import annotations

from statistics import fmean

import pytest
from sized_workflow import measured

SIZES = (0.5, 1.0, 2.0)
HISTORIES = range(4)


@pytest.mark.parametrize("size", SIZES)
def test_six_runs_at_other_sizes_predict_a_run(size: float) -> None:
    found = measured(size, HISTORIES, repeats=40)
    assert abs(fmean(found.median)) < 0.04
    assert max(map(abs, found.median)) < 0.15
    assert max(found.execute) < 0.1
    assert max(found.careful) < 0.2
    assert 0.8 <= fmean(found.kept) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("pace", [0.0, 0.05])
def test_promises_are_kept_at_sizes_that_no_run_had(pace: float) -> None:
    found = [measured(size, range(10, 22), pace=pace) for size in (0.5, 0.7, 1.3, 2.0)]
    assert 0.83 <= fmean([share for each in found for share in each.kept]) <= 0.97
    for each in found:
        assert abs(fmean(each.median)) < 0.15
        assert fmean(each.execute) < 0.1
        assert fmean(each.careful) < 0.2
