"""How many workers a stage counts, whatever happens to them."""

from __future__ import annotations

import farm_examples as examples
import pytest

from shoal.farm.model import Limits
from shoal.farm.orders import Fifo
from shoal.farm.stage import Stage, StageSpec
from shoal.types import Resources


@pytest.fixture
def stage() -> Stage:
    """A stage with two running workers."""
    spec = StageSpec(examples.nap, Limits(1, 8), 2, Resources(128), Fifo())
    stage = Stage(0, spec, lambda: 0.0)
    for worker in ("0:0", "0:1"):
        stage.entered(worker)
    return stage


def counts(stage: Stage) -> tuple[int, int, int]:
    """Return the numbers of running, starting and leaving workers."""
    return stage.model.workers, stage.model.starting, stage.model.leaving


def test_a_replacement_of_a_lost_worker_changes_no_count(stage: Stage) -> None:
    assert not stage.left("0:0")
    stage.entered("0:2")
    assert counts(stage) == (2, 0, 0)


def test_a_replacement_of_a_worker_that_never_entered_counts_as_the_requested_one(
    stage: Stage,
) -> None:
    stage.ask(1)
    assert not stage.left("0:2")
    stage.entered("0:3")
    assert counts(stage) == (3, 0, 0)


def test_a_worker_that_never_entered_can_count_as_one_that_was_to_leave(stage: Stage) -> None:
    stage.ask(1)
    stage.ask(-1)
    assert stage.left("0:2")
    assert counts(stage) == (2, 0, 0)


def test_a_lost_worker_without_a_replacement_can_count_as_one_that_was_to_leave(
    stage: Stage,
) -> None:
    assert not stage.left("0:0")
    stage.ask(-1)
    assert stage.left("0:2")
    assert counts(stage) == (1, 0, 0)
