"""Several gateways are one platform; one that dies is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from observing import eventually
from shoal import Session, task
from shoal.client.backends import token_file
from shoal.errors import GatewayUnavailable, TokenRefused
from shoal.platform.fleet import Fleet
from shoal.platform.http import HttpPlatform
from shoal.platform.tokens import read_token
from shoal.storage.shared_memory import probe
from shoal.types import RunId
from standing_gateway import StandingGateway
from store_servers import tcp_server, url_of
from tls_proxy import tls_in_front

pytestmark = pytest.mark.real


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[StandingGateway]]:
    found = [StandingGateway(tmp_path / name) for name in ("a", "b")]
    yield found
    for gateway in found:
        gateway.process.kill()
        gateway.process.communicate()


@pytest.fixture
def session(gateways: list[StandingGateway], tmp_path: Path) -> Iterator[Session]:
    urls = ",".join(gateway.url for gateway in gateways)
    with tcp_server() as port:
        given = {"platform": urls, "store": url_of(port), "folder": str(tmp_path / "data")}
        with Session(**given, workers=4, lease=2) as opened:
            yield opened


@task
def meet(folder: str, number: int, ready: int) -> int:
    """Return once so many tasks have begun."""
    Path(folder, str(number)).touch()
    while len(list(Path(folder).iterdir())) < ready:
        time.sleep(0.01)
    return number


def test_workers_are_spread_over_all_gateways(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    outputs = [meet(str(folder), number, 4) for number in range(4)]
    assert session.compute(*outputs, planner="spread") == [0, 1, 2, 3]
    statuses = [m.gateway.status() for m in session.platform._members]  # type: ignore[attr-defined]
    assert [status["invocations"]["cold"] for status in statuses] == [2, 2]


@task
def slow(seconds: float) -> float:
    print("slow")
    time.sleep(seconds)
    return seconds


def test_a_run_survives_the_death_of_a_gateway(
    session: Session, gateways: list[StandingGateway]
) -> None:
    run = session.submit(*[slow(3.0 + n / 10) for n in range(4)], planner="spread")
    assert eventually(lambda: len(session.platform.running(run.id) or ()) == 4)
    gateways[1].process.kill()
    assert run.result() == [3.0, 3.1, 3.2, 3.3]
    assert session.compute(slow(0.0)) == [0.0]
    assert {line.text for line in run.logs()} == {"slow"}


@task
def add(*numbers: int) -> int:
    return sum(numbers)


def test_workers_start_others_on_gateways_whose_authority_is_private(
    certificate: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        urls = []
        for name in ("a", "b"):
            gateway = StandingGateway(tmp_path / name, variables={"SHOAL_TOKEN": "token"})
            stack.callback(gateway.end)
            secured = stack.enter_context(tls_in_front(certificate, gateway.port))
            urls.append(f"https://127.0.0.1:{secured}")
        session = stack.enter_context(
            Session(
                platform=",".join(urls), token="token", ca_file=str(certificate),
                store=url_of(stack.enter_context(tcp_server())), folder=str(tmp_path / "data"),
                workers=4, lease=300,
            )
        )  # fmt: skip
        root = add(1)
        fan_out = [add(root, number) for number in range(4)]
        assert session.compute(add(*fan_out), planner="wukong", timeout=60) == [10]


def test_authorities_of_a_plain_gateway_do_not_travel(certificate: Path) -> None:
    plain = HttpPlatform("http://127.0.0.1:1", "token", ca_file=str(certificate))
    secured = HttpPlatform("https://127.0.0.1:1", "token", ca_file=str(certificate))
    assert plain.authorities is None
    assert secured.authorities == certificate.read_text()
    again = HttpPlatform("https://127.0.0.1:1", "token", ca_data=secured.authorities)
    assert again.authorities == secured.authorities


def test_if_no_gateway_answers_that_is_said(
    session: Session, gateways: list[StandingGateway]
) -> None:
    for gateway in gateways:
        gateway.process.kill()
        gateway.process.wait()
    with pytest.raises(GatewayUnavailable, match="can't be reached"):
        session.platform.active(RunId("run-1"))


def test_what_a_gateway_knows_that_can_not_be_reached_is_unknown(
    session: Session, gateways: list[StandingGateway]
) -> None:
    """Its machine may have no shared memory with this one, and its workers may be at work."""
    platform, run = session.platform, RunId("run-1")
    with probe(["/"]) as (nonce, path):
        assert platform.probed(nonce) == path
        assert platform.sees_folders(nonce)
        assert (platform.running(run), platform.active(run)) == ([], False)
        gateways[1].process.kill()
        gateways[1].process.wait()
        assert platform.probed(nonce) is None
        assert not platform.sees_folders(nonce)
    assert platform.running(run) is None
    assert platform.active(run) is None


def test_a_gateway_that_rejects_the_token_is_named(gateways: list[StandingGateway]) -> None:
    tokens = [read_token(token_file(gateways[0].port))[0], "wrong"]
    fleet = Fleet([HttpPlatform(g.url, t) for g, t in zip(gateways, tokens, strict=True)])
    with pytest.raises(TokenRefused, match=gateways[1].url):
        fleet.active(RunId("run-1"))
    fleet.close()


def test_a_fleet_has_what_its_gateways_have_together(session: Session) -> None:
    members = [m.gateway for m in session.platform._members]  # type: ignore[attr-defined]
    assert session.platform.capacity == sum(m.capacity or 0 for m in members)
    assert session.platform.memory_mb == members[0].memory_mb
    assert session.platform.probed("ab" * 16) is None
