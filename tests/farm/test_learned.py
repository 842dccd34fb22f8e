"""Learned policies: what they observe, decide and store."""

import json
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.farm.evaluation import load_policy
from shoal.farm.learned import ACTIONS, INPUTS, TABLE, DoubleDqn, Sarsa, Senses
from shoal.farm.model import Observation

SEEN = Observation(2, 3, 0, 400, 14, 1.6, 3.1, 7.5, 0.98, 11, 1)


def network(*sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for number, (inside, outside) in enumerate(pairwise(sizes)):
        arrays[f"weight{number}"] = rng.normal(size=(outside, inside)).astype(np.float32)
        arrays[f"bias{number}"] = rng.normal(size=outside).astype(np.float32)
    return arrays


def test_a_tie_means_no_change() -> None:
    assert Sarsa({"table": np.zeros(TABLE)}, {}).decide(SEEN) == 0


def test_the_best_action_of_the_cell_is_taken() -> None:
    table = np.zeros(TABLE)
    table[Senses(True).cell(SEEN)] = [0.0, -1.0, 2.0]
    assert Sarsa({"table": table}, {"phase_clock": True}).decide(SEEN) == 1


def test_a_change_must_beat_staying_by_the_margin() -> None:
    table = np.zeros(TABLE)
    table[Senses(True).cell(SEEN)] = [0.0, -1.0, 2.0]
    assert Sarsa({"table": table}, {"margin": 1.9}).decide(SEEN) == 1
    assert Sarsa({"table": table}, {"margin": 2.1}).decide(SEEN) == 0


def test_starting_workers_count_as_present() -> None:
    senses = Senses(True)
    assert senses.cell(SEEN) == senses.cell(SEEN._replace(workers=15, changing=0))


def test_without_the_clock_a_policy_cannot_tell_early_from_late() -> None:
    later = SEEN._replace(phases_left=0, collected=1100)
    assert Senses(False).cell(SEEN) == Senses(False).cell(later)
    assert np.array_equal(Senses(False).inputs(SEEN), Senses(False).inputs(later))
    assert Senses(True).cell(SEEN) != Senses(True).cell(later)


def test_the_arrival_rate_is_smoothed_from_an_unknown_start() -> None:
    senses = Senses(False)
    first = SEEN._replace(arrival_rate=0.0)
    senses.cell(first)
    calm = senses.cell(SEEN._replace(arrival_rate=2.0))
    assert senses.cell(SEEN._replace(arrival_rate=8.0)) != calm
    senses.reset()
    senses.cell(first)
    assert senses.cell(SEEN._replace(arrival_rate=2.0)) == calm


def test_the_network_is_a_chain_of_layers() -> None:
    arrays = network(INPUTS, 4, len(ACTIONS))
    policy = DoubleDqn(arrays, {"phase_clock": True})
    hidden = np.maximum(arrays["weight0"] @ Senses(True).inputs(SEEN) + arrays["bias0"], 0)
    assert policy.values(SEEN) == pytest.approx(arrays["weight1"] @ hidden + arrays["bias1"])


@pytest.mark.parametrize(
    "policy",
    [
        Sarsa({"table": np.ones(TABLE, np.float32)}, {"order": "fifo"}),
        DoubleDqn(network(INPUTS, 4, 3), {"order": "fifo"}),
    ],
    ids=["sarsa", "dqn"],
)
def test_a_policy_survives_saving_and_loading(policy: Sarsa | DoubleDqn, tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    policy.save(path)
    loaded = load_policy(str(path))
    assert type(loaded) is type(policy)
    assert loaded.about["order"] == "fifo"
    assert loaded.values(SEEN) == pytest.approx(policy.values(SEEN))


def test_a_file_of_another_type_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    np.savez(path, about=np.array(json.dumps({"kind": "abacus"})))
    with pytest.raises(UsageError, match="'abacus'"):
        load_policy(str(path))


def test_a_file_that_is_no_policy_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    path.write_text("no")
    with pytest.raises(UsageError, match="can't be read"):
        load_policy(str(path))


def test_there_is_no_policy_for_an_order_without_training() -> None:
    with pytest.raises(UsageError, match="shoal farm train"):
        Sarsa.shipped("earliest-deadline")


@pytest.mark.parametrize(
    "path", sorted((files("shoal.farm") / "policies").iterdir()), ids=lambda path: path.name
)
def test_a_shipped_policy_contains_the_command_that_creates_it(path: Path) -> None:
    policy = load_policy(str(path))
    assert f"shoal farm train {policy.kind} {path.name} " in policy.about["command"]
    assert ("--no-clock" in policy.about["command"]) == (not policy.about["phase_clock"])
    assert f"--order {policy.about['order']} " in policy.about["command"]
