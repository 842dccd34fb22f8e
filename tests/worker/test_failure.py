"""A failure as it travels, whatever the exception is like."""

from __future__ import annotations

import pytest

from shoal.errors import TaskError
from shoal.types import TaskId, WorkerId
from shoal.worker import failure
from shoal.worker.failure import failure_error, failure_parts

KEY = b"key"
HUGE = "a" * 1000 + "x" * 50_000_000 + "z" * 1000


def told(error: Exception) -> TaskError:
    """What the client raises for an exception that a worker has caught."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - any is to be told
        parts = failure_parts(caught, "t#0", WorkerId("w0"), "()", KEY)
    return failure_error(TaskId("t#0"), parts, (), KEY)


def test_exception_of_50_mb_is_cut_in_messages_and_is_the_cause_as_it_was() -> None:
    error = told(ValueError(HUGE))
    for shown in (str(error), error.reason, error.remote_traceback):
        assert len(shown) < 50_000
        assert "ValueError: aaa" in shown
        assert "characters in all" in shown
        assert "zzz" in shown
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.args == (HUGE,)


def test_text_that_can_be_shown_is_shown_whole() -> None:
    error = told(ValueError("short\n" * 100))
    assert error.reason == "ValueError: " + "short\n" * 100
    assert "in all" not in str(error)


def test_exception_that_is_too_heavy_to_travel_leaves_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure, "_HEAVIEST", 1000)
    error = told(ValueError("why", bytes(2000)))
    assert isinstance(error.__cause__, RuntimeError)
    assert "why" in str(error.__cause__)
