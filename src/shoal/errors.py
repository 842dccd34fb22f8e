"""Define every exception that Shoal raises, grouped by who is at fault.

    ShoalError
    ├── UsageError                 the caller
    │   ├── SettingsError          a setting is unknown or has the wrong type
    │   ├── WorkflowError          the workflow can't be built or planned
    │   │   ├── PlanError          a plan breaks a rule
    │   │   └── ReactionError      a reaction of an optimization fails
    │   ├── NotPicklable           a value can't be pickled
    │   ├── CodeTooLarge           the project's modules are too large to send
    │   ├── RunGoesOn              a detached run outlives the session that waited for it
    │   └── UnknownRun             no run has this id
    │       └── NothingKept        the run has no saved outputs to resume from
    ├── TaskError                  the user's code
    │   ├── TaskTimeout            the task exceeded its timeout
    │   ├── OutOfMemory            the task exceeded its worker's memory limit
    │   ├── InputChanged           the task modified an input in place (`check_inputs` is set)
    │   └── WorkerDied             the task killed its worker's process
    ├── RunEnded                   the run ended without a result
    │   ├── RunCancelled           it was cancelled
    │   ├── RunTimeout             the result was not ready in time
    │   └── RunStuck               the run stopped making progress
    ├── PlatformError              the platform
    │   ├── GatewayUnavailable     the gateway can't be reached
    │   │   └── TokenRefused       the gateway rejected the token
    │   ├── GatewayRefused         the gateway rejected the request
    │   │   └── GatewayBusy        the gateway is overloaded; retry later
    │   └── EnvironmentMismatch    workers have other versions than the client
    ├── StoreError                 the store
    │   ├── StoreUnavailable       the store can't be reached
    │   │   ├── StoreInterrupted   the connection dropped, or the server is still loading
    │   │   └── ShardUnavailable   one of several servers can't be reached
    │   ├── ShardLost              one of several servers lost its outputs
    │   ├── StoreRefused           the store returned an error
    │   ├── Tampered               a blob has an invalid signature
    │   ├── CodeLost               the store lost the project's modules
    │   ├── RunOver                the run has ended, or the worker has been restarted
    │   └── RunLost                the store lost the run's data
    ├── HistoryError               the history can't be opened or written
    │   ├── HistoryLocked          another process is writing to it
    │   ├── HistoryTooNew          a newer version of Shoal wrote it
    │   ├── HistoryUnavailable     its own server can't be used
    │   └── HistoryDamaged         it can't be read
    ├── NoThread                   the system refuses to start another thread
    ├── UnsupportedSystem          Shoal doesn't support this operating system
    ├── RemoteTraceback            the worker's traceback, as an exception's cause
    └── ProtocolViolation          Shoal itself: a bug

Each constructor takes facts, stores them as attributes and builds the message. Every exception can
be pickled. A `TaskError` raised by `compute()` is also an instance of the user's exception class.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any

_DOUBLE_STOP = re.compile(r"(?<=[^\s.!?/])([.!?])\.(?=\s|$)")
"""The second full stop after a message that was quoted with its own."""


class ShoalError(Exception):
    """The base class of every Shoal exception."""

    def __str__(self) -> str:
        return _DOUBLE_STOP.sub(r"\1", super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def suggestion(name: str, names: Sequence[str]) -> str:
    """Return a hint that names the closest match, or else every valid name."""
    from difflib import get_close_matches

    near = get_close_matches(name, names, 1, 0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}."


def _rebuild(kind: type[ShoalError], args: tuple[Any, ...], facts: dict[str, Any]) -> ShoalError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class UsageError(ShoalError):
    """The caller made a mistake."""


class SettingsError(UsageError):
    """A setting is unknown or has the wrong type."""


class WorkflowError(UsageError):
    """The workflow can't be built or planned."""


class PlanError(WorkflowError):
    """A plan breaks a rule, so workers can't execute it."""

    def __init__(self, rule: str, where: str) -> None:
        self.rule = rule
        self.where = where
        super().__init__(f"Invalid plan: {rule}, but {where}.")


class ReactionError(WorkflowError):
    """A reaction of an optimization raised an exception, or gave something else than orders."""


