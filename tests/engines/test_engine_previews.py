"""A preview on an engine is made from what was measured on that engine, and from its prices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines_here import processes

from shoal import Preview, Resources, Session, task
from shoal.execution.timeline import STARTS
from shoal.workflow import Output

pytestmark = pytest.mark.real

R = Resources(2048)


@task(name="double")
def double(number: int) -> int:
    return 2 * number


def flow() -> Output[int]:
    return double(double(1))


def run(session: Session) -> None:
    session.compute(flow(), name="flow", workers=1)
    session.settle()


def previewed(session: Session) -> Preview:
    return session.plan(flow(), name="flow", workers=1)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Session]:
    """A session on the embedded gateway."""
    with Session(folder=str(tmp_path)) as session:
        yield session


@pytest.fixture
def on_engine(tmp_path: Path) -> Iterator[Session]:
    """A session on an engine that shares the other one's history."""
    with (
        processes(tmp_path) as (platform, store),
        Session(platform=platform, store=store, folder=str(tmp_path)) as session,
    ):
        yield session


def start_seconds(preview: Preview) -> float:
    costs = preview.conditions.predictions.at("median")
    return costs.startup(R, warm=False, first=True)


def measured(session: Session, platform: str) -> list[float]:
    """The starts that history has of a platform."""
    blocks = [each for each in session.history.samples("flow") if each.platform == platform]
    return [s.seconds for each in blocks for s in each.samples if s.kind in STARTS]


def test_a_preview_uses_what_its_platform_measured(here: Session, on_engine: Session) -> None:
    run(here)
    local = start_seconds(previewed(here))
    first: Any = previewed(on_engine)
    assert first.basis == "1 run"
    assert start_seconds(first) == local
    run(on_engine)
    (slow,) = measured(on_engine, "process://")
    assert start_seconds(previewed(on_engine)) == pytest.approx(slow) != pytest.approx(local)
    assert start_seconds(previewed(here)) == local
    assert [each.platform for each in on_engine.history.runs()] == ["process://", ""]
    assert [previewed(session).basis for session in (here, on_engine)] == ["1 run", "1 run"]


def test_a_preview_has_the_prices_of_its_platform(here: Session, on_engine: Session) -> None:
    assert "(AWS Lambda, x86, us-east-1)" in str(previewed(here))
    assert "(no price list)" in str(previewed(on_engine))
    assert "AWS Lambda" in str(on_engine.plan(flow(), prices="aws-lambda"))
