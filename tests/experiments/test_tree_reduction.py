"""The tree reduction: its shape for any count of numbers, and its sum."""

import math
import time
from typing import Any

import pytest

from evaluating import evaluated, levels, shape
from shoal.errors import UsageError
from shoal.experiments.tree_reduction import add, in_pairs, tree_reduction
from shoal.session import Session
from shoal.workflow import Workflow


def test_it_has_63_tasks_in_six_levels() -> None:
    workflow = Workflow.of(tree_reduction())
    assert len(workflow) == 63
    assert shape(workflow) == {(level, "add"): 32 >> level for level in range(6)}


@pytest.mark.parametrize("numbers", [2, 3, 5, 6, 7, 64, 100, 129])
def test_any_count_of_numbers_is_added_in_the_fewest_levels(numbers: int) -> None:
    output = tree_reduction(numbers)
    level = levels(Workflow.of(output))
    assert len(level) == numbers - 1
    assert sum(not sources for sources in Workflow.of(output).upstream.values()) == numbers // 2
    assert 1 + max(level.values()) == math.ceil(math.log2(numbers))
    assert evaluated(output) == sum(range(numbers))


def test_items_are_joined_with_their_neighbours_in_order() -> None:
    assert in_pairs(lambda a, b: f"({a}{b})", "abcde") == "(((ab)(cd))e)"
    assert in_pairs(lambda a, b: a + b, ["alone"]) == "alone"


def test_a_task_sleeps_as_long_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert evaluated(tree_reduction(4, seconds=2.5)) == 6
    assert slept == [2.5] * 3
    assert add.function(1, 2, 0.0) == 3
    assert len(slept) == 3


@pytest.mark.parametrize("bad", [1, 0, -2, 2.5, "many"])
def test_fewer_than_two_numbers_are_rejected(bad: Any) -> None:
    with pytest.raises(UsageError, match=r"tree_reduction\(numbers=.*at least 2"):
        tree_reduction(bad)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "long"])
def test_an_invalid_sleep_is_rejected(bad: Any) -> None:
    with pytest.raises(UsageError, match=r"tree_reduction\(seconds=.*at least 0"):
        tree_reduction(seconds=bad)


@pytest.mark.real
def test_workers_compute_the_same_sum(session: Session) -> None:
    assert session.compute(tree_reduction(21)) == [evaluated(tree_reduction(21))] == [210]
