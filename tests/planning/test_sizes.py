"""Predictions follow the sizes of inputs: at half to twice the sizes of earlier runs, too."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
from drawn_workflow import Drawn
from sized import Kind, measured
from sized_workflow import LogsAndSignals

SIZES = (0.5, 1.0, 2.0)
HISTORIES = range(4)


def logs(seed: int) -> Kind:
    """Return the same workflow for every history."""
    return LogsAndSignals()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_six_runs_at_other_sizes_predict_a_run(size: float) -> None:
    found = measured(logs, size, HISTORIES, repeats=40)
    assert abs(fmean(found.median)) < 0.04
    assert max(map(abs, found.median)) < 0.15
    assert max(found.execute) < 0.1
    assert max(found.careful) < 0.2
    assert 0.8 <= fmean(found.kept) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_six_runs_predict_workflows_whatever_their_costs_grow_with(size: float) -> None:
    found = measured(Drawn, size, range(24), repeats=20)
    assert abs(fmean(found.median)) < 0.05
    assert max(map(abs, found.median)) < 0.15
    assert max(found.execute) < 0.1
    assert fmean(found.careful) < 0.1
    assert 0.8 <= fmean(found.kept) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [logs, Drawn])
def test_promises_are_kept_at_sizes_that_no_run_had(kind: Callable[[int], Kind]) -> None:
    found = [measured(kind, size, range(10, 22), repeats=40) for size in (0.5, 1.3, 2.0)]
    assert 0.83 <= fmean([share for each in found for share in each.kept]) <= 0.97


@pytest.mark.slow
def test_promises_are_kept_by_runs_with_a_pace_of_their_own() -> None:
    found = [measured(logs, size, range(10, 22), repeats=40, pace=0.05) for size in (0.5, 2.0)]
    assert 0.83 <= fmean([share for each in found for share in each.kept]) <= 0.97
    for each in found:
        assert abs(fmean(each.median)) < 0.15
        assert fmean(each.execute) < 0.1
        assert fmean(each.careful) < 0.2
