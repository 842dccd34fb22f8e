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
