"""The progress bar appears only for longer runs, and shows any name."""

import pytest

from shoal.client import progress_bar
from shoal.client.progress_bar import ProgressBar


def test_a_short_run_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("short", 2)
    bar.show(1)
    bar.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("plain", "plain"), ("[/x] [bold]", "[/x] [bold]"), ("\x1b]0;title\x07", r"\x1b]0;title\x07")],
)
def test_a_longer_run_shows_its_name_and_progress(
    name: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bar, "_HIDDEN_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    bar = ProgressBar(name, 40)
    for executed in (10, 25):
        bar.show(executed)
    bar.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert shown in err
    assert "25/40" in err
