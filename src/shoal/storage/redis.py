"""`RedisStore`: the store on a Valkey or Redis server, its atomic operations as scripts there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.errors import RunOver, StoreInterrupted, StoreUnavailable
from shoal.storage import keys
from shoal.storage.archive import DUMPED, PIECE, SAVED, STRING, Piece
from shoal.storage.base import (
    DEFAULT_TTL,
    Answer,
    Claim,
    Completion,
    Entry,
    Leftovers,
    Letter,
    MarkRequest,
    Opening,
    Ready,
    Refused,
)
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.pieces import STAGED_SECONDS, PieceClient, Pieces, pieces_in
from shoal.storage.receivers import Receivers
from shoal.storage.resp import Arg, Connection
from shoal.storage.scripts import SCRIPTS
from shoal.storage.server import KEPT, checked, lifetime, ready
from shoal.types import RunId, TaskId, WorkerId

_LARGE = 64 * 1024
"""Larger outputs are staged by a command of their own, because a script copies what it is given;
the script then renames them, and what it doesn't, for whatever reason, is deleted after it."""
_TOGETHER = 200
"""Keys, or outputs that aren't large, that are read in one round trip."""
_CLOSING_SECONDS = 1.0
"""For how long a run is tried to be closed while the server doesn't answer anyway."""


