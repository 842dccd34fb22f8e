"""The job of a function: what it knows of its engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.client.backends import WORKER_ENTRY
from shoal.engines import aws_lambda
from shoal.errors import EnvironmentMismatch
from shoal.platform import job
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment, Work, sealed
from shoal.platform.invocation import RunContext, Start, UserCode
from shoal.platform.job import board_of
from shoal.platform.remote import RemotePlatform
from shoal.storage.base import Opening
from shoal.storage.keys import CLIENT
from shoal.storage.letters import WorkerLost
from shoal.storage.sharded import open_store
from shoal.types import LossReason, Resources, RunId, WorkerId
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


def test_workers_that_a_function_of_another_version_refuses_are_reported_to_their_client(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may not tell the client how a call ended."""
    run = RunId("run-1")
    starts = tuple(Start.first(WorkerId(f"w{i}"), Resources(256), 0.0) for i in range(2))
    context = RunContext(run=run, key=b"r" * 32, store="", code=UserCode(session="s"))
    with pytest.MonkeyPatch.context() as client:
        client.setattr(sys.modules["shoal"], "__version__", "9.9")
        event = sealed(Work(entry=WORKER_ENTRY, context=context, starts=starts), deployment)
    monkeypatch.setenv(STORE_VARIABLE, deployment.store)
    monkeypatch.setenv(KEY_VARIABLE, deployment.key.hex())
    store = open_store(deployment.store)
    store.open(run, Opening([start.worker for start in starts], {}))
    with pytest.raises(EnvironmentMismatch, match=r"instead of 9\.9"):
        job.run(event)
    letters = [letter for _, letter in store.receive(run, CLIENT, "", 1.0)]
    store.disconnect()
    lost = [letter for letter in letters if isinstance(letter, WorkerLost)]
    assert [each.worker for each in lost] == ["w0", "w1"]
    assert all("instead of 9.9" in each.loss.detail for each in lost)
    assert {each.loss.reason for each in lost} == {LossReason.ERROR}


def test_jobs_of_two_versions_share_no_board(deployment: Deployment) -> None:
    """A client's job would take what it can't read, and another client's worker with it."""
    newer = board_of(deployment, stays=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["shoal"], "__version__", "9.9")
        older = board_of(deployment, stays=True)
    older.push({"256 0.1": [b"event"]})
    assert older.waiting()
    assert not newer.waiting()
    for board in (newer, older):
        board.disconnect()


@pytest.mark.parametrize(
    ("condition", "lost"), [("RetriesExhausted", ["w0"]), ("EventAgeExceeded", ["w0", "w1"])]
)
def test_the_workers_of_a_call_that_failed_restart(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, condition: str, lost: list[str]
) -> None:
    """A call that was made has passed its other workers on, or their leases expire."""
    run = RunId("run-1")
    starts = tuple(Start.first(WorkerId(f"w{i}"), Resources(256), 0.0) for i in range(2))
    context = RunContext(run=run, key=b"r" * 32, store="", code=UserCode(session="s"))
    event = json.loads(sealed(Work(entry=WORKER_ENTRY, context=context, starts=starts), deployment))
    monkeypatch.setenv(STORE_VARIABLE, deployment.store)
    monkeypatch.setenv(KEY_VARIABLE, deployment.key.hex())
    monkeypatch.setenv(job.PLATFORM_VARIABLE, "lambda://shoal?memory=512")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    sent: list[str] = []
    monkeypatch.setattr(
        RemotePlatform, "send", lambda _, __, starts: sent.extend(each.worker for each in starts)
    )
    store = open_store(deployment.store)
    store.open(run, Opening([start.worker for start in starts], kind="256 1.0"))
    record = {"requestContext": {"condition": condition}, "requestPayload": event}
    assert aws_lambda.handler(record, None) == {"lost": lost}
    assert sent == lost
    assert aws_lambda.handler(record | {"requestPayload": record}, None) == {"lost": []}
    assert sent == lost
    store.disconnect()


def test_what_lambda_says_about_a_failure_is_its_reason() -> None:
    killed = "RequestId: 1 Error: Runtime exited with error: signal: killed"
    assert aws_lambda.reason_of(killed) is LossReason.OUT_OF_MEMORY
    assert aws_lambda.reason_of("2026 Task timed out after 9.0 s") is LossReason.TIME_LIMIT
    assert aws_lambda.reason_of("exit status 1") is LossReason.DIED
