"""An event for an engine's job is signed, and has no secret that others could read."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal import __version__
from shoal.errors import EnvironmentMismatch, GatewayRefused, SettingsError, Tampered
from shoal.platform.events import (
    FILE_VARIABLE,
    KEY_VARIABLE,
    STORE_VARIABLE,
    Deployment,
    Offer,
    Work,
    addressees,
    groups,
    opened,
    sealed,
)
from shoal.platform.invocation import CacheAccess, PythonEnvironment, RunContext, Start, UserCode
from shoal.storage.shard_urls import url_for
from shoal.types import Resources, RunId, WorkerId

DEPLOYMENT = Deployment(b"k" * 32, "redis://:open-sesame@store:6379/0")
OTHER = Deployment(b"o" * 32, DEPLOYMENT.store)
CONTEXT = RunContext(
    run=RunId("run-1"),
    key=b"r" * 32,
    store=DEPLOYMENT.store,
    code=UserCode(session="s"),
    cache=CacheAccess(where=DEPLOYMENT.store, key=b"c" * 32, nbytes=10),
)
STARTS = tuple(Start.first(WorkerId(f"w{i}"), Resources(256), 0.0, part=b"part") for i in range(5))
WORK = Work(entry="module:function", context=CONTEXT, starts=STARTS)
OFFER = Offer(job="j", entry="module:function", memory_mb=512, cpus=0.5, idle_seconds=3, seconds=60)


@pytest.mark.parametrize("sent", [WORK, OFFER], ids=["work", "offer"])
def test_what_is_sealed_is_opened_by_the_same_deployment(sent: Work | Offer) -> None:
    assert opened(sealed(sent, DEPLOYMENT), DEPLOYMENT) == sent


def test_engines_that_parse_json_may_pass_the_object() -> None:
    assert opened(json.loads(sealed(WORK, DEPLOYMENT)), DEPLOYMENT) == WORK


def test_an_event_has_neither_keys_nor_the_store() -> None:
    event = sealed(WORK, DEPLOYMENT).decode()
    assert CONTEXT.cache is not None
    keys = (CONTEXT.key, CONTEXT.cache.key, DEPLOYMENT.key)
    encoded = [form for key in keys for form in (key.hex(), base64.b64encode(key).decode())]
    assert not [secret for secret in (*encoded, "open-sesame") if secret in event]


def test_two_events_mask_a_key_differently() -> None:
    first, second = (json.loads(sealed(WORK, DEPLOYMENT))["shoal"] for _ in range(2))
    assert (
        json.loads(first)["work"]["context"]["key"] != json.loads(second)["work"]["context"]["key"]
    )


def test_the_workers_of_a_farm_meet_on_the_server_that_has_its_queues() -> None:
    store = "redis://a:1,redis://b:2,redis://c:3"
    deployment = Deployment(b"k" * 32, store)
    servers = set()
    for number in range(20):
        run = RunId(f"farm-{number}")
        where = url_for(store, run)
        sent = replace(CONTEXT, run=run, farm=True, store=where)
        work = opened(sealed(Work(entry="", context=sent, starts=STARTS), deployment), deployment)
        assert isinstance(work, Work)
        assert work.context.store == where
        assert work.context.cache is not None
        assert work.context.cache.where == store
        servers.add(where)
    assert len(servers) == 3


def test_an_event_of_another_deployment_is_refused() -> None:
    with pytest.raises(Tampered, match="Deploy again"):
        opened(sealed(WORK, OTHER), DEPLOYMENT)


def of_version(version: str, sent: Work | Offer) -> bytes:
    """An event that another version of Shoal has sealed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["shoal"], "__version__", version)
        return sealed(sent, DEPLOYMENT)


def test_an_event_of_another_version_is_refused_before_it_is_read() -> None:
    renewal = "shoal deploy lambda"
    needed = PythonEnvironment(python="3.11", shoal="9.9", renewal=renewal)
    work = replace(WORK, context=replace(CONTEXT, environment=needed))
    told = rf"have Shoal {__version__} instead of 9.9\. Run `{renewal}`"
    with pytest.raises(EnvironmentMismatch, match=told):
        opened(of_version("9.9", work), DEPLOYMENT)
    with pytest.raises(EnvironmentMismatch, match=r"pip install shoal==9\.9"):
        opened(of_version("9.9", OFFER), DEPLOYMENT)


def test_the_workers_of_an_event_are_known_whatever_its_version() -> None:
    found = json.loads(of_version("9.9", WORK))
    named = [(start.worker, start.epoch, start.memory_mb) for start in STARTS]
    assert addressees(found, DEPLOYMENT) == ("run-1", named)
    assert addressees(of_version("9.9", OFFER), DEPLOYMENT) == ("", [])
    found["version"] = __version__
    for ask in (addressees, opened):
        with pytest.raises(Tampered):
            ask(found, DEPLOYMENT)


def test_a_changed_event_is_refused() -> None:
    found = json.loads(sealed(OFFER, DEPLOYMENT))
    found["shoal"] = found["shoal"].replace("512", "4096")
    with pytest.raises(Tampered):
        opened(json.dumps(found), DEPLOYMENT)


@pytest.mark.parametrize("event", [b"", b"{}", b"[1]", b'{"shoal": 1}', b'"text"'])
def test_what_is_no_event_is_refused_in_words(event: bytes) -> None:
    with pytest.raises(GatewayRefused, match="isn't an event"):
        opened(event, DEPLOYMENT)


def test_a_job_finds_its_deployment_in_a_private_file_or_in_variables(tmp_path: Path) -> None:
    path = DEPLOYMENT.file(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    assert DEPLOYMENT.file(tmp_path) == path
    assert Deployment.of_environment({FILE_VARIABLE: str(path)}) == DEPLOYMENT
    variables = {KEY_VARIABLE: DEPLOYMENT.key.hex(), STORE_VARIABLE: DEPLOYMENT.store}
    assert Deployment.of_environment(variables) == DEPLOYMENT
    piped = {name: f"{value}\n" for name, value in variables.items()}
    assert Deployment.of_environment(piped) == DEPLOYMENT


@pytest.mark.parametrize("variables", [{}, {FILE_VARIABLE: "/nowhere"}, {KEY_VARIABLE: "not hex"}])
def test_a_job_without_a_deployment_says_what_to_set(variables: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=KEY_VARIABLE):
        Deployment.of_environment(variables)


def test_clients_of_one_user_share_a_deployment(tmp_path: Path) -> None:
    first, second = (Deployment.of_user(tmp_path, "redis://a") for _ in range(2))
    assert first == second
    assert "key" not in repr(first)


def test_starts_are_split_into_groups_of_about_the_same_size() -> None:
    assert groups(STARTS, 2) == [STARTS[:3], STARTS[3:]]
    assert groups(STARTS[:1], 8) == [STARTS[:1]]
