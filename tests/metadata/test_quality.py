"""After a run, predictions are compared with what was recorded."""

from __future__ import annotations

import pytest

from shoal import Resources
from shoal.execution.costs import Costs, Direction
from shoal.metadata.quality import prediction_errors
from shoal.metadata.samples import FIRST, Sample
from shoal.types import TaskId

R = Resources(2048)
TASKS = [TaskId("long#0"), TaskId("short#0")]


class Predicted(Costs):
    """Predicts a long task, a short one, and starts that depend on who starts the worker."""

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        return (1.0 if warm else 2.0) + (4.0 if first else 0.0)

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        return nbytes / 100

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        return 1.0 if task == TASKS[0] else 0.005

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        return 0

    def coordination(self) -> float:
        return 0.0


def sample(kind: str, seconds: float, name: str = "", number: int = -1, nbytes: int = 0) -> Sample:
    return Sample(kind, name, number, R, nbytes, seconds, 0.0, 0)


def errors(*samples: Sample) -> dict[str, float]:
    return dict(prediction_errors(Predicted(), list(samples), TASKS))


def test_an_error_is_relative_to_what_was_recorded() -> None:
    found = errors(
        sample("execute", 2.0, "long", 0),
        sample("warm start", 0.5),
        sample("cold start", 3.0, FIRST),
        sample("save", 4.0, nbytes=100),
    )
    assert found == pytest.approx({"execute": 0.5, "start": 1.0, "transfer": 0.75})


def test_a_short_task_that_was_disturbed_does_not_count_beside_long_ones() -> None:
    disturbed = sample("execute", 0.05, "short", 1)
    assert errors(sample("execute", 1.0, "long", 0), disturbed)["execute"] == 0.0
    assert errors(disturbed)["execute"] == pytest.approx(0.9)


def test_a_transfer_is_compared_with_those_of_the_same_tasks_outputs() -> None:
    class Mapped(Predicted):
        def transfer_of(
            self, task: TaskId, direction: Direction, nbytes: int, resources: Resources
        ) -> float:
            return 0.5 if task == TASKS[0] else super().transfer_of(task, direction, nbytes, R)

    found = [
        sample("execute", 1.0, "long", 0),
        sample("save", 0.5, "long", nbytes=900),
        sample("fetch", 9.0, nbytes=900),
    ]
    assert prediction_errors(Mapped(), found, TASKS)["transfer"] == 0.0


def test_an_unrecorded_cost_has_no_error() -> None:
    assert errors() == {}
