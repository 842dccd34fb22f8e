"""The paper's own agents train, decide as the paper's, and are saved and loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.farm.arrays import np
from shoal.farm.evaluation import load_policy
from shoal.farm.model import Observation
from shoal.farm.paper_agents import PAPER_DQN, PAPER_SARSA, train_paper_dqn, train_paper_sarsa
from shoal.farm.paper_policies import ACTIONS, EDGES, SCALES, PaperDqn, PaperSarsa, cell, inputs
from shoal.farm.reward import Reward

SEEN = Observation(2, 12, 0, 100, 13, 1.7, 3.0, 5.0, 0.97, 9, 1)


def test_a_cell_is_that_of_the_papers_bins() -> None:
    assert cell(SEEN) == (2, 4, 4, 2, 4, 4)
    assert cell(SEEN[:9]) == cell(SEEN)  # a vector of Eq. 1
    assert cell(SEEN._replace(waiting=31, on_time=1.0)) == (2, 6, 4, 2, 4, 5)


def test_the_network_has_an_input_for_each_field_of_the_equation() -> None:
    assert len(inputs(SEEN)) == len(SCALES) == 9
    assert inputs(SEEN)[4] == pytest.approx(13 / 32)


def test_a_tie_adds_a_worker() -> None:
    shape = (*(len(edges) + 1 for edges in EDGES.values()), len(ACTIONS))
    policy = PaperSarsa({"table": np.zeros(shape, np.float32)}, {})
    assert policy.decide(SEEN) == 1
    policy.table[cell(SEEN)] = [0.0, 0.0, 0.1]
    assert policy.decide(SEEN) == -1


def test_the_presets_are_the_papers() -> None:
    assert (PAPER_SARSA.episodes, PAPER_DQN.episodes) == (260, 80)
    assert PAPER_SARSA.workloads == PAPER_DQN.workloads == ("paper-measured",)
    assert PAPER_SARSA.reward == PAPER_DQN.reward == Reward()


def test_the_table_learns_the_same_from_the_same_seed(tmp_path: Path) -> None:
    short = replace(PAPER_SARSA, episodes=3)
    policy, again = train_paper_sarsa(short), train_paper_sarsa(short)
    assert np.array_equal(policy.table, again.table)
    assert np.count_nonzero(policy.table) > 20
    policy.save(tmp_path / "policy.npz")
    loaded = load_policy(str(tmp_path / "policy.npz"))
    assert isinstance(loaded, PaperSarsa)
    assert loaded.decide(SEEN) == policy.decide(SEEN)


def test_the_network_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    few, more = (train_paper_dqn(replace(PAPER_DQN, episodes=n)) for n in (1, 16))
    assert [few.arrays[f"weight{layer}"].shape for layer in range(3)] == [
        (128, 9),
        (64, 128),
        (3, 64),
    ]
    assert not np.array_equal(few.arrays["weight0"], more.arrays["weight0"])
    more.save(tmp_path / "policy.npz")
    loaded = load_policy(str(tmp_path / "policy.npz"))
    assert isinstance(loaded, PaperDqn)
    assert loaded.decide(SEEN) == more.decide(SEEN)