class RedisStore(PieceClient):
    """A store on a server.

    Commands share one connection; each mailbox that is waited on has one of its own.
    """

    scripts = SCRIPTS

    def __init__(
        self,
        url: str,
        latency: float = 0.0,
        *,
        known: bool = False,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Reach the server at a URL; the arguments are those of `ServerClient`."""
        self._receivers = Receivers(self._connect)
        self._watchful = not known
        self._opened: dict[RunId, str] = {}
        """The runs begun here, and their server's lifetime then."""
        self._executed: dict[RunId, int] = {}
        """How many of their tasks have been executed, as of the latest look."""
        super().__init__(url, latency, known=known, revive=revive)

    def _connect(self) -> Connection:
        connection = super()._connect()
        if self._watchful:
            try:
                lifetime(connection.node(""))
            except BaseException:
                connection.close()
                raise
        return connection

    @property
    def durable(self) -> bool:
        """Whether the server keeps what it is told when it is restarted."""

        def attempt() -> bool:
            with self._connected() as connection:
                return all(lifetime(node).endswith(KEPT) for node in connection.nodes)

        return self._persist(attempt)

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        self._opened[run] = self._begin(run, opening)

    def _begin(self, run: RunId, opening: Opening) -> str:
        """Write what a run begins with; the server's lifetime then."""
        for part in (*opening.parts.values(), opening.common or []):
            self._check_length(part, "What a worker is to run")
        outputs = opening.outputs.items()
        long = {name: blob for name, blob in outputs if not self._fits(blob_nbytes(blob))}
        fitting = {name: blob for name, blob in outputs if name not in long}
        commands = _opening_commands(run, replace(opening, outputs=fitting))

        def attempt() -> tuple[list[Any], str]:
            with self._connected() as connection:
                replies = ready(connection, connection.pipeline(commands))
                return replies, lifetime(connection.node(keys.state(run)))

        replies, began = self._persist(attempt)
        for reply in checked(replies):
            if isinstance(reply, list):
                checked(reply)
        for name, blob in long.items():
            listed = self._in_pieces(run, blob).packed()
            outputs_key = keys.outputs(run)
            self._call([["HSET", outputs_key, name, listed], ["EXPIRE", outputs_key, opening.ttl]])
        return began

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
        found, executed, given, *left = self._script("enter", touched, args)
        return Entry(found, executed, given, _leftovers(*left) if left else None)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver."""
        staging: list[list[Arg]] = []
        staged: list[str] = []
        args: list[Arg] = [
            *(keys.mailbox(run, ""), keys.large_output(run, "")),
            *(worker, epoch, completion.executed),
            *(secrets.token_hex(8), int(completion.finished), int(completion.entering)),
        ]
        small: list[tuple[str, Blob]] = []
        long: list[Pieces] = []
        for name, blob in completion.saves:
            nbytes = blob_nbytes(blob)
            if not self._fits(nbytes):
                long.append(self._in_pieces(run, blob))
                small.append((name, long[-1].packed()))
            elif nbytes > _LARGE:
                staged.append(keys.staged(run, secrets.token_hex(8)))
                staging.append(["SET", staged[-1], blob, "EX", STAGED_SECONDS])
                args.append(name)
            else:
                small.append((name, blob))
        args.append(len(small))
        for name, blob in small:
            args += [name, blob]
        args.append(len(completion.announcements))
        for announcement in completion.announcements:
            args += [announcement.owner, announcement.task, announcement.payload]
        args.append(len(completion.marks))
        for mark in completion.marks:
            args += _mark_args(mark, worker)
        args.append(len(completion.letters))
        for letter in completion.letters:
            args += [letter.kind, letter.name, len(letter.parts), *letter.parts]
        args.append(len(completion.starts))
        for started, given in completion.starts:
            args += [started, given]
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
        )
        dropped: list[list[Arg]] = [["UNLINK", *staged]] if staged else []
        try:
            said = self._script("complete", touched, args, staging, after=dropped)
        except RunOver:
            self._drop_pieces(long)
            raise
        claims, owned, refused = said
        answers: list[Answer] = [*_claims(claims)]
        answers += [Ready(TaskId(_text(task)), tuple(rest)) for task, *rest in owned]
        if refused:
            asked = {mark.task: mark.producers for mark in completion.marks}
            tasks = [(TaskId(_text(task)), int(number)) for task, number in refused]
            answers += [Refused(task, asked[task][number - 1]) for task, number in tasks]
        return answers

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        fields: list[Arg] = ["kind", letter.kind, "name", letter.name]
        for number, part in enumerate(letter.parts, 1):
            fields += [number, part]
        touched = (keys.state(run), keys.mailbox(run, keys.CLIENT))
        self._script("post", touched, fields)

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        """The messages behind `after`."""
        place = keys.mailbox(run, mailbox)
        try:
            return self._persist(
                lambda: self._receive(run, mailbox, after, timeout),
                wait=partial(self._receivers.ended_within, place),
            )
        except StoreInterrupted:
            if self._receivers.hung_up(place):
                return []
            raise

    def _receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        connection = self._receivers.take(keys.mailbox(run, mailbox))
        if connection is None:
            return []
        try:
            self._check_kept(run, connection)
            reply = _read_mail(connection, run, mailbox, after, timeout)
        except StoreUnavailable:
            if self._receivers.give_up(connection):
                return []
            raise
        except BaseException:
            self._receivers.give_up(connection)
            raise
        self._receivers.give_back(connection)
        return [_letter(str(id_, "utf-8"), fields) for id_, fields in reply[0][1]] if reply else []

    def _check_kept(self, run: RunId, connection: Connection) -> None:
        """What a server has that was restarted from an old copy of its data isn't to be trusted."""
        opened = self._opened.get(run)
        if opened is not None and opened != lifetime(connection.node(keys.state(run))):
            raise RunOver(f"Run {run} was begun before the store was restarted without its data.")

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End whoever waits for that mailbox, or is about to."""
        self._receivers.hang_up(keys.mailbox(run, mailbox))

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        touched = (keys.state(run), keys.mailbox(run, worker), keys.leases(run))
        return bool(self._script("park", touched, (worker, epoch, read, executed)))

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with the right to start the worker again."""
        touched = (keys.state(run), keys.leases(run))
        (claim,) = _claims(self._script("hand over", touched, (worker, epoch, executed)))
        return claim

    def tend(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of those whose lease is over."""
        touched = (keys.state(run), keys.leases(run), keys.mailbox(run, keys.CLIENT))
        workers = [item for pair in alive for item in pair]
        return _claims(self._script("tend", touched, workers, seconds=0.0))

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker that is in the middle of a transfer."""
        touched = (keys.state(run), keys.leases(run))
        self._aside("beat", touched, (worker, epoch, nbytes))

    def moved(self, run: RunId) -> int:
        """Bytes of transfers under way; none that is known while the server is away."""
        try:
            return int(self._call([["HGET", keys.state(run), "moved"]], seconds=0.0)[0] or 0)
        except StoreUnavailable:
            return 0

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end."""
        touched = (keys.state(run), keys.leases(run))
        claims = _claims(self._script("restart", touched, (worker, epoch, cause, kind)))
        return claims[0] if claims else None

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs."""
        commands: list[list[Arg]] = [
            ["HMGET", keys.outputs(run), *names],
            ["MGET", *(keys.large_output(run, name) for name in names)],
            ["EXISTS", keys.state(run)],
        ]
        small, large, exists = self._call(commands)
        if not exists:
            raise RunOver(f"Run {run} is over.")
        found = [
            here if here is not None else there for here, there in zip(small, large, strict=True)
        ]
        return [self._whole(run, data) for data in found]

    def _in_pieces(self, run: RunId, blob: Blob) -> Pieces:
        """Write an output that is too long for one value."""
        pieces = self._put_pieces(keys.state(run), keys.pieces(run), keys.piece(run), blob)
        if pieces is None:
            raise RunOver(f"Run {run} is over.")
        return pieces

    def _whole(self, run: RunId, data: Buffer | None) -> Buffer | None:
        """A saved output, if need be from its pieces."""
        pieces = pieces_in(data)
        if pieces is None:
            return data
        whole = self._joined(pieces)
        if whole is None:
            self.check(run)
        return whole

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker, beside the one at work."""
        claims = _claims(self._script("twin", (keys.state(run), keys.leases(run)), [worker]))
        return claims[0] if claims else None

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the workers that are at work to leave."""
        touched = (keys.state(run), keys.leases(run))
        told = self._script("stop", touched, [keys.mailbox(run, "")], seconds=0.0)
        return [WorkerId(_text(worker)) for worker in told]

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
        claims, last = self._script("resume", touched, [keys.mailbox(run, ""), int(forgotten)])
        return _claims(claims), _text(last)

    def check(self, run: RunId) -> None:
        """Raise `RunOver` if the run is."""
        if not self._call([["EXISTS", keys.state(run)]])[0]:
            raise RunOver(f"Run {run} is over.")

    def saved(self, run: RunId) -> dict[str, Buffer]:
        """All saved outputs that aren't large."""
        flat = self._call([["HGETALL", keys.outputs(run)]])[0]
        return dict(zip(map(_text, flat[::2]), flat[1::2], strict=True))

    def unsave(self, run: RunId, names: Sequence[str]) -> None:
        """Have outputs that aren't large count as not saved."""
        if names:
            self._call([["HDEL", keys.outputs(run), *names]])

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """The marks that are set."""
        names = map(_text, self._call([["HKEYS", keys.marks(run)]])[0])
        found = [name.partition("\n") for name in names]
        return frozenset((task, producer) for task, _, producer in found if producer.strip())

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """Nowhere else: there is one server."""
        return ""

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed; what was known last while the server is away."""
        try:
            counts = self._call([["HVALS", keys.progress(run)]], seconds=0.0)[0]
        except StoreUnavailable:
            return self._executed.get(run, 0)
        executed = sum(int(count) for count in counts)
        if run in self._opened:
            self._executed[run] = executed
        return executed

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it."""
        self._opened.pop(run, None)
        self._executed.pop(run, None)
        mailboxes = [keys.mailbox(run, name) for name in (keys.CLIENT, *workers)]
        self._delete(run, mailboxes, 0)
        for mailbox in mailboxes:
            self._receivers.hang_up(mailbox, remember=False)

    def expire(self, run: RunId, seconds: float) -> None:
        """Have everything of a run deleted later."""
        self._delete(run, [keys.mailbox(run, keys.CLIENT)], max(1, round(seconds * 1000)))

    def _delete(self, run: RunId, mailboxes: Sequence[str], milliseconds: int) -> None:
        names = (
            keys.large_outputs,
            keys.state,
            keys.pieces,
            keys.marks,
            keys.outputs,
            keys.parts,
            keys.progress,
            keys.given,
            keys.leases,
        )
        touched = [*(name(run) for name in names), *mailboxes]
        args = (keys.large_output(run, ""), keys.mailbox(run, ""), milliseconds)
        patience = _CLOSING_SECONDS if self._outage.lasts else None
        self._script("close", touched, args, seconds=patience)

    def pieces(self, run: RunId, without: Collection[str]) -> Iterator[Piece]:
        """Everything of a run, except some of its large outputs."""
        begin, large = keys.of_run(run), keys.large_output(run, "")
        found = [_text(key) for key in self._call([["KEYS", f"{begin}*"]])[0]]
        apart = (large, keys.piece(run), keys.staged(run, ""), keys.outputs(run))
        whole = [key for key in found if not key.startswith(apart)]
        for start in range(0, len(whole), _TOGETHER):
            some = whole[start : start + _TOGETHER]
            for key, dumped in zip(some, self._call([["DUMP", key] for key in some]), strict=True):
                if dumped is not None:
                    yield Piece(DUMPED, key.removeprefix(begin), dumped)
        yield from self._saved_pieces(run)
        unwanted = {keys.large_output(run, name) for name in without}
        for key in found:
            if key.startswith((large, keys.piece(run))) and key not in unwanted:
                yield from self._string_pieces(key, key.removeprefix(begin))

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
        """Take pieces of a run of which nothing else is there."""
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
        """Give up the connections."""
        self._receivers.close()
        super().disconnect()


def _opening_commands(run: RunId, opening: Opening) -> list[list[Arg]]:
    """What a run begins with, at once; then what is large, which a transaction would hold twice."""
    lease = round(opening.lease * 1000)
    state: list[Arg] = ["run", run, "lease", lease, "restarts", opening.restarts]
    state += ["kind", opening.kind]
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
    """Look whether the run exists and wait for mail, in one round trip."""
    block = ("BLOCK", max(1, round(timeout * 1000))) if timeout > 0 else ()
    read = ("XREAD", *block, "STREAMS", keys.mailbox(run, mailbox), after or "0")
    connection.send([("EXISTS", keys.state(run)), read])
    if not checked(ready(connection, [connection.reply()]))[0]:
        raise RunOver(f"Run {run} is over.")
    mail: list[Any] | None = checked(ready(connection, [connection.reply(patience=timeout)]))[0]
    return mail


def _mark_args(mark: MarkRequest, worker: WorkerId) -> list[Arg]:
    producer, count = mark.producer or worker, len(mark.producers)
    if mark.owner is None:
        held = [mark.producers.index(each) + 1 for each in mark.held or ()]
        number = mark.producers.index(producer) + 1
        return [mark.task, "", number, mark.payload, count, len(held), *held]
    return [mark.task, mark.owner, producer, mark.payload, count, *mark.producers]


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


def _letter(id_: str, fields: list[Buffer]) -> Letter:
    kind, name = str(fields[1], "utf-8"), str(fields[3], "utf-8")
    return Letter(kind, name, tuple(fields[5::2]), id_)
