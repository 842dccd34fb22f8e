"""`RedisStore`: the store on a Valkey or Redis server. Its atomic operations are Lua scripts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.clock import RealClock
from shoal.errors import RunOver, StoreInterrupted, StoreUnavailable
from shoal.storage import keys
from shoal.storage.base import (
    DEFAULT_TTL,
    Answer,
    Claim,
    Completion,
    Entry,
    Leftovers,
    MarkRequest,
    Opening,
    Ready,
    Refused,
)
from shoal.storage.checkpoint import DUMPED, PIECE, SAVED, STRING, Piece
from shoal.storage.chunks import STAGED_SECONDS, ChunkClient, Chunks, chunks_in
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.letters import Letter, Received, decode_letter, encode_letter
from shoal.storage.mailbox_connections import MailboxConnections
from shoal.storage.resp import Arg, Connection
from shoal.storage.scripts import load
from shoal.storage.server import DURABLE, checked, incarnation, ready
from shoal.types import RunId, TaskId, WorkerId

_COMPLETE = load("run/complete")
_ENTER = load("run/enter")
_POST = load("run/post")
_PARK = load("run/park")
_HAND_OVER = load("run/hand_over")
_SUPERVISE = load("run/supervise")
_BEAT = load("run/beat")
_RESTART = load("run/restart")
_TWIN = load("run/twin")
_STOP = load("run/stop")
_RESUME = load("run/resume")
_CLOSE = load("run/close")

_LARGE = 64 * 1024
"""Larger outputs are staged by commands of their own, because a script copies its arguments. The
script then renames them; those that it doesn't rename are deleted after it."""
_TOGETHER = 200
"""The most keys, or small outputs, that are read in one round trip."""
_CLOSING_SECONDS = 1.0
"""How long to try to close a run while the server doesn't answer."""


