"""A run's checkpoint survives a round trip, and a truncated one is noticed."""

from __future__ import annotations

from io import BytesIO

import pytest

from shoal.errors import Tampered
from shoal.storage.checkpoint import DUMPED, SHARED, STRING, Piece, read_pieces, write_pieces

PIECES = [Piece(DUMPED, "state", b"\0\1"), Piece(STRING, "ä#0", b""), Piece(SHARED, "f", b"x" * 99)]


def written() -> bytes:
    file = BytesIO()
    lengths = list(write_pieces(file, PIECES))
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(file.getvalue())
    return file.getvalue()


def test_pieces_survive_a_round_trip() -> None:
    assert list(read_pieces(BytesIO(written()))) == PIECES


@pytest.mark.parametrize("cut", [1, 20, 50, -1])
def test_a_truncated_checkpoint_is_noticed(cut: int) -> None:
    with pytest.raises(Tampered, match="damaged"):
        list(read_pieces(BytesIO(written()[:cut])))