class NotPicklable(UsageError):
    """A function, an argument or an output can't be pickled."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(
            f"{what} can't be sent to another process: {reason}. Pass and return plain data. "
            "Open files and create locks and connections inside the task that uses them."
        )


class CodeTooLarge(UsageError):
    """The modules of the user's project, and the data among them, are too large to send."""

    def __init__(self, nbytes: int, limit: int, largest: Sequence[tuple[str, int]]) -> None:
        self.nbytes = nbytes
        self.limit = limit
        self.largest = tuple(largest)
        named = ", ".join(f"{path} ({size / 2**20:.1f} MB)" for path, size in largest)
        super().__init__(
            f"The project that workers need has {nbytes / 2**20:.1f} MB, but only "
            f"{limit / 2**20:.0f} MB may travel. The largest parts are {named}. Leave out what "
            f"tasks don't read with exclude_files={largest[0][0]!r} (patterns such as '*.csv', "
            "comma-separated), or pass the data as arguments of tasks."
        )


class RunGoesOn(UsageError):
    """A detached run continues, but the session that waited for it has been closed."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(
            f"run {run} continues, but the session that waited for it has been closed. "
            f"`shoal attach {run}` waits for it."
        )


class UnknownRun(UsageError):
    """No run has this id."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"There is no run {run!r}. List all known runs with `shoal runs`.")


class NothingKept(UnknownRun):
    """The run has no saved outputs to resume from."""

    def __init__(self, run: str) -> None:
        self.run = run
        UsageError.__init__(
            self,
            f"Run {run!r} can't be resumed, because none of its outputs are saved: it succeeded, "
            "its client was killed, or its outputs expired (see keep_seconds and keep_mb). Run the "
            "workflow again without resume=.",
        )


class UnsupportedSystem(ShoalError, ImportError):
    """Shoal doesn't support this operating system."""

    def __init__(self) -> None:
        super().__init__("Shoal supports Linux and macOS. On Windows, run it in WSL 2.")


class TaskError(ShoalError):
    """A task failed and made its run fail; the user's exception is the `__cause__`.

    It is also an instance of that exception's class, so `except ValueError` catches it.
    """

    advice = ""
    """How to fix the problem; `{run}` is replaced by the run's id."""

    def __init__(
        self,
        task: str,
        worker: str,
        reason: str,
        *,
        arguments: str = "",
        remote_traceback: str = "",
        not_run: Sequence[str] = (),
        run: str = "",
    ) -> None:
        self.task = task
        self.worker = worker
        self.reason = reason
        self.arguments = arguments
        self.remote_traceback = remote_traceback
        self.not_run = tuple(not_run)
        self.run = run
        super().__init__(str(self))

    def __str__(self) -> str:
        reason = self.reason.rstrip()
        parts = [f"task {self.task!r} failed on worker {self.worker}: {reason}"]
        if not reason.endswith((".", "!", "?")):
            parts[0] += "."
        if self.not_run:
            count = len(self.not_run)
            parts[0] += (
                f" {count} task{' that needs' if count == 1 else 's that need'} it "
                f"{'was' if count == 1 else 'were'} not run ({_shortened(self.not_run)})."
            )
        if self.advice:
            parts.append(self.advice.format(run=self.run or "RUN"))
        if self.arguments:
            parts.append(f"It was called with {self.arguments}.")
        if self.remote_traceback:
            parts.append("On the worker:\n" + self.remote_traceback.rstrip())
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).partition(chr(10))[0]}>"


