"""Every exception of Shoal, by who is at fault.

    ShoalError
    ├── UsageError                 the caller
    │   ├── SettingsError          a setting is unknown or ill-typed
    │   ├── WorkflowError          the workflow can't be built or planned
    │   │   └── PlanError          a planner's plan breaks a rule
    │   ├── NotPicklable           a function or an argument can't travel
    │   └── UnknownRun             no run of that name is known
    │       └── NothingKept        nothing is kept of it that could be resumed
    ├── TaskError                  the user's code
    │   ├── TaskTimeout            it took longer than its timeout
    │   ├── OutOfMemory            it exceeded its worker's memory limit
    │   ├── InputChanged           it changed an input in place, and `check_inputs` is set
    │   └── WorkerDied             it ended its worker's process
    ├── RunEnded                   somebody ended the run
    │   ├── RunCancelled
    │   ├── RunTimeout             the result wasn't there in time
    │   └── RunStuck               nothing went on any more
    ├── PlatformError              the platform
    │   ├── GatewayUnavailable     nobody answers
    │   │   └── TokenRefused       the gateway doesn't accept the token
    │   └── GatewayRefused         the gateway understood, and says no
    │       └── GatewayBusy        for now: too many requests, or too many workers wait
    ├── StoreError                 the store
    │   ├── StoreUnavailable       nobody answers, or not in our language
    │   │   ├── StoreInterrupted   the connection broke, or the server isn't ready yet
    │   │   └── ShardUnavailable   one of several servers stays away
    │   ├── ShardLost              one of several servers has lost outputs
    │   ├── StoreRefused           a wrong password, a full memory or disk, a wrong command
    │   ├── Tampered               a blob's signature is wrong
    │   ├── RunOver                the run, or this start of the worker, is over
    │   └── RunLost                the store no longer has a run that nobody has ended
    ├── HistoryError               the history can't be opened or written to
    │   ├── HistoryLocked          another process is writing to it
    │   └── HistoryDamaged         something in it can't be read
    ├── NoThread                   the system lets this process start no more threads
    ├── UnsupportedSystem          Shoal doesn't run on this operating system
    ├── RemoteTraceback            where on a worker an exception was raised: its cause
    └── ProtocolViolation          ourselves

A constructor takes facts, keeps them as attributes and writes the message. All survive pickling.
A `TaskError` that `compute()` raises is an instance of the user's own exception's class, too.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any

_ENDED_TWICE = re.compile(r"(?<=[^\s.!?/])([.!?])\.(?=\s|$)")
"""A sentence that ends with one that was quoted."""


class ShoalError(Exception):
    """The base of every exception of Shoal."""

    def __str__(self) -> str:
        return _ENDED_TWICE.sub(r"\1", super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def suggestion(name: str, names: Sequence[str]) -> str:
    """The nearest of the names that there are, or all of them."""
    from difflib import get_close_matches

    near = get_close_matches(name, names, 1, 0.4)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}."


def _rebuild(kind: type[ShoalError], args: tuple[Any, ...], facts: dict[str, Any]) -> ShoalError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class UsageError(ShoalError):
    """The caller asked for something that can't be."""


class SettingsError(UsageError):
    """A setting is unknown or ill-typed."""


class WorkflowError(UsageError):
    """The workflow can't be built or planned."""


class PlanError(WorkflowError):
    """A planner's plan breaks a rule."""

    def __init__(self, rule: str, where: str) -> None:
        self.rule = rule
        self.where = where
        super().__init__(f"The plan can't be carried out: {rule}, but {where}.")


class NotPicklable(UsageError):
    """A function, an argument or an output can't travel between processes."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(
            f"{what} can't be sent to another process: {reason}. Pass and return plain data. "
            "Create locks and connections, and open files, inside the task that uses them."
        )


class UnknownRun(UsageError):
    """No run of that name is known."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"There is no run {run!r}. `shoal runs` lists the runs that are known.")


class NothingKept(UnknownRun):
    """Nothing is kept of a run that could be resumed."""

    def __init__(self, run: str) -> None:
        self.run = run
        UsageError.__init__(
            self,
            f"Nothing is kept of a run {run!r}: it has succeeded, its client was killed, or it was "
            "kept for as long, or as much, as keep_seconds and keep_mb say. Run the workflow again "
            "without resume=.",
        )


class UnsupportedSystem(ShoalError, ImportError):
    """Shoal doesn't run on this operating system."""

    def __init__(self) -> None:
        super().__init__("Shoal runs on Linux and macOS; on Windows, use it in WSL 2.")


class TaskError(ShoalError):
    """A task failed, and with it the run; the user's exception is the cause.

    It is an instance of that exception's class, too, so `except ValueError` catches it.
    """

    advice = ""
    """What to do about it; `{run}` stands for the run's id."""

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
    """A task took longer than its timeout."""

    advice = "Raise the limit with @task(timeout=…) or split the task."


class OutOfMemory(TaskError):
    """A task exceeded its worker's memory limit."""

    advice = "Give it more memory: @task(resources=Resources(memory_mb=…))."


