"""An outline tells another process what history and planning need, and nothing of the user's."""

from __future__ import annotations

import io
import pickle
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from shoal import PreLoadOptimization, Resources, Task, task
from shoal.metadata.features import values_of
from shoal.workflow import Output, Workflow
from shoal.workflow.outline import Outline, outlinable


@task
def take(*values: Any, **named: Any) -> None: ...


class Mine:
    """A class that only this module has."""

    def __repr__(self) -> str:
        return "Mine()"


class Level(IntEnum):
    LOW = 3


class _Elsewhere(pickle.Unpickler):
    """A process that has no modules but Shoal's."""

    def find_class(self, module: str, name: str) -> Any:
        assert module.startswith("shoal."), f"{module}.{name} is the user's"
        return super().find_class(module, name)


def loaded(outline: Outline) -> Workflow:
    found: Outline = _Elsewhere(io.BytesIO(pickle.dumps(outline))).load()
    return found.workflow()


def told(*outputs: Output[Any]) -> tuple[Workflow, Workflow]:
    """A workflow, and what another process makes of its outline."""
    workflow = Workflow.of(*outputs)
    return workflow, loaded(Outline.of(workflow))


def test_the_wiring_stays() -> None:
    first, second = take(1), take(take(2), name=take("x"))
    workflow, outlined = told(take(first, [second, {"a": first}], 4), second)
    assert outlined.fingerprint() == workflow.fingerprint()
    assert outlined.upstream == workflow.upstream
    assert outlined.sinks == workflow.sinks
    assert [*outlined.calls] == [*workflow.calls]
    assert (outlined.name, outlined.key) == (workflow.name, workflow.key)


def test_without_nested_outputs_the_fingerprint_is_found_elsewhere() -> None:
    workflow, outlined = told(take(take(1), take(2, a=3)))
    assert Outline.of(workflow).fingerprint is None
    assert outlined.fingerprint() == workflow.fingerprint()


@pytest.mark.parametrize(
    "value",
    [1, -2.5, True, None, "short", "long" * 1000, b"bytes", [1, 2], (3,), {"a": 1}, {1, 2},
     [Mine(), Mine()], Mine(), Mine, Level.LOW, np.float64(2.5), np.ones(3), 10**400],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_constants_tell_as_much_about_the_time_that_a_task_takes(value: Any) -> None:
    workflow, outlined = told(take(value, named=value))
    (call,), (known,) = workflow.calls.values(), outlined.calls.values()
    assert values_of(known) == values_of(call)


def test_names_resources_and_needs_stay() -> None:
    large = Task(take.function, name="large", resources=Resources(4096), retries=2)
    workflow, outlined = told(large(take(1)))
    outlined = loaded(Outline.of(workflow.needing({take.key: 512})))
    assert outlined.needs == {take.key: 512}
    for name, call in outlined.calls.items():
        known = workflow.calls[name].task
        assert (call.task.name, call.task.key) == (known.name, known.key)
        assert (call.task.resources, call.task.retries) == (known.resources, known.retries)


def test_a_title_stays() -> None:
    workflow = Workflow.of(take()).named("nightly")
    assert loaded(Outline.of(workflow)).key == "nightly"


def test_only_shoal_s_own_optimizations_can_be_outlined() -> None:
    ours = Task(take.function, forced_optimizations=[PreLoadOptimization, PreLoadOptimization(2)])
    theirs = Task(take.function, forced_optimizations=[Mine])
    assert outlinable(Workflow.of(ours()))
    assert not outlinable(Workflow.of(ours(theirs())))
    _, outlined = told(ours(theirs()))
    assert [len(call.task.forced_optimizations) for call in outlined.calls.values()] == [0, 2]
