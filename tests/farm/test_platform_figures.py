"""The figures of the farm's platform: scaling and arrivals."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from shoal.cli.main import main
from shoal.farm.arrays import np
from shoal.farm.platform_figures import deployment, runtime, static_workload
from shoal.farm.workloads import COUNTS, PHASE, configured_rate


def test_more_workers_are_faster_but_take_longer_to_deploy() -> None:
    workload = static_workload()
    one, four, eight = (runtime(workers, workload) for workers in (1, 4, 8))
    assert one / four == pytest.approx(4, rel=0.05)
    assert four / eight == pytest.approx(2, rel=0.05)
    assert deployment(8) > deployment(4)


@pytest.mark.parametrize("phase", range(4))
def test_configured_rates_add_up_to_the_tasks_of_a_phase(phase: int) -> None:
    seconds = (np.arange(600) + 0.5) * PHASE / 600
    assert configured_rate(phase, seconds).mean() * PHASE == pytest.approx(COUNTS[phase])


def test_the_command_draws_both_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["farm", "figures", str(tmp_path)])
    assert "figure2.svg" in capsys.readouterr().out
    scaling = (tmp_path / "figure2.svg").read_text()
    arrivals = (tmp_path / "figure4.svg").read_text()
    for svg in (scaling, arrivals):
        ElementTree.fromstring(svg)
    assert all(word in scaling for word in ("deployment", "runtime", "speed-up"))
    assert all(word in arrivals for word in ("configured", "paper-described", "paper-measured"))
