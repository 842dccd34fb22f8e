"""The small values that every layer shares."""

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.types import MB_PER_CPU, Percentile, Resources


def test_cpus_follow_memory_unless_given() -> None:
    assert Resources(memory_mb=2 * MB_PER_CPU).cpu_share == 2
    assert Resources(memory_mb=2 * MB_PER_CPU, cpus=0.5).cpu_share == 0.5


@pytest.mark.parametrize(
    ("resources", "slots"),
    [
        (Resources(memory_mb=64), 1),
        (Resources(memory_mb=2 * MB_PER_CPU - 1), 1),
        (Resources(memory_mb=2 * MB_PER_CPU), 2),
        (Resources(memory_mb=64, cpus=3.9), 3),
        (Resources(memory_mb=10_000, cpus=0.1), 1),
    ],
)
def test_a_worker_runs_one_task_per_whole_cpu_but_at_least_one(
    resources: Resources, slots: int
) -> None:
    assert resources.slots == slots


@pytest.mark.parametrize("memory_mb", [63, 0, -512, 512.0, "512", None])
def test_memory_must_be_a_whole_number_of_at_least_64(memory_mb: Any) -> None:
    with pytest.raises(UsageError, match=r"Resources\(memory_mb=.*at least 64"):
        Resources(memory_mb=memory_mb)


@pytest.mark.parametrize("cpus", [0, -1.0, float("nan"), float("inf"), "2"])
def test_cpus_must_be_a_number_above_0(cpus: Any) -> None:
    with pytest.raises(UsageError, match=r"Resources\(cpus=.*greater than 0"):
        Resources(memory_mb=512, cpus=cpus)


@pytest.mark.parametrize("p", [0, 100, -5, 101, float("nan"), "90", None, True])
def test_a_percentile_lies_between_1_and_100(p: Any) -> None:
    with pytest.raises(UsageError, match=r"Percentile\(.*at least 1 and below 100\.$"):
        Percentile(p)
    assert Percentile(1).p == 1


@pytest.mark.parametrize(("p", "meant"), [(0.95, "95"), (0.999, "99.9")])
def test_a_fraction_is_no_percentile(p: float, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"Percentile\({p}\).*; did you mean {meant}\?$"):
        Percentile(p)


@pytest.mark.parametrize("value", [Resources(memory_mb=512, cpus=2), Percentile(99.9)], ids=repr)
def test_values_are_equal_by_content_hashable_and_survive_pickling(value: Any) -> None:
    copied = pickle.loads(pickle.dumps(value))
    assert copied == value
    assert len({copied, value}) == 1


def test_values_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Resources(memory_mb=512).memory_mb = 64  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Percentile(50).p = 99  # type: ignore[misc]
