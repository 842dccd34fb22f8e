"""Messages between gateway, zygote and sandbox arrive as they were sent, or are rejected."""

from __future__ import annotations

import msgspec
import pytest

from shoal.platform.sandbox_messages import (
    Command,
    FilesReceived,
    ForkBranch,
    ForkSandbox,
    KillSandbox,
    Preload,
    SandboxAnswer,
    SandboxExited,
    SandboxForked,
    SandboxPaused,
    ZygoteReady,
    ZygoteReport,
    answer_of,
    command_of,
    encoded,
    printable,
    report_of,
)


@pytest.mark.parametrize(
    "command",
    [Preload(("numpy", "a.b")), ForkBranch(), ForkSandbox(1, 2048, 1.5), KillSandbox(1)],
    ids=lambda command: type(command).__name__,
)
def test_a_zygote_gets_the_command_that_was_sent(command: Command) -> None:
    assert command_of(encoded(command)) == command


@pytest.mark.parametrize(
    "report",
    [
        ZygoteReady("cgroup-2", "namespaces", "no groups"),
        FilesReceived(),
        SandboxForked(1, 77),
        SandboxPaused(1, True),
        SandboxExited(1, -9, True),
    ],
    ids=lambda report: type(report).__name__,
)
def test_a_gateway_gets_the_report_that_was_sent(report: ZygoteReport) -> None:
    assert report_of(encoded(report)) == report


def test_a_command_is_no_report() -> None:
    with pytest.raises(msgspec.ValidationError):
        report_of(encoded(KillSandbox(1)))


@pytest.mark.parametrize(
    "answer",
    [SandboxAnswer(True), SandboxAnswer(False, "ValueError: é", "umask, user")],
    ids=["short", "long"],
)
def test_a_gateway_gets_the_answer_that_was_sent(answer: SandboxAnswer) -> None:
    assert answer_of(encoded(answer)) == answer


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage",
        b"[1, 2]",
        b"{}",
        b'{"reusable": "yes"}',
        b'{"reusable": true, "error": 7}',
        b'{"reusable": true, "error": "\\udc80"}',
        b'{"reusable": true, "error": "\xff"}',
        b"[" * 40_000,
    ],
)
def test_an_answer_that_is_malformed_is_a_value_error(said: bytes) -> None:
    with pytest.raises(ValueError, match="its answer to its gateway is malformed"):
        answer_of(said)


def test_text_with_bytes_that_are_not_utf_8_can_be_sent() -> None:
    text = b"caf\xe9 \xc3\xa9".decode(errors="surrogateescape")
    answer = SandboxAnswer(False, printable(text))
    assert answer_of(encoded(answer)).error == "caf\\udce9 é"
