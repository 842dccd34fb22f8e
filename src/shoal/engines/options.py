"""Options of an engine in the query of its URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from shoal.errors import SettingsError


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """What a URL says: `slurm:///PATH?name=value&…`."""

    url: str
    path: str
    values: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, url: str, known: Sequence[str]) -> UrlOptions:
        """Read a URL whose options have these names."""
        parts = urlsplit(url)
        if parts.netloc:
            name = unquote(parts.netloc + parts.path)
            raise SettingsError(
                f"platform={url!r}: the URL needs three slashes: {parts.scheme}:///{name}."
            )
        values = parse_qs(parts.query, keep_blank_values=True)
        unknown = sorted(values.keys() - set(known))
        if unknown:
            raise SettingsError(
                f"platform={url!r}: unknown option {unknown[0]!r}. The options are "
                f"{', '.join(known)}."
            )
        return cls(url, unquote(parts.path).strip("/"), values)

    def text(self, name: str, default: str = "") -> str:
        """An option's value; the last one if it is repeated."""
        return self.values[name][-1] if name in self.values else default

    def number(self, name: str, default: float, least: float = 0.0) -> float:
        """An option's value as a number."""
        text = self.text(name, str(default))
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number < float("inf"):
            raise SettingsError(
                f"platform={self.url!r}: {name}={text!r} must be a number of at least {least:g}."
            )
        return number