class RedisStore(ChunkClient):
    """A store on a server.

    Commands share one connection. Each mailbox that a thread waits for has a connection of its own.
    """

    def __init__(
        self,
        url: str,
        latency: float = 0.0,
        *,
        known: bool = False,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Connect to the server at a URL; the arguments are those of `ServerClient`."""
        self._mailbox_connections = MailboxConnections(self._connect)
        self._watchful = not known
        self._opened: dict[RunId, str] = {}
        """The runs opened here, and their server's incarnation then."""
        self._executed: dict[RunId, int] = {}
        """How many of their tasks were executed when last read."""
        super().__init__(url, latency, known=known, revive=revive)

    def _connect(self) -> Connection:
        connection = super()._connect()
        if self._watchful:
            try:
                incarnation(connection.node(""))
            except BaseException:
                connection.close()
                raise
        return connection

    @property
    def durable(self) -> bool:
        """Whether the server keeps its data when it restarts."""

        def attempt() -> bool:
            with self._connected() as connection:
                return all(incarnation(node).endswith(DURABLE) for node in connection.nodes)

        return self._persist(attempt)

    def clock(self, run: RunId, sent: float | None = None) -> RealClock:
        """Return a clock that tells the server's time."""
        return self.clock_of(keys.state(run), sent)

    def open(self, run: RunId, opening: Opening) -> None:
        """Start a run."""
        self._opened[run] = self._begin(run, opening)

    def _begin(self, run: RunId, opening: Opening) -> str:
        """Write what a run starts with; return the server's incarnation."""
        for part in (*opening.parts.values(), opening.common or []):
            self._check_length(part, "A worker's part of the plan")
        outputs = opening.outputs.items()
        long = {name: blob for name, blob in outputs if not self._fits(blob_nbytes(blob))}
        fitting = {name: blob for name, blob in outputs if name not in long}
        commands = _opening_commands(run, replace(opening, outputs=fitting))

        def attempt() -> tuple[list[Any], str]:
            with self._connected() as connection:
                replies = ready(connection, connection.pipeline(commands))
                return replies, incarnation(connection.node(keys.state(run)))

        replies, opened = self._persist(attempt)
        for reply in checked(replies):
            if isinstance(reply, list):
                checked(reply)
        for name, blob in long.items():
            listed = self._in_chunks(run, blob).packed()
            outputs_key = keys.outputs(run)
            self._call([["HSET", outputs_key, name, listed], ["EXPIRE", outputs_key, opening.ttl]])
        return opened

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker."""
        touched = (
            keys.state(run),
            keys.parts(run),
            keys.leases(run),
            keys.given(run),
            keys.outputs(run),
            keys.large_outputs(run),
            keys.marks(run),
            keys.mailbox(run, keys.CLIENT),
        )
        args = (worker, epoch, secrets.token_hex(8), int(part))
        found, executed, given, *left = self._script(_ENTER, touched, args)
        return Entry(found, executed, given, _leftovers(*left) if left else None)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver."""
        staging: list[list[Arg]] = []
        staged: list[str] = []
        large: list[str] = []
        small: list[tuple[str, Blob]] = []
        long: list[Chunks] = []
        for name, blob in completion.saves:
            nbytes = blob_nbytes(blob)
            if not self._fits(nbytes):
                long.append(self._in_chunks(run, blob))
                small.append((name, long[-1].packed()))
            elif nbytes > _LARGE:
                staged.append(keys.staged(run, secrets.token_hex(8)))
                staging.append(["SET", staged[-1], blob, "EX", STAGED_SECONDS])
                large.append(name)
            else:
                small.append((name, blob))
        owners = _owners(completion)
        args = _completion_args(worker, epoch, completion, large, small, owners)
        touched = (
            keys.state(run),
            keys.marks(run),
            keys.outputs(run),
            keys.progress(run),
            keys.mailbox(run, keys.CLIENT),
            keys.large_outputs(run),
            keys.leases(run),
            keys.given(run),
            *staged,
            *(keys.large_output(run, name) for name in large),
            *(keys.mailbox(run, owner) for owner in owners),
        )
        cleanup: list[list[Arg]] = [["UNLINK", *staged]] if staged else []
        try:
            answer = self._script(_COMPLETE, touched, args, staging, after=cleanup)
        except RunOver:
            self._drop_chunks(long)
            raise
        claims, owned, refused = answer
        answers: list[Answer] = [*_claims(claims)]
        answers += [Ready(TaskId(_text(task)), tuple(rest)) for task, *rest in owned]
        if refused:
            asked = {mark.task: mark.producers for mark in completion.marks}
            tasks = [(TaskId(_text(task)), int(number)) for task, number in refused]
            answers += [Refused(task, asked[task][number - 1]) for task, number in tasks]
        return answers

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        kind, name, parts = encode_letter(letter)
        fields: list[Arg] = ["kind", kind, "name", name]
        for number, part in enumerate(parts, 1):
            fields += [number, part]
        touched = (keys.state(run), keys.mailbox(run, keys.CLIENT))
        self._script(_POST, touched, fields)

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Received]:
        """Return the messages after the one with id `after`."""
        key = keys.mailbox(run, mailbox)
        try:
            return self._persist(
                lambda: self._receive(run, mailbox, after, timeout),
                wait=partial(self._mailbox_connections.ended_within, key),
            )
        except StoreInterrupted:
            if self._mailbox_connections.hung_up(key):
                return []
            raise

    def _receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Received]:
        connection = self._mailbox_connections.take(keys.mailbox(run, mailbox))
        if connection is None:
            return []
        try:
            self._check_incarnation(run, connection)
            reply = _read_mail(connection, run, mailbox, after, timeout)
        except StoreUnavailable:
            if self._mailbox_connections.give_up(connection):
                return []
            raise
        except BaseException:
            self._mailbox_connections.give_up(connection)
            raise
        self._mailbox_connections.give_back(connection)
        return (
            [_received(str(id_, "utf-8"), fields) for id_, fields in reply[0][1]] if reply else []
        )

    def _check_incarnation(self, run: RunId, connection: Connection) -> None:
        """Refuse a server that restarted without its data, or from an old copy of them."""
        opened = self._opened.get(run)
        if opened is not None and opened != incarnation(connection.node(keys.state(run))):
            raise RunOver(f"Run {run} is lost: the store has restarted without its data.")

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """Wake the thread that waits for a mailbox, or is about to."""
        self._mailbox_connections.hang_up(keys.mailbox(run, mailbox))

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        touched = (keys.state(run), keys.mailbox(run, worker), keys.leases(run))
        return bool(self._script(_PARK, touched, (worker, epoch, read, executed)))

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with a claim to start the worker again."""
        touched = (keys.state(run), keys.leases(run))
        (claim,) = _claims(self._script(_HAND_OVER, touched, (worker, epoch, executed)))
        return claim

    def supervise(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of workers whose leases have expired."""
        touched = (keys.state(run), keys.leases(run), keys.mailbox(run, keys.CLIENT))
        workers = [item for pair in alive for item in pair]
        return _claims(self._script(_SUPERVISE, touched, workers, seconds=0.0))

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker during a transfer."""
        touched = (keys.state(run), keys.leases(run))
        self._script_aside(_BEAT, touched, (worker, epoch, nbytes))

    def moved(self, run: RunId) -> int:
        """Return the bytes that long transfers have moved; 0 while the server doesn't answer."""
        try:
            return int(self._call([["HGET", keys.state(run), "moved"]], seconds=0.0)[0] or 0)
        except StoreUnavailable:
            return 0

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that has ended."""
        touched = (keys.state(run), keys.leases(run))
        claims = _claims(self._script(_RESTART, touched, (worker, epoch, cause, kind)))
        return claims[0] if claims else None

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Return saved outputs."""
        commands: list[list[Arg]] = [
            ["HMGET", keys.outputs(run), *names],
            ["MGET", *(keys.large_output(run, name) for name in names)],
            ["EXISTS", keys.state(run)],
        ]
        small, large, exists = self._call(commands)
        if not exists:
            raise RunOver(f"Run {run} has ended.")
        found = [
            here if here is not None else there for here, there in zip(small, large, strict=True)
        ]
        return [self._whole(run, data) for data in found]

    def _in_chunks(self, run: RunId, blob: Blob) -> Chunks:
        """Write an output that is too long for one value, in chunks."""
        chunks = self._put_chunks(keys.state(run), keys.chunks(run), keys.chunk(run), blob)
        if chunks is None:
            raise RunOver(f"Run {run} has ended.")
        return chunks

    def _whole(self, run: RunId, data: Buffer | None) -> Buffer | None:
        """Return a saved output, from its chunks if it has any."""
        chunks = chunks_in(data)
        if chunks is None:
            return data
        whole = self._joined(chunks)
        if whole is None:
            self.check(run)
        return whole

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker beside the running one."""
        claims = _claims(self._script(_TWIN, (keys.state(run), keys.leases(run)), [worker]))
        return claims[0] if claims else None

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the running workers to leave."""
        touched = (keys.state(run), keys.leases(run))
        (entered,), _ = self._script_finding_keys(
            _STOP, touched, [keys.mailbox(run, "")], seconds=0.0
        )
        return [WorkerId(_text(worker)) for worker in entered]

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started."""
        touched = (
            keys.state(run),
            keys.leases(run),
            keys.mailbox(run, keys.CLIENT),
            keys.parts(run),
        )
        self.check(run)
        self._begin(run, replace(opening, started=()))
        self.expire(run, opening.ttl)
        args = (keys.mailbox(run, ""), int(forgotten))
        (claims, last), _ = self._script_finding_keys(_RESUME, touched, args)
        return _claims(claims), _text(last)

    def check(self, run: RunId) -> None:
        """Raise `RunOver` if the run has ended."""
        if not self._call([["EXISTS", keys.state(run)]])[0]:
            raise RunOver(f"Run {run} has ended.")

    def saved(self, run: RunId) -> dict[str, Buffer]:
        """Return all saved outputs that aren't large."""
        flat = self._call([["HGETALL", keys.outputs(run)]])[0]
        return dict(zip(map(_text, flat[::2]), flat[1::2], strict=True))

    def unsave(self, run: RunId, names: Sequence[str]) -> None:
        """Delete saved outputs that aren't large."""
        if names:
            self._call([["HDEL", keys.outputs(run), *names]])

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """Return the marks of tasks with owners."""
        names = map(_text, self._call([["HKEYS", keys.marks(run)]])[0])
        found = [name.partition("\n") for name in names]
        return frozenset((task, producer) for task, _, producer in found if producer.strip())

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """Return nothing: there is only one server."""
        return ""

    def progress(self, run: RunId) -> int:
        """Return how many tasks have been executed; the last known number if there is no answer."""
        try:
            counts = self._call([["HVALS", keys.progress(run)]], seconds=0.0)[0]
        except StoreUnavailable:
            return self._executed.get(run, 0)
        executed = sum(int(count) for count in counts)
        if run in self._opened:
            self._executed[run] = executed
        return executed

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete all its data."""
        self._close(run, [keys.mailbox(run, name) for name in (keys.CLIENT, *workers)])

    def _close(self, run: RunId, more: Sequence[str]) -> None:
        """End a run and delete all its data, including some more keys."""
        self._opened.pop(run, None)
        self._executed.pop(run, None)
        self._delete(run, more, 0)
        for mailbox in more:
            self._mailbox_connections.hang_up(mailbox, remember=False)

    def expire(self, run: RunId, seconds: float) -> None:
        """Delete a run later."""
        self._delete(run, [keys.mailbox(run, keys.CLIENT)], max(1, round(seconds * 1000)))

    def _delete(self, run: RunId, more: Sequence[str], milliseconds: int) -> None:
        names = (
            keys.state,
            keys.large_outputs,
            keys.chunks,
            keys.marks,
            keys.outputs,
            keys.parts,
            keys.progress,
            keys.given,
            keys.leases,
        )
        touched = [*(name(run) for name in names), *more]
        args = (keys.large_output(run, ""), keys.mailbox(run, ""), milliseconds)
        seconds = _CLOSING_SECONDS if self._outage.lasts else None
        self._script_finding_keys(_CLOSE, touched, args, seconds=seconds)

    def pieces(self, run: RunId, without: Collection[str]) -> Iterator[Piece]:
        """Yield all data of a run, except some of its large outputs."""
        prefix, large = keys.of_run(run), keys.large_output(run, "")
        found = [_text(key) for key in self._call([["KEYS", f"{prefix}*"]])[0]]
        apart = (large, keys.chunk(run), keys.staged(run, ""), keys.outputs(run))
        whole = [key for key in found if not key.startswith(apart)]
        for start in range(0, len(whole), _TOGETHER):
            some = whole[start : start + _TOGETHER]
            for key, dumped in zip(some, self._call([["DUMP", key] for key in some]), strict=True):
                if dumped is not None:
                    yield Piece(DUMPED, key.removeprefix(prefix), dumped)
        yield from self._saved_pieces(run)
        unwanted = {keys.large_output(run, name) for name in without}
        for key in found:
            if key.startswith((large, keys.chunk(run))) and key not in unwanted:
                yield from self._string_pieces(key, key.removeprefix(prefix))

    def _saved_pieces(self, run: RunId) -> Iterator[Piece]:
        cursor = b"0"
        while True:
            scan: list[Arg] = ["HSCAN", keys.outputs(run), cursor, "COUNT", _TOGETHER]
            cursor, found = self._call([scan])[0]
            for name, value in zip(found[::2], found[1::2], strict=True):
                yield Piece(SAVED, _text(name), value)
            if bytes(cursor) == b"0":
                return

    def _string_pieces(self, key: str, name: str) -> Iterator[Piece]:
        length = self._call([["STRLEN", key]])[0]
        for start in range(0, length, PIECE):
            data = self._call([["GETRANGE", key, start, start + PIECE - 1]])[0]
            yield Piece(STRING, name, data)

    def put_back(self, run: RunId, pieces: Sequence[Piece]) -> None:
        """Restore pieces of a run that isn't in the store."""
        commands: list[list[Arg]] = []
        for piece in pieces:
            if piece.kind == DUMPED:
                key = keys.of_run(run) + piece.name
                commands.append(["RESTORE", key, DEFAULT_TTL * 1000, piece.data])
            elif piece.kind == SAVED:
                commands.append(["HSET", keys.outputs(run), piece.name, piece.data])
            elif piece.kind == STRING:
                commands.append(["APPEND", keys.of_run(run) + piece.name, piece.data])
        if commands:
            self._call(commands)

    def disconnect(self) -> None:
        """Close the connections."""
        self._mailbox_connections.close()
        super().disconnect()


