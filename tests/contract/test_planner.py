"""Every planner passes the contract suite."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from shoal import AutoPlanner, NonUniformPlanner, Planner, UniformPlanner, WukongPlanner
from shoal.planning.spread import SpreadPlanner
from shoal.testing import PlannerContract


@pytest.mark.slow
class TestAutoPlanner(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
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
