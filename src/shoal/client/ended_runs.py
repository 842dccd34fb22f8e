"""`EndedRuns`: what a session keeps of its runs after they have ended.

1. A run that has its result is deleted, and so is one that can't be resumed. A store that refuses
   to delete it is asked again when the session is closed.
2. A run that can be resumed stays in a store that outlives this process. Where the embedded server
   ends with it, the run is written to the data folder (`Checkpoints`). If that fails, it stays in
   the store for as long as the session lasts. Either way, the store holds only the latest few.
3. Runs are filed into history, and planning learns from them, while nobody waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial

from shoal.client.backends import Backends
from shoal.client.checkpoints import Checkpoints, has_checkpoint, hint
from shoal.client.planning import SessionPlanning
from shoal.client.post_run import PostRunQueue, guarded
from shoal.client.resume import UnfinishedRun, forget, read
from shoal.client.run import Run
from shoal.client.run_records import ended_run
from shoal.client.shared_folders import SharedFolders
from shoal.errors import StoreError, StoreRefused, UsageError
from shoal.platform.gateway import LocalGateway
from shoal.types import RunId
from shoal.workflow.outline import outlinable

log = logging.getLogger(__name__)

_MOST_KEPT = 5
"""Resumable runs of a session that stay in the store: in one that outlives this process, and in the
embedded server if they can't be written to a file. The oldest is deleted for the sixth."""
_MANY = 2000
"""From so many tasks on, packing a run for history takes so long that a thread does it."""


