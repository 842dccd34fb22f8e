"""What a gateway, its zygotes and its sandboxes tell each other, as JSON.

1. A gateway sends commands to a zygote, and the zygote sends reports. If files come with a command,
   the zygote confirms them (`FilesReceived`).
2. A sandbox sends an answer to each invocation (`SandboxMessage`).
3. Text that JSON can't carry is escaped before it is sent (`printable`).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class _Message(Struct, frozen=True, tag_field="op"):
    """What travels as a JSON object that names its type."""


class Preload(_Message, frozen=True, tag="preload"):
    """Import packages."""

    modules: tuple[str, ...]


class ForkBranch(_Message, frozen=True, tag="branch"):
    """Fork a branch, which takes commands over the socket that comes with this."""


class ForkSandbox(_Message, frozen=True, tag="fork"):
    """Fork a sandbox, which uses the files that come with this."""

    sandbox: int
    memory_mb: int
    cpus: float


class KillSandbox(_Message, frozen=True, tag="kill"):
    """Kill a sandbox."""

    sandbox: int


Command = Preload | ForkBranch | ForkSandbox | KillSandbox


class ZygoteReady(_Message, frozen=True, tag="ready"):
    """The zygote has been started."""

    limits: str
    """How sandboxes are limited."""
    isolation: str
    """How sandboxes are isolated, or why they aren't."""
    warning: str
    """What to tell the user about limits; may be empty."""


class FilesReceived(_Message, frozen=True, tag="received"):
    """The files of a command have arrived."""


class SandboxForked(_Message, frozen=True, tag="forked"):
    """A sandbox runs."""

    sandbox: int
    pid: int
    """0 in a namespace, where the gateway can't use it."""


class SandboxPaused(_Message, frozen=True, tag="paused"):
    """A sandbox's process has been stopped, or continued."""

    sandbox: int
    paused: bool


class SandboxExited(_Message, frozen=True, tag="exited"):
    """A sandbox has ended."""

    sandbox: int
    code: int
    """Its exit code; negative: the signal that killed it."""
    out_of_memory: bool


SandboxReport = SandboxForked | SandboxPaused | SandboxExited
ZygoteReport = ZygoteReady | SandboxReport


class SandboxAnswer(Struct, frozen=True, omit_defaults=True):
    """A sandbox has carried out an invocation."""

    reusable: bool
    """Whether it can run another."""
    error: str = ""
    """The traceback of an exception that the worker didn't catch."""
    changed: str = ""
    """What the worker changed in its process for good."""


encoded = msgspec.json.Encoder().encode
"""A message as JSON."""
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_reports: msgspec.json.Decoder[ZygoteReport | FilesReceived] = msgspec.json.Decoder(
    ZygoteReport | FilesReceived
)
_answers = msgspec.json.Decoder(SandboxAnswer)


def command_of(data: bytes) -> Command:
    """A command from JSON."""
    return _commands.decode(data)


def report_of(data: bytes | bytearray) -> ZygoteReport | FilesReceived:
    """A report, or the receipt of a command's files, from JSON."""
    return _reports.decode(data)


def answer_of(data: bytes) -> SandboxAnswer:
    """A sandbox's answer from JSON; raises `ValueError` if it isn't one."""
    try:
        return _answers.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"its answer to its gateway is malformed: {error}") from error


def printable(text: str) -> str:
    """Text without surrogates, which stand for bytes that aren't UTF-8."""
    return text.encode(errors="backslashreplace").decode()
