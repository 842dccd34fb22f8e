"""The job of a function: what it knows of its engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.client.backends import WORKER_ENTRY
from shoal.platform import job
from shoal.platform.events import Deployment
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setenv("HOME", "/nonexistent")
    with tcp_server() as port:
        yield Deployment(b"k" * 32, url_of(port))


def test_workers_may_grow_to_the_largest_function(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever memory the function has that one of them happens to run in."""
    url = "lambda://shoal?region=eu-west-1&memory=512,10240"
    monkeypatch.setenv(job.PLATFORM_VARIABLE, url)
    with closing(job._function_job(deployment, WORKER_ENTRY)) as made:
        assert made._gateway.memory_mb == 10240 - job._OWN_MB


def test_tasks_get_the_variables_that_the_function_names(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(job.PLATFORM_VARIABLE, raising=False)
    monkeypatch.setenv(job.PASS_VARIABLE, "AWS_*")
    with closing(job._function_job(deployment, WORKER_ENTRY)) as made:
        passed = made._gateway._sandbox_env
        given = {"AWS_SESSION_TOKEN": "t", "SHOAL_STORE": "s", "OTHER": "o"}
        assert passed.environment(given) == {"AWS_SESSION_TOKEN": "t"}
        assert not Path("/nonexistent").exists()
