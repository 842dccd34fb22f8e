"""Arguments of planners and optimizations; an invalid one is a one-line error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal import (
    AutoPlanner,
    NonUniformPlanner,
    Percentile,
    PreLoadOptimization,
    PreWarmOptimization,
    Resources,
    TaskDupOptimization,
    UniformPlanner,
    WukongPlanner,
    task,
)
from shoal.errors import UsageError

SMALL, LARGE = Resources(512), Resources(1024)
PLANNERS: list[Callable[..., Any]] = [
    AutoPlanner,
    UniformPlanner,
    NonUniformPlanner,
    WukongPlanner,
]


def refused(make: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the error message for some arguments."""
    with pytest.raises(UsageError) as found:
        make(*args, **options)
    said = str(found.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("sla", [90, 0.9, "90", "p90", None, True, object])
def test_a_service_level_is_the_median_or_a_percentile(planner: Any, sla: Any) -> None:
    said = refused(planner, sla=sla)
    assert said == f"{planner.__name__}(sla={sla!r}): give 'median' or Percentile(90)."
    assert planner(sla=Percentile(90)).sla == Percentile(90)


@pytest.mark.parametrize("planner", [AutoPlanner, NonUniformPlanner])
@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        (SMALL, "a list such as [Resources(4096), Resources(2048)]"),
        (512, "a list such as [Resources(4096), Resources(2048)]"),
        ("512", "a list such as [Resources(4096), Resources(2048)]"),
        ([512], "Resources(memory_mb=…) instead of 512"),
        ([SMALL, None], "Resources(memory_mb=…) instead of None"),
        ([], "at least one configuration"),
    ],
)
def test_configurations_are_a_list_of_resources(planner: Any, wrong: Any, wanted: str) -> None:
    said = refused(planner, wrong)
    assert said == f"{planner.__name__}(resources={wrong!r}): give {wanted}."
    assert {*planner((SMALL, LARGE)).resources} == {SMALL, LARGE}


@pytest.mark.parametrize("planner", [UniformPlanner, WukongPlanner])
@pytest.mark.parametrize("wrong", [[SMALL], 512, "512"])
def test_one_configuration_is_resources(planner: Any, wrong: Any) -> None:
    said = refused(planner, wrong)
    assert said == f"{planner.__name__}(resources={wrong!r}): give Resources(memory_mb=…)."


@pytest.mark.parametrize(
    ("make", "name", "wrong"),
    [
        *((AutoPlanner, "deadline", wrong) for wrong in ("5", 0, -1, float("nan"), True)),
        *((AutoPlanner, "budget", wrong) for wrong in ("1", 0, [1])),
        (AutoPlanner, "seconds", "1"),
        *((AutoPlanner, "thrift", wrong) for wrong in ("x", -1, float("nan"), None)),
        *((UniformPlanner, "max_clustering", wrong) for wrong in (0, -1, 1.5, "3", None)),
        *((NonUniformPlanner, "max_clustering", wrong) for wrong in (0, -1)),
        *((WukongPlanner, "big_output_nbytes", wrong) for wrong in ("5MB", -1, None, 0.5)),
        *((WukongPlanner, "large_fan_out", wrong) for wrong in (0, "10")),
        (WukongPlanner, "decide", "guess"),
        *((PreWarmOptimization, "aim", wrong) for wrong in (7, -0.1, "x", float("nan"))),
        *((PreLoadOptimization, "threshold", wrong) for wrong in ("2", -1)),
        *((PreLoadOptimization, "iterations", wrong) for wrong in (None, 0.5)),
        *((TaskDupOptimization, "seconds", wrong) for wrong in ("2", -1)),
        *((TaskDupOptimization, "nbytes", wrong) for wrong in ("5MB", -1)),
        *((TaskDupOptimization, "gain", wrong) for wrong in ("x", -1)),
    ],
)
def test_invalid_and_out_of_range_numbers_are_rejected(make: Any, name: str, wrong: Any) -> None:
    said = refused(make, **{name: wrong})
    assert said.startswith(f"{make.__name__}({name}={wrong!r}): give ")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (AutoPlanner, {"deadline": 1e-9, "thrift": 0}),
        (UniformPlanner, {"max_clustering": 1}),
        (WukongPlanner, {"big_output_nbytes": 0, "large_fan_out": 1}),
        (PreWarmOptimization, {"aim": 0}),
        (PreWarmOptimization, {"aim": 1}),
        (TaskDupOptimization, {"seconds": float("inf"), "nbytes": 0, "gain": 0}),
    ],
)
def test_the_minimum_and_the_maximum_are_accepted(make: Any, options: dict[str, Any]) -> None:
    assert make(**options)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("wrong", [PreLoadOptimization, PreLoadOptimization(), "preload", 3])
def test_optimizations_must_be_a_list(planner: Any, wrong: Any) -> None:
    said = refused(planner, optimizations=wrong)
    assert said.endswith(f"(optimizations={wrong!r}): give a list such as [PreLoadOptimization].")


@pytest.mark.parametrize("wrong", [PreLoadOptimization, PreLoadOptimization(), None, "preload"])
def test_forced_optimizations_must_be_a_list(wrong: Any) -> None:
    def picky() -> None: ...

    said = refused(task(forced_optimizations=wrong), picky)
    assert said == (
        f"@task(forced_optimizations={wrong!r}) of 'picky': must be a list such as "
        "[PreLoadOptimization]."
    )