class InputChanged(TaskError):
    """A task changed an input in place; only found if `check_inputs` is set."""

    advice = (
        "Other tasks may share its inputs, so have it change a copy (list(x), x.copy(), "
        "copy.deepcopy(x)) and return that."
    )


class WorkerDied(TaskError):
    """A task ended its worker's process."""

    advice = "`shoal logs {run}` shows what it printed."


class RunEnded(ShoalError):
    """Somebody ended the run before it had a result."""


class RunCancelled(RunEnded):
    """The run was cancelled."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run} was cancelled.")


class RunTimeout(RunEnded):
    """The result wasn't there in time; the run goes on unless it is cancelled."""

    def __init__(self, run: str, seconds: float, state: str) -> None:
        self.run = run
        self.seconds = seconds
        self.state = state
        super().__init__(f"run {run} had no result after {seconds:g} s: {state}.")


class RunStuck(RunEnded):
    """Nothing went on any more, and nobody was executing a task."""

    def __init__(self, run: str, seconds: float, waits_for: str) -> None:
        self.run = run
        self.seconds = seconds
        self.waits_for = waits_for
        super().__init__(
            f"run {run} is stuck: no task was executing and nothing has happened for "
            f"{seconds:.0f} s. {waits_for} `shoal logs {run}` shows what its tasks printed."
        )


class PlatformError(ShoalError):
    """The platform that runs the workers."""


class GatewayUnavailable(PlatformError):
    """Nobody answers at the gateway's address, or something else than a gateway does."""


class TokenRefused(GatewayUnavailable):
    """The gateway doesn't accept the token."""

    def __init__(self, url: str, *, fixed: bool) -> None:
        self.url = url
        self.fixed = fixed
        cure = (
            "The token that is set isn't the gateway's: a gateway has a new one each time it is "
            "started, unless SHOAL_TOKEN is set for it. Set token, or SHOAL_TOKEN, to what is in "
            "its token file now; on its machine leave both out."
            if fixed
            else "The token in the file that `shoal gateway` wrote isn't the one of what answers "
            "there now: is that your gateway? Restart it, or set token."
        )
        super().__init__(f"The gateway at {url} doesn't accept our token. {cure}")


class GatewayRefused(PlatformError):
    """The gateway understood the request, and refuses it."""


class GatewayBusy(GatewayRefused):
    """The gateway refuses for now: too many requests, or too many workers wait."""


class StoreError(ShoalError):
    """The store that workers coordinate through."""


class StoreUnavailable(StoreError):
    """Nobody answers at the store's address, or something else than a store does."""


class StoreInterrupted(StoreUnavailable):
    """The connection broke, or the server isn't ready yet: the same may work in a moment."""

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason = reason
        self.server = server
        super().__init__(reason)


class ShardUnavailable(StoreUnavailable):
    """One of the servers that a run's outputs are spread over stays away; the others answer."""


class ShardLost(StoreError):
    """One of the servers that a run's outputs are spread over no longer has them."""


class StoreRefused(StoreError):
    """The store answered with an error: a wrong password, a full memory, a wrong command."""


class Tampered(StoreError):
    """A blob's signature is wrong: it was damaged, or not written by this run."""


class RunOver(StoreError):
    """The run has ended, or a newer start of this worker has taken over."""


class RunLost(StoreError):
    """The store no longer has a run that nobody has ended."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(
            f"run {run} is lost: the store has been restarted without its data, or they were "
            "deleted. Run it again. With durable=True the embedded server would have kept it; a "
            "server of your own does with `appendonly yes`."
        )


class HistoryError(ShoalError):
    """The history can't be opened or written to."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"The history in {where} can't be used: {reason}. {self._advice()}")

    def _advice(self) -> str:
        return "Set `folder` to a folder that can be written to, or history=False."


class HistoryLocked(HistoryError):
    """Another process is writing to the history, and for too long."""

    def _advice(self) -> str:
        return "Another process is writing to it: try again when that has ended."


class HistoryDamaged(HistoryError):
    """Something in the history can't be read; of runs of a single workflow, if there is a name."""

    def __init__(self, where: str, reason: str, name: str = "") -> None:
        self.name = name
        super().__init__(where, reason)

    def _advice(self) -> str:
        if self.name:
            return f"`shoal history clear {shlex.quote(self.name)}` forgets its workflow's runs."
        return "`shoal history clear --all` begins it anew."


class NoThread(ShoalError):
    """The system lets this process start no more threads."""

    def __init__(self, run: str, reason: str) -> None:
        self.run = run
        self.reason = reason
        super().__init__(
            f"run {run} can't be watched: {reason}. The user, or the container, has too many "
            "processes: end some, or raise the limit (`ulimit -u`, `--pids-limit`)."
        )


class RemoteTraceback(ShoalError):
    """Where on a worker an exception was raised; never raised, but the cause of that one."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}"


class ProtocolViolation(ShoalError):
    """An event that doesn't fit the worker's state: a defect of Shoal."""
