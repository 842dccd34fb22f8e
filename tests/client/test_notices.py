"""Calls that request more than is available cause one warning each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform_examples import gateway
from shoal import Farm, Session, ShoalExecutor, system, task
from shoal.client.notices import Notices, Room
from shoal.execution.pool import SANDBOXES
from shoal.platform.gateway import LocalGateway
from shoal.platform.server import GatewayServer
from shoal.settings import Settings
from shoal.testing import InProcessPlatform
from shoal.types import MB_PER_CPU


@task
def one() -> int:
    return 1


@pytest.fixture(scope="module")
def embedded(private_folder: Path) -> Iterator[Session]:
    with Session() as session:
        yield session


def test_each_notice_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices()
    notices.say("It rains.")
    notices.say("It rains.")
    notices.say("3 are late.", about="late")
    notices.say("4 are late.", about="late")
    assert caplog.messages == ["It rains.", "3 are late."]


def test_a_platform_of_fixed_size_is_named_as_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    platform = InProcessPlatform(lambda frame, running: True, capacity=2)
    room = Room(platform, Settings(), Notices(), embedded=False)
    room.make(2)
    assert caplog.messages == []
    room.make(3)
    room.make(3)
    assert caplog.messages == [
        "3 workers are asked for, but the platform has room for 2: the others wait. To run all at "
        "once, give it a larger capacity."
    ]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("lambda://shoal?region=eu-west-1", "set concurrency=3 in its URL"),
        ("docker:///image", "set capacity=3 in its URL"),
        ("https://a:8470,https://b:8470", "add a gateway, or restart some"),
        ("https://a:8470", "restart it with `shoal gateway --sandboxes 3`"),
    ],
)
def test_the_advice_fits_the_platform(
    url: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    platform = InProcessPlatform(lambda frame, running: True, capacity=2)
    Room(platform, Settings(platform=url), Notices(), embedded=False).make(3)
    assert advice in caplog.text
    assert ("shoal gateway" in caplog.text) == (url == "https://a:8470")


@pytest.mark.real
def test_the_embedded_gateway_has_room_for_the_workers_of_a_run(
    embedded: Session, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(embedded.platform, LocalGateway)
    embedded.plan(one(), workers=2)
    assert embedded.platform.capacity == SANDBOXES
    preview = embedded.plan(one(), workers=SANDBOXES + 8)
    assert embedded.platform.capacity == SANDBOXES + 8
    assert preview.conditions.pool().capacity == SANDBOXES + 8
    assert caplog.messages == []


@pytest.mark.real
def test_the_embedded_gateway_has_room_for_an_executor_and_a_farm(embedded: Session) -> None:
    assert isinstance(embedded.platform, LocalGateway)
    with ShoalExecutor(50, session=embedded):
        assert embedded.platform.capacity == 50
    with Farm(one.function, workers=(1, 60), session=embedded):
        assert embedded.platform.capacity == 60


@pytest.mark.real
def test_a_deadline_that_no_plan_meets_is_warned_about_at_the_call_once(
    embedded: Session, caplog: pytest.LogCaptureFixture
) -> None:
    without = "one: no plan meets the deadline of 0.001 s: even an empty run takes about"
    for _ in range(2):
        assert embedded.compute(one(), deadline=0.001, history=False) == [1]
    assert [message.startswith(without) for message in caplog.messages] == [True]
    for _ in range(2):  # the second run learns from the first
        embedded.compute(one(), name="learnt")
        embedded.settle()
    for _ in range(2):
        assert embedded.compute(one(), name="learnt", deadline=1e-6) == [1]
    found = "learnt: no plan was found that meets the deadline of 1e-06 s: this one is the fastest"
    assert [message.startswith(found) for message in caplog.messages] == [False, True]


@pytest.mark.real
def test_goals_that_may_be_met_cause_no_warning(
    embedded: Session, caplog: pytest.LogCaptureFixture
) -> None:
    assert embedded.compute(one(), deadline=60) == [1]
    assert embedded.compute(one(), budget=1.0) == [1]
    embedded.plan(one(), deadline=0.001)  # a preview shows its notes itself
    assert caplog.messages == []


@pytest.mark.real
def test_cpus_that_the_machine_lacks_are_warned_about_once(
    embedded: Session, caplog: pytest.LogCaptureFixture
) -> None:
    cores = system.cores()
    assert embedded.compute(one(), cpus=cores) == [1]
    assert embedded.compute(one(), memory_mb=2 * cores * MB_PER_CPU) == [1]
    assert caplog.messages == []
    for planner in ("auto", "auto", "wukong"):
        assert embedded.compute(one(), cpus=cores + 1, planner=planner) == [1]
    assert caplog.messages == [
        f"cpus={cores + 1} is asked for, but the workers' machine has {cores}: a "
        "worker gets no more than that."
    ]


class Offering:
    """A platform that says how many workers it offers, or doesn't."""

    def __init__(self, default_workers: int | None) -> None:
        self.default_workers = default_workers


@pytest.mark.parametrize(
    ("offered", "asked", "workers"),
    [(7, None, 7), (7, 3, 3), (None, 3, 3), (None, None, system.cores())],
)
def test_a_run_has_as_many_workers_as_are_set_or_the_platform_offers(
    offered: int | None, asked: int | None, workers: int
) -> None:
    platform: Any = Offering(offered)
    room = Room(platform, Settings(), Notices(), embedded=False)
    assert room.workers(asked) == workers


@pytest.mark.real
def test_a_setting_that_leaves_too_little_room_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Session(sandboxes=3) as session:
        session.plan(one(), workers=3)
        assert caplog.messages == []
        session.plan(one(), workers=64)
        session.plan(one(), workers=64)
    assert caplog.messages == [
        "64 workers are asked for, but sandboxes=3 allows only 3: the others wait. To run all "
        "at once, set sandboxes=64."
    ]


@pytest.mark.real
def test_a_remote_gateway_with_too_little_room_is_warned_about_at_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(tmp_path, capacity=2) as local:
        server = GatewayServer(local, "token")
        try:
            with Session(platform=server.url, token="token", workers=5) as session:
                session.plan(one())
                session.plan(one())
        finally:
            server.close()
    assert caplog.messages == [
        f"5 workers are asked for, but the gateway at {server.url} has room for 2: the others "
        "wait. To run all at once, restart it with `shoal gateway --sandboxes 5`."
    ]
