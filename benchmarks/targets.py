"""Define Shoal's targets for each workload, as ratios of medians."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Medians = Mapping[str, float]
"""Seconds by engine, without engines that have no time; `ENGINE p99` has those of loops."""


@dataclass(frozen=True, slots=True)
class Target:
    """Conditions that must all hold."""

    text: str
    conditions: tuple[Callable[[Medians], bool], ...]

    def met(self, medians: Medians) -> bool | None:
        """Return whether all conditions hold; None if one can't be judged and none is broken."""
        answers = [_answer(condition, medians) for condition in self.conditions]
        return False if False in answers else None if None in answers else True


def _answer(condition: Callable[[Medians], bool], medians: Medians) -> bool | None:
    try:
        return condition(medians)
    except KeyError:
        return None


def faster(dask: float, ray: float) -> Target:
    """Require Shoal to be so many times as fast as each peer."""
    return Target(
        f"dask >= {dask:g}, ray >= {ray:g}",
        (
            lambda medians: medians["dask"] >= dask * medians["shoal"],
            lambda medians: medians["ray"] >= ray * medians["shoal"],
        ),
    )


def within(factor: float, ideal: float) -> Target:
    """Require Shoal to take at most a factor of the time without overhead."""
    return Target(
        f"<= {factor:g} x {ideal:.2f} s", (lambda medians: medians["shoal"] <= factor * ideal,)
    )


def steady(factor: float) -> Callable[[Medians], bool]:
    """Require Shoal's 99th percentile to be within a factor of its median."""
    return lambda medians: medians["shoal p99"] <= factor * medians["shoal"]


TARGETS = {
    "first": Target("dask > 2", (lambda medians: medians["dask"] > 2 * medians["shoal"],)),
    "tr1024": faster(dask=10, ray=5),
    "fan1000": faster(dask=10, ray=5),
    "fan10000": faster(dask=10, ray=5),
    "chain1000": faster(dask=10, ray=5),
    "gemm4096": faster(dask=1, ray=1),
    "gather16x32MB": faster(dask=1, ray=1),
    "tr1024-50ms": within(1.25, ideal=1023 * 0.05 / 32),
    "loop1": Target(
        "<= 1.2 x ray, p99 <= 3 x median",
        (lambda medians: medians["shoal"] <= 1.2 * medians["ray"], steady(3)),
    ),
    "loop1023": Target(
        "<= 0.025 s, p99 <= 2 x median",
        (lambda medians: medians["shoal"] <= 0.025, steady(2)),
    ),
}
