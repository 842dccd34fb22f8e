"""The simulated farm gives the paper's baselines what the paper measured."""

import pytest

from shoal.farm.evaluation import Setting, evaluate, maker_named

FIFO = Setting("paper-measured", "fifo")


@pytest.mark.parametrize(
    ("name", "qos", "workers"),
    [
        ("reactive-average", (46, 54), (10.4, 11.5)),
        ("reactive-maximum", (55, 70), (13.2, 14.4)),
        ("fixed-15", (97, 98.8), (14.7, 15)),
    ],
)
def test_baselines_fare_as_published(
    name: str, qos: tuple[float, float], workers: tuple[float, float]
) -> None:
    episodes = evaluate({name: maker_named(name)}, FIFO)[name]
    mean_qos = 100 * sum(episode.qos for episode in episodes) / len(episodes)
    mean_workers = sum(episode.mean_workers for episode in episodes) / len(episodes)
    assert qos[0] <= mean_qos <= qos[1]
    assert workers[0] <= mean_workers <= workers[1]


@pytest.mark.parametrize("workload", ["paper-measured", "paper-described"])
@pytest.mark.parametrize(
    ("order", "phase_clock", "qos", "workers"),
    [
        ("fifo", True, 99.3, 15.4),
        ("fifo", False, 99.2, 15.9),
        ("least-laxity", True, 99.5, 12.4),
        ("least-laxity", False, 99.0, 13.0),
    ],
)
def test_the_shipped_table_serves_well_with_few_workers(
    workload: str, order: str, phase_clock: bool, qos: float, workers: float
) -> None:
    setting = Setting(workload, order, phase_clock)
    episodes = evaluate({"sarsa": maker_named("sarsa")}, setting)["sarsa"]
    assert 100 * sum(episode.qos for episode in episodes) / len(episodes) >= qos
    assert sum(episode.mean_workers for episode in episodes) / len(episodes) <= workers


def test_the_shipped_network_serves_well_on_the_papers_stream() -> None:
    episodes = evaluate({"dqn": maker_named("dqn")}, FIFO)["dqn"]
    assert 100 * sum(episode.qos for episode in episodes) / len(episodes) >= 99.2
    assert sum(episode.mean_workers for episode in episodes) / len(episodes) <= 14.7
