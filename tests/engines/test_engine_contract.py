"""Every engine that is installed here does what its contract says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from engines_here import ENGINES, parameters

from shoal.platform.engine import Engine, maker_of
from shoal.platform.events import Deployment
from shoal.testing import EngineContract, FunctionEngineContract
from shoal.testing.engine_contract import MakeEngine

pytestmark = pytest.mark.real


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that is up."""

    url: str
    store: str
    folder: Path


@pytest.fixture(scope="module")
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    folder = tmp_path_factory.mktemp("data")
    with ENGINES[request.param](folder) as (url, store):
        yield RunningEngine(url, store, folder)


@pytest.mark.parametrize("started", parameters("slurm", "docker", "podman", "ray"), indirect=True)
class TestEnginesWhoseJobsStay(EngineContract):
    @pytest.fixture
    def store(self, started: RunningEngine) -> str:  # type: ignore[override]
        return started.store

    @pytest.fixture
    def make_engine(self, started: RunningEngine) -> MakeEngine:
        return partial(maker_of(started.url), started.url)


@pytest.mark.parametrize(
    "started",
    parameters("http function", "http function that calls itself", "functions-framework", "lambda"),
    indirect=True,
)
class TestEnginesThatCallFunctions(FunctionEngineContract):
    @pytest.fixture
    def store(self, started: RunningEngine) -> str:  # type: ignore[override]
        return started.store

    @pytest.fixture
    def deployment(self, started: RunningEngine) -> Deployment:
        return Deployment.of_user(started.folder, started.store)

    @pytest.fixture
    def engine(self, started: RunningEngine, deployment: Deployment) -> Iterator[Engine]:
        engine = maker_of(started.url)(started.url, deployment, started.folder)
        yield engine
        engine.close()
