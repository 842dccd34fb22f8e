"""The Gymnasium environment: its contract, its options and its reward."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from shoal.errors import UsageError
from shoal.farm.autoscalers import Fixed, ReactiveAverage
from shoal.farm.environment import ID, FarmEnv
from shoal.farm.episode import run_episode
from shoal.farm.evaluation import MAKERS, Setting, maker_named
from shoal.farm.model import EQUATION_1, Observation
from shoal.farm.reward import Reward
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.workloads import paper_measured, replay


def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(gymnasium.make(ID).unwrapped)


def test_the_long_form_of_the_id_needs_no_import() -> None:
    env = gymnasium.make(f"shoal.farm.environment:{ID}", workload="sine", order="least-laxity")
    assert env.observation_space.shape == (len(EQUATION_1),)


def test_vectors_of_environments_work() -> None:
    envs = gymnasium.make_vec(ID, num_envs=3, vectorization_mode="sync")
    seen, _ = envs.reset(seed=1)
    assert seen.shape == (3, 9)
    seen, rewards, *_ = envs.step(np.array([0, 1, 2]))
    assert envs.observation_space.contains(seen)
    assert rewards.shape == (3,)
    envs.close()


def test_the_seed_determines_the_stream() -> None:
    env = FarmEnv()
    env.reset(seed=11)
    farm = env.farm
    assert isinstance(farm, SimulatedFarm)
    assert np.array_equal(farm.workload.arrivals, paper_measured(11).arrivals)


def test_a_stream_that_is_finished_terminates_the_episode() -> None:
    env = FarmEnv(replay([0.0], [1.0]))
    env.reset(seed=0)
    *_, terminated, truncated, info = env.step(1)
    assert (terminated, truncated) == (True, False)
    assert (info["completed"], info["on_time"]) == (1, 1)


def test_the_last_step_truncates_an_unfinished_stream() -> None:
    env = FarmEnv(replay([0.0, 90.0], [1.0, 1.0]), steps=2)
    env.reset(seed=0)
    assert env.step(1)[2:4] == (False, False)
    assert env.step(1)[2:4] == (False, True)


def test_the_phase_clock_can_be_masked() -> None:
    def course(phase_clock: bool) -> dict[str, list[float]]:
        env = FarmEnv(phase_clock=phase_clock)
        env.reset(seed=2)
        seen = [env.step(1)[0].tolist() for _ in range(20)]
        return dict(zip(EQUATION_1, map(list, zip(*seen, strict=True)), strict=True))

    shown, masked = course(True), course(False)
    assert set(shown["phases_left"]) == {3.0, 2.0, 1.0, 0.0}
    assert shown["collected"][-1] > 500
    assert set(masked["phases_left"]) == set(masked["collected"]) == {0.0}
    assert masked["waiting"] == shown["waiting"]


def test_wider_actions_and_other_fields_can_be_chosen() -> None:
    env = FarmEnv(actions=(-4, 0, 4), fields=("workers", "changing"))
    env.reset(seed=0)
    assert env.step(2)[4]["change"] == 4
    assert env.step(1)[0].tolist() == [16.0, 0.0]


def test_unknown_fields_are_rejected() -> None:
    with pytest.raises(UsageError, match="no field colour"):
        FarmEnv(fields=("workers", "colour"))


def test_stepping_before_the_reset_is_an_error() -> None:
    with pytest.raises(UsageError, match="reset"):
        FarmEnv().step(0)


def test_any_driver_works() -> None:
    made = []

    def farm(seed: int) -> SimulatedFarm:
        made.append(seed)
        return SimulatedFarm(paper_measured(seed), workers=4)

    env = FarmEnv(farm=farm)
    seen, info = env.reset(seed=5)
    assert made == [5] == [info["seed"]]
    assert seen[EQUATION_1.index("workers")] == 4


CALM = Observation(0, 0, 0, 0, 14, 1.5, 3.0, 5.0, 1.0, 7, 0)


def test_the_reward_is_that_of_the_paper() -> None:
    reward = Reward()
    assert reward.of(CALM, 0) == pytest.approx(36 * 0.05 + 3.6) == reward.par
    assert reward.of(CALM._replace(workers=20), 0) == pytest.approx(reward.par - 0.05 * 6)
    assert reward.of(CALM, -1) == pytest.approx(reward.par - 0.08 + 0.1)
    flooded = CALM._replace(waiting=90, on_time=0.5)
    assert reward.of(flooded, 0) == pytest.approx(36 * (0.5 - 0.95) - 2.5 * 4)
    assert reward.of(flooded, 1) == pytest.approx(reward.of(flooded, 0) - 0.08 + 5.5)


def test_the_end_of_a_stream_has_a_reward() -> None:
    assert [Reward().at_end(unfinished) for unfinished in (0, 3, 99)] == [8.0, -6.0, -60.0]


@pytest.mark.parametrize("fields", [EQUATION_1, Observation._fields], ids=["eq. 1", "all fields"])
@pytest.mark.parametrize("name", [*MAKERS, "fixed-15"])
def test_every_autoscaler_decides_on_the_vectors_of_the_environment(
    name: str, fields: tuple[str, ...]
) -> None:
    env, autoscaler = FarmEnv(steps=3, fields=fields), maker_named(name)(Setting())
    seen, _ = env.reset(seed=1)
    for _ in range(3):
        action = env.action_for(autoscaler.decide(seen))
        seen, *_ = env.step(action)
        assert env.action_space.contains(np.int64(action))


def test_an_autoscaler_does_the_same_in_the_environment_as_in_an_episode() -> None:
    env = FarmEnv(fields=Observation._fields)
    seen, over = env.reset(seed=4)[0], False
    while not over:
        seen, _, terminated, truncated, _ = env.step(env.action_for(ReactiveAverage().decide(seen)))
        over = terminated or truncated
    farm = SimulatedFarm(paper_measured(4), seed=4)
    episode = run_episode(farm, ReactiveAverage())
    assert env.farm is not None
    assert (env.farm.model.actions, env.farm.model.workers) == (
        episode.actions,
        episode.course[-1].workers,
    )


def test_the_tasks_in_execution_are_estimated_if_the_vector_lacks_them() -> None:
    known = [0.0, 0.0, 0.0, 50.0, 10.0, 1.5, 3.0, 4.0, 1.0]
    assert Observation.of(np.array(known)).busy == 6.0
    assert Observation.of([*known[:7], 8.0, 1.0]).busy == 10.0
    assert Observation.of([0.0, 5.0, *known[2:]]).busy == 10.0


def test_a_vector_with_other_fields_is_rejected() -> None:
    with pytest.raises(UsageError, match="2 numbers"):
        Fixed(15).decide(np.zeros(2))
