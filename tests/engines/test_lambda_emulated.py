"""On Amazon's own runtime: what is peculiar to Lambda."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lambda_emulator import Emulator, emulator
from lambda_here import emulated_lambda

from observing import eventually
from shoal import Output, Session, task
from shoal.client.backends import open_engine
from shoal.engines.aws_api import Access
from shoal.engines.aws_lambda import CHECK, LambdaEngine, invoke
from shoal.errors import GatewayRefused
from shoal.settings import Settings
from store_servers import tcp_server, url_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        emulator() is None,
        reason="Lambda's emulator isn't installed: pip install awslambdaric aws-sam-cli",
    ),
]


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with tcp_server() as port:
        yield url_of(port)


@pytest.fixture
def functions(tmp_path: Path, store: str) -> Iterator[tuple[str, Emulator]]:
    with emulated_lambda(tmp_path, store, throttled=0, seconds=9) as found:
        yield found


@task
def step(number: int, *_after: int) -> int:
    time.sleep(0.5)
    return number


def chain(length: int) -> Output[int]:
    last = step(0)
    for number in range(1, length):
        last = step(number, last)
    return last


def test_a_worker_hands_over_before_lambda_ends_its_function(
    functions: tuple[str, Emulator], store: str, tmp_path: Path
) -> None:
    """The tasks take longer than a function may."""
    url, made = functions
    with Session(platform=url, store=store, folder=str(tmp_path), workers=1, lease=30) as session:
        assert session.compute(chain(20)) == [19]
        assert made.requests > 1
    assert not made.errors


@task
def slow_once(path: str) -> str:
    """Take very long the first time."""
    flag = Path(path)
    if not flag.exists():
        flag.touch()
        time.sleep(600)
    return "survived"


def test_a_worker_whose_environment_dies_restarts_long_before_its_lease_expires(
    functions: tuple[str, Emulator], store: str, tmp_path: Path
) -> None:
    """Lambda kills an environment that exceeds its memory, and tells the deployment so."""
    url, made = functions
    flag = tmp_path / "flag"
    with Session(platform=url, store=store, folder=str(tmp_path), workers=1, lease=3600) as session:
        run = session.submit(slow_once(str(flag)))
        assert eventually(flag.exists)
        made.kill()
        assert run.result() == "survived"
        assert eventually(lambda: not session.platform.active(run.id))


def test_a_process_that_was_frozen_for_longer_than_leases_goes_on(
    functions: tuple[str, Emulator], store: str, tmp_path: Path
) -> None:
    url, made = functions
    with Session(platform=url, store=store, folder=str(tmp_path), workers=1, lease=20) as session:
        assert session.compute(step(1)) == [1]
        for _ in range(2):
            time.sleep(1.5)
            assert session.compute(step(1), lease=1) == [1]
    assert made.cold == 1
    assert not made.errors


def test_a_function_tells_what_it_has(functions: tuple[str, Emulator]) -> None:
    endpoint = functions[0].partition("endpoint=")[2]
    with closing(Access(None, endpoint)) as access:
        answer = invoke(access, "shoal-512", json.dumps(CHECK).encode(), "RequestResponse")
    assert json.loads(answer)["python"] == platform.python_version()


def test_the_doctor_calls_each_function(
    functions: tuple[str, Emulator], store: str, tmp_path: Path
) -> None:
    settings = Settings(store=store, folder=str(tmp_path))
    engine, _ = open_engine(functions[0], settings)
    assert isinstance(engine, LambdaEngine)
    told = engine.check(thorough=True)
    assert told == "3 functions shoal-… in us-east-1 answer; they weren't deployed from here"
    engine.close()


def test_a_function_that_does_not_exist_is_named(
    functions: tuple[str, Emulator], store: str, tmp_path: Path
) -> None:
    url = functions[0].replace("512,1024,2048", "3008")
    with pytest.raises(GatewayRefused, match=r"no function 'shoal-3008'.*deploy"):
        Session(platform=url, store=store, folder=str(tmp_path))