def _opening_commands(run: RunId, opening: Opening) -> list[list[Arg]]:
    """Write the small data in a transaction, then the large, which that would hold twice."""
    lease = round(opening.lease * 1000)
    state: list[Arg] = ["run", run, "lease", lease, "restarts", opening.restarts]
    state += ["kind", opening.kind, "waiting", round(opening.waiting * 1000)]
    for worker, kind in opening.kinds.items():
        state += [f"kind:{worker}", kind]
    for worker in opening.started:
        state += [f"claim:{worker}", 1, f"epoch:{worker}", 1]
    leases: list[Arg] = ["", 0]
    for worker in opening.started:
        leases += [worker, 0]
    parts: list[Arg] = [item for pair in opening.parts.items() for item in pair]
    if opening.common is not None:
        parts += ["", opening.common]
    small: list[Arg] = []
    large: list[Arg] = []
    sets: list[list[Arg]] = []
    for name, blob in opening.outputs.items():
        if blob_nbytes(blob) > _LARGE:
            sets.append(["SET", keys.large_output(run, name), blob, "EX", opening.ttl])
            large.append(name)
        else:
            small += [name, blob]

    def written(command: str, key: str, items: list[Arg]) -> list[list[Arg]]:
        return [[command, key, *items], ["EXPIRE", key, opening.ttl]] if items else []

    return [
        ["MULTI"],
        *written("HSET", keys.state(run), state),
        *written("HSET", keys.leases(run), leases),
        *written("HSET", keys.outputs(run), small),
        ["EXEC"],
        *written("HSET", keys.parts(run), parts),
        *sets,
        *written("SADD", keys.large_outputs(run), large),
    ]


