"""Every planner passes the contract suite."""

from __future__ import annotations

import runpy
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

import shoal.planning.base
import shoal.planning.search
from shoal import AutoPlanner, NonUniformPlanner, Planner, UniformPlanner, WukongPlanner
from shoal.planning.spread import SpreadPlanner
from shoal.testing import PlannerContract


@pytest.mark.slow
class TestAutoPlanner(PlannerContract):
    @pytest.fixture
    def planner(self, monkeypatch: pytest.MonkeyPatch) -> Planner:
        """It searches by a clock that advances with each look."""
        ticks = (0.005 * look for look in count())
        clock = SimpleNamespace(monotonic=lambda: next(ticks))
        for module in (shoal.planning.base, shoal.planning.search):
            monkeypatch.setattr(module, "time", clock)
        return AutoPlanner()


class TestUniformPlanner(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        return UniformPlanner()


class TestNonUniformPlanner(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        return NonUniformPlanner()


class TestSpreadPlanner(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        return SpreadPlanner()


class TestWukongPlanner(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        return WukongPlanner()


class TestExample(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        path = Path(__file__).parents[2] / "examples" / "custom_planner.py"
        planner: Planner = runpy.run_path(str(path))["PlannerByName"]()
        return planner
