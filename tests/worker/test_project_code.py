"""A worker imports the modules of the archive that its run names, and of no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform_examples import invocation
from shoal.client.remote_code import packed_files
from shoal.storage import code as code_storage
from shoal.storage.code import archive_name
from shoal.testing.memory_store import MemoryStore
from shoal.worker import project_code
from shoal.worker.project_code import use_project_code


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The archives of a store, by name."""
    kept: dict[str, bytes] = {}

    class FakeServer:
        def __init__(self, *_: Any) -> None:
            """Never connects."""

        def fetch(self, name: str) -> bytes:
            return kept.pop(name)

        def disconnect(self) -> None:
            """Nothing to do."""

    monkeypatch.setattr(code_storage, "CodeServer", FakeServer)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(project_code, "_unpacked", {})
    yield kept
    for folder in project_code._unpacked.values():
        folder.cleanup()
    sys.modules.pop("of_archive", None)


def archived(kept: dict[str, bytes], folder: Path, **files: str) -> str:
    """The name of an archive of modules."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    archive = packed_files({f"{name}.py": str(folder / f"{name}.py") for name in files})
    kept[archive_name(archive)] = archive
    return archive_name(archive)


def use(name: str) -> None:
    use_project_code(invocation(archive=name), MemoryStore())


def imported() -> Any:
    import of_archive  # type: ignore[import-not-found]

    return of_archive


def test_modules_are_imported_from_the_archive(kept: dict[str, bytes], tmp_path: Path) -> None:
    use(archived(kept, tmp_path, of_archive="VALUE = 1"))
    assert imported().VALUE == 1
    assert not Path(imported().__file__).is_relative_to(tmp_path)


def test_an_archive_is_fetched_once(kept: dict[str, bytes], tmp_path: Path) -> None:
    name = archived(kept, tmp_path, of_archive="VALUE = 1")
    use(name)
    assert not kept
    use(name)


def test_nothing_happens_without_an_archive(kept: dict[str, bytes]) -> None:
    before = [*sys.path]
    use("")
    assert sys.path == before