def _read_mail(
    connection: Connection, run: RunId, mailbox: str, after: str, timeout: float
) -> list[Any] | None:
    """Check that the run exists and wait for mail, in one round trip."""
    block = ("BLOCK", max(1, round(timeout * 1000))) if timeout > 0 else ()
    read = ("XREAD", *block, "STREAMS", keys.mailbox(run, mailbox), after or "0")
    connection.send([("EXISTS", keys.state(run)), read])
    if not checked(ready(connection, [connection.reply()]))[0]:
        raise RunOver(f"Run {run} has ended.")
    reply = connection.reply(extra_seconds=timeout)
    mail: list[Any] | None = checked(ready(connection, [reply]))[0]
    return mail


def _owners(completion: Completion) -> dict[WorkerId, int]:
    """Number the workers that a completion may send letters to, from 1."""
    owners: dict[WorkerId, int] = {}
    for announcement in completion.announcements:
        owners.setdefault(announcement.owner, len(owners) + 1)
    for mark in completion.marks:
        if mark.owner is not None:
            owners.setdefault(mark.owner, len(owners) + 1)
    return owners


def _completion_args(
    worker: WorkerId,
    epoch: int,
    completion: Completion,
    large: Sequence[str],
    small: Sequence[tuple[str, Blob]],
    owners: Mapping[WorkerId, int],
) -> list[Arg]:
    """Return the arguments of `complete.lua`, whose head names them."""
    args: list[Arg] = [worker, epoch, completion.executed, secrets.token_hex(8)]
    args += [int(completion.finished), int(completion.entering)]
    args += [len(large), *large, len(small)]
    for name, blob in small:
        args += [name, blob]
    args += [len(owners), *owners, len(completion.announcements)]
    for announcement in completion.announcements:
        args += [owners[announcement.owner], announcement.task, announcement.payload]
    args.append(len(completion.marks))
    for mark in completion.marks:
        args += _mark_args(mark, worker, owners)
    args.append(len(completion.letters))
    for letter in completion.letters:
        kind, name, parts = encode_letter(letter)
        args += [kind, name, len(parts), *parts]
    args.append(len(completion.starts))
    for started, given in completion.starts:
        args += [started, given]
    return args


