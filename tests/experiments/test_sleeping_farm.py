"""A workload on real workers can be controlled like a simulated farm."""

from __future__ import annotations

import pytest

from shoal.experiments.sleeping_farm import Decompressed, SleepingFarm
from shoal.farm.autoscalers import Fixed
from shoal.farm.environment import FarmEnv
from shoal.farm.model import FarmDriver, Limits, Observation
from shoal.farm.workloads import Workload, np, workload_of
from shoal.session import Session

pytestmark = pytest.mark.real


@pytest.fixture
def workload() -> Workload:
    return workload_of(np.arange(20) * 0.5, np.full(20, 0.4))


def test_every_task_of_a_workload_is_completed(workload: Workload, session: Session) -> None:
    with SleepingFarm(workload, workers=2, limits=Limits(1, 3), factor=10, session=session) as farm:
        seen = farm.advance(8.0)
        assert seen.workers == 2
        assert farm.scale_by(5) == 1
        farm.drain()
        assert farm.finished
        assert farm.model.completed_total == 20


def test_the_environment_accepts_a_deployed_farm(workload: Workload, session: Session) -> None:
    made = SleepingFarm(workload, workers=2, limits=Limits(1, 3), factor=20, session=session)
    with made as farm:

        def same(seed: int) -> FarmDriver:
            return farm

        environment = FarmEnv(farm=same, limits=Limits(1, 3), steps=3)
        observation, _ = environment.reset(seed=0)
        assert environment.observation_space.contains(observation)
        for _ in range(3):
            observation, _, finished, truncated, info = environment.step(2)
        assert finished or truncated
        assert info["completed"] <= 20


def test_a_workload_can_be_controlled_by_the_farms_own_autoscaler(
    workload: Workload, session: Session
) -> None:
    with SleepingFarm(
        workload, workers=1, limits=Limits(1, 3), factor=8, autoscaler=Fixed(3), session=session
    ) as farm:
        farm.wait(60.0)
        assert farm.finished
        assert farm.model.actions >= 1
        assert farm.mean_workers > 1


def test_an_autoscaler_sees_uncompressed_times_once_the_stream_has_begun() -> None:
    class Spy:
        seen: list[Observation] = []  # noqa: RUF012

        def decide(self, observation: Observation) -> int:
            self.seen.append(observation)
            return 5

        def reset(self) -> None: ...

    seen = Observation(0, 3, 0, 40, 12, 0.5, 1.0, 20.0, 1.0, 9, 0)
    autoscaler = Decompressed(Spy(), 4.0, (-1, 0, 1))
    assert autoscaler.decide(seen) == 0
    autoscaler.begun = True
    assert autoscaler.decide(seen) == 1
    assert Spy.seen == [seen._replace(mean_response=2.0, max_response=4.0, arrival_rate=5.0)]