class EndedRuns:
    """Takes over ended runs: keeps, deletes and files them; safe to use from several threads."""

    def __init__(self, backends: Backends, planning: SessionPlanning) -> None:
        self._backends = backends
        self._planning = planning
        self.folders = SharedFolders(backends.platform)
        """Where runs put large outputs; reused from run to run."""
        self._data_folder = backends.settings.data_folder()
        self._post_run = PostRunQueue(
            lambda: backends.history,
            backends.settings.history_runs,
            planning.known,
            planning.take,
            backends.settings.idle_seconds,
            self.folders.delete_spare,
        )
        self._checkpoints: Checkpoints | None = None
        if backends.temporary_store is not None:
            self._checkpoints = Checkpoints(self._data_folder, backends.temporary_store)
        self._lock = threading.Lock()
        self._kept: dict[RunId, Run] = {}
        """Resumable runs of this session, the oldest first."""
        self._undeleted: list[Run] = []
        """Ended runs that the store refused to delete."""

    def unfinished(self, run: str) -> UnfinishedRun:
        """What it takes to resume a run."""
        with self._lock:
            kept = self._kept.get(RunId(run))
        if kept is not None:
            return kept.unfinished
        found = read(self._data_folder, run)
        if self._backends.lasting and has_checkpoint(self._data_folder, found.id):
            raise UsageError(
                f"Run {run} began on the embedded server: resume it there, without store= and "
                "durable=."
            )
        return found

    def detached(self, run: str) -> UnfinishedRun:
        """What it takes to attach to a run."""
        if self._checkpoints is not None:
            raise UsageError(
                f"Can't attach to run {run}: the embedded server ends with its clients. Set store= "
                "to the store of the run; a run that wasn't detached can be resumed."
            )
        return read(self._data_folder, run)

    def check_store(self) -> None:
        """Refuse an embedded store that the workers of a remote platform can't reach."""
        embedded, platform = self._backends.embedded_store, self._backends.settings.platform
        if embedded and platform is not None and not self.folders.usable:
            raise UsageError(
                f"The workers of {platform} run on another machine or in a container, so they "
                "can't reach the embedded store. Set store= to a server that both sides reach, "
                "such as redis://HOST:PORT."
            )

    def begin(self, run: Run, begin: Callable[[], None]) -> None:
        """Begin a run. If that fails, the run has ended."""
        try:
            self.check_store()
            begin()
        except BaseException:
            try:
                self._take_over(run)
            finally:
                run.mark_ended()
            raise

    def start(self, run: Run) -> None:
        """Begin a new run, after writing the file that it can be resumed from."""
        if self._backends.lasting and run.settings.keep_seconds:
            run.unfinished.write(self._data_folder)
        self.begin(run, run.start)

    def resume(self, run: Run) -> None:
        """Begin a resumed run, with what is kept of it."""
        with self._lock:
            kept = self._kept.pop(run.id, None)
        if kept is not None:
            run.shared = kept.shared
        elif self._checkpoints is not None:
            run.shared = self._checkpoints.bring_back(run.id)
        self.begin(run, run.resume)
        if self._backends.lasting:
            run.unfinished.write(self._data_folder)

    def conclude(self, run: Run) -> None:
        """Take over and file a run that has ended; one that continues without us stays as it is."""
        try:
            if run.outcome:
                self._take_over(run)
                self._file(run)
        finally:
            run.mark_ended()

    def _take_over(self, run: Run) -> None:
        """Keep what is finished of a run if it can be resumed, and delete it otherwise."""
        if run.resumable:
            with contextlib.suppress(StoreError):  # then it stays for as long as any run
                self._backends.store.expire(run.id, run.settings.keep_seconds)
            self._keep(run)
        else:
            self._delete(run)
            self._drop(run)

    def _keep(self, run: Run) -> None:
        settings = run.settings
        why = "" if self._backends.lasting else "the store was given as an object"
        if self._checkpoints is not None:
            why = self._checkpoints.keep(run, settings.keep_mb, settings.keep_seconds)
        run.tell(hint(run.id, why))
        if self._checkpoints is not None and not why:
            self._delete(run)
            return
        with self._lock:
            self._kept[run.id] = run
            oldest = next(iter(self._kept)) if len(self._kept) > _MOST_KEPT else None
            superseded = None if oldest is None else self._kept.pop(oldest)
        if superseded is not None:
            self._delete(superseded)
            forget(self._data_folder, superseded.id)

    def _drop(self, run: Run) -> None:
        """Delete a run's files, unless it was lost and an earlier try left a checkpoint."""
        if self._checkpoints is None or run.tries == 1:
            forget(self._data_folder, run.id)
        elif run.outcome == "done" or not run.settings.keep_seconds:
            self._checkpoints.forget(run.id)
        elif self._checkpoints.leave(run.id):
            run.tell(hint(run.id))

    def _delete(self, run: Run) -> None:
        """Delete everything of a run in the store and in shared memory."""
        self._delete_stored(run)
        if run.shared is not None:
            self.folders.retire(run.shared)
            self._post_run.touch()

    def _delete_stored(self, run: Run) -> None:
        try:
            self._backends.store.close(run.id, list(run.plan.workers))
            if isinstance(self._backends.platform, LocalGateway):
                self._backends.platform.forget(run.id)
        except StoreError as error:
            again = ""
            if isinstance(error, StoreRefused):  # one that is away isn't waited for again
                with self._lock:
                    self._undeleted.append(run)
                again = " The session tries again when it is closed."
            run.tell(f"Its data could not be deleted: {error}{again}")

    def _file(self, run: Run) -> None:
        if not run.settings.history:
            return
        log.info("run %s of %s: %s in %.3f s", run.id, run.name, run.outcome, run.makespan)
        if self._planning.pool_unknown:
            self._post_run.call(partial(self._note_starts, run))
        replan = self._planning.due(run.planned) or bool(run.needs)
        pack = partial(self._pack, run, replan=replan)
        if len(run.workflow) > _MANY:
            self._post_run.call(pack)
        else:
            guarded(pack)

    def _pack(self, run: Run, *, replan: bool) -> None:
        """Have a run filed; if its tasks ask for the user's code, it is planned anew here."""
        here = replan and run.planned.name is not None and not outlinable(run.workflow)
        ended = ended_run(run, self._backends.platform_name)
        self._post_run.file(ended, replan=replan and not here)
        if here:
            self._post_run.call(partial(self._planning.replan, run.planned))

    def _note_starts(self, run: Run) -> None:
        timeline = run.timeline
        self._planning.note_starts(timeline, run.plan.workers_of(timeline.workers))

    def settle(self) -> None:
        """Wait until ended runs are in history, and what they left is deleted."""
        self._post_run.settle()

    def close(self) -> None:
        """Delete what can't be resumed any more, and finish what is queued."""
        with self._lock:
            undeleted, self._undeleted = self._undeleted, []
            kept, self._kept = self._kept, {}
        for run in undeleted:
            self._delete_stored(run)
        for run in kept.values():
            if not self._backends.lasting:
                self._delete(run)
            elif run.shared is not None:
                run.shared.delete()
        self._backends.hurry()
        self._post_run.hurry()
        self._post_run.close()
