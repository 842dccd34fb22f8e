"""Every engine starts, watches and ends jobs; `shoal.testing` has the suite."""

from __future__ import annotations

import pytest

from shoal.engines.process import ProcessEngine
from shoal.testing import EngineContract
from shoal.testing.engine_contract import MakeEngine

pytestmark = pytest.mark.real


class TestProcessEngine(EngineContract):
    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return lambda deployment, folder: ProcessEngine("process://", deployment, folder)
