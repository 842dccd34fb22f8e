"""`AutoscalerContract`: what a farm relies on in every autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shoal.farm.model import Autoscaler, FarmModel, Limits, Observation
from shoal.testing.pytest_required import pytest

STEP = 8.0
"""Seconds between two decisions."""
QUIET = Observation(
    phases_left=0, waiting=0, collecting=0, collected=400, workers=10, mean_response=1.5,
    max_response=3.0, arrival_rate=5.0, on_time=1.0, busy=7, changing=0,
)  # fmt: skip
ODD = {
    "quiet": QUIET,
    "nothing ever happened": Observation(*[0.0] * 11)._replace(workers=1, on_time=1.0),
    "all zeros": Observation(*[0.0] * 11),
    "flooded": QUIET._replace(waiting=500, busy=10, mean_response=60.0, on_time=0.0),
    "idle": QUIET._replace(arrival_rate=0.0, busy=0),
    "only arrivals": QUIET._replace(arrival_rate=40.0, busy=0, mean_response=0.0),
    "no time at all": QUIET._replace(mean_response=0.0, max_response=0.0),
    "all workers leave": QUIET._replace(changing=-10),
    "many workers start": QUIET._replace(workers=1, changing=31),
    "more workers than allowed": QUIET._replace(workers=100),
    "with a phase clock": QUIET._replace(phases_left=3, collecting=5),
    "without a phase clock": QUIET.without_clock(),
    "averages": QUIET._replace(workers=9.5, busy=6.25, waiting=0.75, changing=0.5),
}
"""Observations that a farm may make, however rarely."""


def course(
    autoscaler: Autoscaler, limits: Limits, rates: Sequence[int]
) -> list[tuple[Observation, int]]:
    """Let an autoscaler control a farm; return what it observed and decided.

    Each worker completes four tasks between two decisions, and every change is carried out by then.

    Args:
        autoscaler: Decides after each step.
        limits: The bounds of the farm.
        rates: How many tasks arrive in each step.
    """
    model = FarmModel(limits.least, limits)
    now, waiting, found = 0.0, 0, []
    for arriving in rates:
        now += STEP
        for _ in range(arriving):
            model.arrived()
        done = min(waiting + arriving, 4 * model.workers)
        waiting += arriving - done
        for _ in range(done):
            model.completed(now, now - 2.0, now - 1.0 if waiting else now)
        seen = model.observe(now, waiting, min(done, model.workers))
        change = autoscaler.decide(seen)
        assert type(change) is int
        found.append((seen, change))
        model.ask(change)
        while model.starting:
            model.started(now)
        while model.leaving:
            model.left(now)
    return found


def stream(seed: int = 0, steps: int = 30) -> list[int]:
    """Return how many tasks arrive in each step of a stream that is quiet, rises and falls."""
    rng = Random(seed)
    return [
        rng.randint(0, 5) + (60 if steps // 3 <= step < steps // 2 else 0) for step in range(steps)
    ]


class AutoscalerContract:
    """Tests that an autoscaler can control a farm.

    Subclass it in a test module and override the fixture `autoscaler`.
    """

    @pytest.fixture
    def autoscaler(self) -> Autoscaler:
        """Return a new autoscaler."""
        raise NotImplementedError("Override the fixture `autoscaler` of AutoscalerContract.")

    @pytest.mark.parametrize("seen", ODD.values(), ids=ODD)
    def test_every_observation_gives_a_whole_number_of_workers(
        self, autoscaler: Autoscaler, seen: Observation
    ) -> None:
        """It may be the first of a stream, and it may repeat."""
        autoscaler.reset()
        for _ in range(4):
            assert type(autoscaler.decide(seen)) is int

    def test_observations_may_come_in_any_order(self, autoscaler: Autoscaler) -> None:
        for seed in range(3):
            autoscaler.reset()
            for seen in Random(seed).sample([*ODD.values()], len(ODD)):
                assert type(autoscaler.decide(seen)) is int

    @pytest.mark.parametrize("limits", [Limits(1, 32), Limits(4, 4), Limits(2, 3)], ids=str)
    def test_a_farm_keeps_to_its_limits(self, autoscaler: Autoscaler, limits: Limits) -> None:
        autoscaler.reset()
        for seen, _ in course(autoscaler, limits, stream()):
            assert limits.least <= seen.workers <= limits.most

    def test_the_same_stream_gets_the_same_decisions_after_a_reset(
        self, autoscaler: Autoscaler
    ) -> None:
        """A farm resets its autoscaler when it opens, because another farm may have used it."""
        limits = Limits(1, 32)
        autoscaler.reset()
        first = course(autoscaler, limits, stream())
        autoscaler.reset()
        course(autoscaler, limits, stream(seed=1)[::-1])
        autoscaler.reset()
        assert course(autoscaler, limits, stream()) == first

    def test_a_new_autoscaler_needs_no_reset(self, autoscaler: Autoscaler) -> None:
        limits = Limits(1, 32)
        first = course(autoscaler, limits, stream())
        autoscaler.reset()
        assert course(autoscaler, limits, stream()) == first

    def test_resetting_twice_is_resetting_once(self, autoscaler: Autoscaler) -> None:
        autoscaler.reset()
        first = [autoscaler.decide(seen) for seen in ODD.values()]
        autoscaler.reset()
        autoscaler.reset()
        assert [autoscaler.decide(seen) for seen in ODD.values()] == first