def _mark_args(mark: MarkRequest, worker: WorkerId, owners: Mapping[WorkerId, int]) -> list[Arg]:
    producer, count = mark.producer or worker, len(mark.producers)
    if mark.owner is None:
        held = [mark.producers.index(each) + 1 for each in mark.held or ()]
        number = mark.producers.index(producer) + 1
        return [mark.task, 0, number, mark.payload, count, len(held), *held]
    return [mark.task, owners[mark.owner], producer, mark.payload, count, *mark.producers]


def _claims(flat: Sequence[Any]) -> list[Claim]:
    found = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return [Claim(WorkerId(_text(w)), int(epoch), _text(kind or b"")) for w, epoch, kind in found]


def _leftovers(
    saved: Sequence[Buffer],
    marks: Sequence[Buffer],
    handed_in: Sequence[Buffer],
    started: Sequence[Buffer],
) -> Leftovers:
    payloads = dict(zip(map(_text, marks[::2]), marks[1::2], strict=True))
    return Leftovers(_texts(saved), payloads, _texts(handed_in), _texts(started))


def _text(buffer: Buffer) -> str:
    return str(buffer, "utf-8")


def _texts(buffers: Sequence[Buffer]) -> frozenset[str]:
    return frozenset(map(_text, buffers))


def _received(id_: str, fields: list[Buffer]) -> Received:
    kind, name = str(fields[1], "utf-8"), str(fields[3], "utf-8")
    return Received(id_, decode_letter(kind, name, tuple(fields[5::2])))