def _shortened(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


class TaskTimeout(TaskError):
    """A task exceeded its timeout."""

    advice = "Raise the limit with @task(timeout=…), or split the task."


class OutOfMemory(TaskError):
    """A task exceeded its worker's memory limit."""

    advice = "Give it more memory: @task(resources=Resources(memory_mb=…))."


class InputChanged(TaskError):
    """A task modified an input in place; detected only if `check_inputs` is set."""

    advice = (
        "Other tasks may share the input. Modify a copy instead (list(x), x.copy(), "
        "copy.deepcopy(x)) and return it."
    )


class WorkerDied(TaskError):
    """A task killed its worker's process."""

    advice = "`shoal logs {run}` shows what it printed."


class RunEnded(ShoalError):
    """The run ended without a result."""


class RunCancelled(RunEnded):
    """The run was cancelled."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run} was cancelled.")


class RunTimeout(RunEnded):
    """The result was not ready in time; the run continues unless it is cancelled."""

    def __init__(self, run: str, seconds: float, state: str) -> None:
        self.run = run
        self.seconds = seconds
        self.state = state
        super().__init__(f"run {run} had no result after {seconds:g} s: {state}.")


class RunStuck(RunEnded):
    """The run stopped making progress while no task was executing."""

    def __init__(self, run: str, seconds: float, waits_for: str) -> None:
        self.run = run
        self.seconds = seconds
        self.waits_for = waits_for
        super().__init__(
            f"run {run} is stuck: no task is executing and nothing has happened for "
            f"{seconds:.0f} s. {waits_for} `shoal logs {run}` shows what its tasks printed."
        )


class PlatformError(ShoalError):
    """The platform that runs workers failed."""


class GatewayUnavailable(PlatformError):
    """No gateway answers at the gateway's address."""


class TokenRefused(GatewayUnavailable):
    """The gateway rejected the token."""

    def __init__(self, url: str, *, fixed: bool) -> None:
        self.url = url
        self.fixed = fixed
        advice = (
            "The configured token is not the gateway's. A gateway creates a new token each time it "
            "starts, unless it is started with SHOAL_TOKEN. Set token or SHOAL_TOKEN to the "
            "contents of its token file; on the gateway's own machine, leave both unset."
            if fixed
            else "The token came from the file that `shoal gateway` wrote, but another server may "
            "be using that port now. Restart your gateway, or set token."
        )
        super().__init__(f"The gateway at {url} rejected the token. {advice}")


class GatewayRefused(PlatformError):
    """The gateway rejected the request."""


class GatewayBusy(GatewayRefused):
    """The gateway has too many requests or too many queued workers; retry later."""


class EnvironmentMismatch(PlatformError):
    """Workers have another version of Python, of Shoal or of a package than the client."""


class StoreError(ShoalError):
    """The store that workers coordinate through failed."""


class StoreUnavailable(StoreError):
    """No store answers at the store's address."""


class StoreInterrupted(StoreUnavailable):
    """The connection dropped, or the server is still loading; a retry may succeed."""

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason = reason
        self.server = server
        super().__init__(reason)


class ShardUnavailable(StoreUnavailable):
    """One of the servers that hold a run's outputs can't be reached; the others answer."""


class ShardLost(StoreError):
    """One of the servers that hold a run's outputs has lost them."""


class StoreRefused(StoreError):
    """The store returned an error, such as a wrong password, no memory or an unknown command."""


class Tampered(StoreError):
    """A blob has an invalid signature: it was damaged, or another run wrote it."""


class CodeLost(StoreError):
    """The store no longer has the modules of the user's project."""


class RunOver(StoreError):
    """The run has ended, or a restart of this worker has taken over."""


class RunLost(StoreError):
    """The store lost the data of a run that had not ended."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(
            f"run {run} is lost: the store was restarted without its data, or the data was "
            "deleted. Run it again. To survive a restart, set durable=True for the embedded "
            "server, or `appendonly yes` in your own."
        )


class HistoryError(ShoalError):
    """The history can't be opened or written."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"The history in {where} can't be used: {reason}. {self._advice()}")

    def _advice(self) -> str:
        return "Set `folder` to a writable folder, or set history=False."


class HistoryLocked(HistoryError):
    """Another process kept the history locked for too long."""

    def _advice(self) -> str:
        return "Another process is writing to it; try again when that process has finished."


class HistoryTooNew(HistoryError):
    """A newer version of Shoal wrote the history, so this one leaves it alone."""

    def _advice(self) -> str:
        return "Upgrade Shoal, or set `folder` to a different folder."


class HistoryUnavailable(HistoryError):
    """The server that keeps the history apart from the store can't be used."""

    def _advice(self) -> str:
        return "Start the server, set `history_url` to another one, or set history=False."


class HistoryDamaged(HistoryError):
    """The history can't be read: only the runs of workflow `name`, if one is given."""

    def __init__(self, where: str, reason: str, name: str = "") -> None:
        self.name = name
        super().__init__(where, reason)

    def _advice(self) -> str:
        if self.name:
            return (
                f"Delete this workflow's runs with `shoal history clear {shlex.quote(self.name)}`."
            )
        return "Start a new history with `shoal history clear --all`."


class NoThread(ShoalError):
    """The system refuses to start another thread."""

    def __init__(self, run: str, reason: str) -> None:
        self.run = run
        self.reason = reason
        super().__init__(
            f"run {run} can't be monitored: {reason}. The user or the container has too many "
            "processes; stop some, or raise the limit (`ulimit -u`, `--pids-limit`)."
        )


class RemoteTraceback(ShoalError):
    """The worker's traceback, set as the cause of the exception that was raised there."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}"


class ProtocolViolation(ShoalError):
    """An event is invalid in the worker's state, which is a bug in Shoal."""
