"""Every engine starts, watches and ends jobs; `shoal.testing` has the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engines.process import ProcessEngine
from shoal.platform.events import Deployment
from shoal.testing import EngineContract
from shoal.testing.engine_contract import MakeEngine

pytestmark = pytest.mark.real


class TestProcessEngine(EngineContract):
    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return lambda deployment, folder: ProcessEngine("process://", deployment, folder)


def test_the_url_says_how_many_processes_may_run_at_once(tmp_path: Path) -> None:
    deployment = Deployment(b"k" * 32, "redis://localhost")
    engine = ProcessEngine("process://?capacity=32", deployment, tmp_path)
    assert engine.facts.capacity == 32
