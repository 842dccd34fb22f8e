"""Every autoscaler passes the contract suite."""

from __future__ import annotations

from importlib.resources import files

import pytest

from shoal.farm import (
    Autoscaler,
    Fixed,
    ReactiveAverage,
    ReactiveMaximum,
    SquareRootStaffing,
)
from shoal.farm.evaluation import load_policy
from shoal.testing import AutoscalerContract


class TestFixed(AutoscalerContract):
    @pytest.fixture
    def autoscaler(self) -> Autoscaler:
        return Fixed(12)


class TestReactiveAverage(AutoscalerContract):
    @pytest.fixture
    def autoscaler(self) -> Autoscaler:
        return ReactiveAverage()


class TestReactiveMaximum(AutoscalerContract):
    @pytest.fixture
    def autoscaler(self) -> Autoscaler:
        return ReactiveMaximum()


class TestSquareRootStaffing(AutoscalerContract):
    @pytest.fixture(params=[{}, {"floor": 9, "patience": 3, "hold": 2, "inside": 0.5}], ids=str)
    def autoscaler(self, request: pytest.FixtureRequest) -> Autoscaler:
        return SquareRootStaffing(**request.param)


class TestShippedPolicies(AutoscalerContract):
    @pytest.fixture(
        params=sorted((files("shoal.farm") / "policies").iterdir()), ids=lambda path: path.name
    )
    def autoscaler(self, request: pytest.FixtureRequest) -> Autoscaler:
        return load_policy(str(request.param))
