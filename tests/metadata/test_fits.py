"""How an amount depends on features, and how far that is believed."""

from __future__ import annotations

from math import log

from shoal.metadata.fits import Point, fit


def test_a_size_that_is_far_from_all_samples_counts_as_less_far() -> None:
    """Else the sizes of a chain, each predicted from the one before, grow without end."""
    points = [Point(log(n), n, {"nbytes": log(n)}) for n in (1000, 2000, 4000)]
    found = fit(points, "nbytes")
    near = {"nbytes": log(100_000)}
    place = found.where(points[0].features)
    assert found.within_reach(near, place) == near
    assert found.within_reach({"nbytes": 300.0}, place) == {"nbytes": log(1000) + log(10_000)}
    assert found.within_reach({"nbytes": 0.0}, (20.0,)) == {"nbytes": 20.0 - log(10_000)}
