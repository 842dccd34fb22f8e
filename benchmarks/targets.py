"""What Shoal is meant to reach on each workload, as ratios of medians."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Medians = Mapping[str, float]
"""Seconds by engine; an engine without a time is left out."""


@dataclass(frozen=True, slots=True)
class Target:
    """Conditions that must all hold."""

    text: str
    conditions: tuple[Callable[[Medians], bool], ...]

    def met(self, medians: Medians) -> bool | None:
        """Whether all hold; None if none is broken but one lacks an engine's time."""
        answers = [_answer(condition, medians) for condition in self.conditions]
        return False if False in answers else None if None in answers else True


def _answer(condition: Callable[[Medians], bool], medians: Medians) -> bool | None:
    try:
        return condition(medians)
    except KeyError:
        return None


def faster(dask: float, ray: float) -> Target:
    """Shoal is so many times as fast as each peer."""
    return Target(
        f"dask >= {dask:g}, ray >= {ray:g}",
        (
            lambda medians: medians["dask"] >= dask * medians["shoal"],
            lambda medians: medians["ray"] >= ray * medians["shoal"],
        ),
    )


def within(factor: float, ideal: float) -> Target:
    """Shoal needs at most a factor more than the time without any overhead."""
    return Target(
        f"<= {factor:g} x {ideal:.2f} s", (lambda medians: medians["shoal"] <= factor * ideal,)
    )


TARGETS = {
    "first": Target("dask > 2", (lambda medians: medians["dask"] > 2 * medians["shoal"],)),
    "tr1024": faster(dask=10, ray=5),
    "fan1000": faster(dask=10, ray=5),
    "fan10000": faster(dask=10, ray=5),
    "chain1000": faster(dask=10, ray=5),
    "gemm4096": faster(dask=1, ray=1),
    "gather16x32MB": faster(dask=1, ray=1),
    "tr1024-50ms": within(1.25, ideal=1023 * 0.05 / 32),
}
