"""The paper's baselines perform as published, and the shipped policies do better."""

from statistics import fmean

import pytest

from shoal.farm.evaluation import Setting, evaluate, maker_named

FIFO = Setting("paper-measured", "fifo")


@pytest.mark.parametrize(
    ("name", "qos", "workers"),
    [
        ("reactive-average", (46, 54), (10.4, 11.5)),
        ("reactive-maximum", (55, 70), (13.2, 14.4)),
        ("fixed-15", (98.6, 99.4), (14.7, 15)),
    ],
)
def test_baselines_perform_as_published(
    name: str, qos: tuple[float, float], workers: tuple[float, float]
) -> None:
    episodes = evaluate({name: maker_named(name)}, FIFO, seeds=60)[name]
    mean_qos = 100 * fmean(episode.qos for episode in episodes)
    mean_workers = fmean(episode.mean_workers for episode in episodes)
    assert qos[0] <= mean_qos <= qos[1]
    assert workers[0] <= mean_workers <= workers[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting", "qos", "workers", "actions"),
    [
        ("predictive", Setting("paper-measured", "fifo", True), 99.45, 14.4, 10),
        ("predictive", Setting("paper-described", "fifo", True), 99.45, 14.0, 8),
        ("predictive", Setting("paper-measured", "least-laxity", True), 99.6, 12.2, 8),
        ("predictive", Setting("paper-described", "least-laxity", True), 99.6, 12.2, 8),
        ("predictive", Setting("paper-measured", "fifo", False), 99.3, 15.2, 8),
        ("predictive", Setting("paper-described", "fifo", False), 99.7, 15.2, 8),
        ("predictive", Setting("paper-measured", "least-laxity", False), 99.6, 13.3, 8),
        ("sarsa", Setting("paper-measured", "fifo", True), 99.5, 14.7, 9),
        ("sarsa", Setting("paper-described", "fifo", True), 99.6, 14.7, 9),
        ("sarsa", Setting("paper-measured", "least-laxity", True), 99.55, 12.5, 8),
        ("sarsa", Setting("paper-described", "least-laxity", True), 99.55, 12.5, 8),
        ("square-root", Setting("paper-measured", "fifo", False), 98.6, 14.7, 14),
        ("square-root", Setting("paper-described", "fifo", False), 99.2, 14.7, 14),
        ("square-root", Setting("paper-measured", "least-laxity", False), 99.2, 12.7, 14),
        ("square-root", Setting("paper-described", "least-laxity", False), 99.6, 12.7, 14),
        ("dqn", Setting("paper-measured", "fifo", True), 99.0, 14.4, 12),
        ("dqn", Setting("paper-measured", "fifo", False), 98.4, 14.8, 12),
    ],
    ids=lambda value: str(value) if isinstance(value, Setting) else None,
)
def test_shipped_policies_serve_well_with_few_workers_and_actions(
    name: str, setting: Setting, qos: float, workers: float, actions: float
) -> None:
    episodes = evaluate({name: maker_named(name)}, setting)[name]
    assert 100 * fmean(episode.qos for episode in episodes) >= qos
    assert fmean(episode.mean_workers for episode in episodes) <= workers
    assert fmean(episode.actions for episode in episodes) <= actions
