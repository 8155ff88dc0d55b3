"""Strict reading of a cluster description: JSON whose keys carry the unit, `{"value": 80, "source": "..."}` or a bare number.

A `Section` is one object of the file. It hands out values by key, remembers which keys were asked for, and refuses the rest at the end, so
a misspelt key is an error that names the file and the path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from costmodels.errors import HardwareError

FORMAT = "autopar-cluster/1"

LEAST, MOST = 1e-9, 1e9
"""Bounds of a quantity in the units of a file, far beyond any machine: predictions stay finite, and bytes fit 64 bits."""

LONGEST = 1 << 20
"""Characters of a file that may be a cluster description."""

Json = dict[str, "Json"] | list["Json"] | str | float | int | bool | None


class Section:
    """One object of the file `where`; `path` leads to it."""

    def __init__(self, content: dict[str, Json], *, where: str, path: str = "") -> None:
        self._content = content
        self._where = where
        self._path = path
        self._asked: set[str] = set()
        self._children: list[Section] = []
        self._sources: list[tuple[str, str]] = []

    def text(self, key: str) -> str:
        """A string."""
        value = self._value(key)
        if not isinstance(value, str) or not value:
            raise self._error(key, f"must be a text, found {_shown(value)}")
        return value

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise self._error(key, f"must be true or false, found {_shown(value)}")
        return value

    def integer(self, key: str, *, default: int | None = None) -> int:
        """A whole number of at least 1; `default` if the key is absent and there is one."""
        if default is not None and key not in self._content:
            return default
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise self._error(key, f"must be a whole number from 1 to {MOST:g}, found {_shown(value)}")
        return value

    def number(self, key: str, *, scale: float = 1.0, least: float = LEAST, most: float = MOST) -> float:
        """A number from `least` to `most`, times `scale`."""
        value = self._value(key)
        if isinstance(value, dict):
            value = self._sourced(key, value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(key, f"must be a number, found {_shown(value)}")
        if not least <= value <= most:
            raise self._error(key, f"must be at least {least:g} and at most {most:g}, found {_shown(value)}")
        return value * scale

    def numbers(self, key: str, *, needed: str, scale: float) -> tuple[tuple[str, float], ...]:
        """An object of numbers, sorted by name; `needed` must be among them."""
        child = self.section(key)
        if needed not in child._content:
            raise self._error(f"{key}.{needed}", "is missing")
        return tuple((name, child.number(name, scale=scale)) for name in sorted(child._content))

    def section(self, key: str) -> Section:
        """An object inside this one."""
        value = self._value(key)
        if not isinstance(value, dict):
            raise self._error(key, f"must be an object, found {_shown(value)}")
        child = Section(value, where=self._where, path=self._full(key))
        self._children.append(child)
        return child

    def sources(self) -> tuple[tuple[str, str], ...]:
        """(path, source) of every number read so far, here and below."""
        return tuple(sorted(self._all_sources()))

    def finish(self) -> None:
        """Refuses keys that nobody asked for."""
        for key in sorted(self._content.keys() - self._asked):
            raise self._error(key, f"is not known here; known are {', '.join(sorted(self._asked))}")
        for child in self._children:
            child.finish()

    def _all_sources(self) -> Iterator[tuple[str, str]]:
        yield from self._sources
        for child in self._children:
            yield from child._all_sources()

    def _value(self, key: str) -> Json:
        self._asked.add(key)
        if key not in self._content:
            raise self._error(key, "is missing")
        return self._content[key]

    def _sourced(self, key: str, quantity: dict[str, Json]) -> Json:
        if quantity.keys() != {"value", "source"} or not isinstance(quantity["source"], str):
            raise self._error(key, 'must be a number or {"value": number, "source": text}')
        self._sources.append((self._full(key), quantity["source"]))
        return quantity["value"]

    def _full(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _error(self, key: str, what: str) -> HardwareError:
        return HardwareError(f"{self._where}: {self._full(key)} {what}")


def names() -> tuple[str, ...]:
    """The presets in the package."""
    folder = files("costmodels") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def read_preset(name: str) -> Section:
    """The preset `name`. Raises HardwareError that lists the known ones."""
    if name not in names():
        raise HardwareError(f"cluster {name!r} is not a preset ({', '.join(names())}); to describe your own, give the path of a .json file")
    return _parse((files("costmodels") / "profiles" / f"{name}.json").read_text(encoding="utf-8"), where=f"preset {name}")


def read_user_file(path: Path) -> Section:
    """The file at `path`. Raises HardwareError if it cannot be read or is not a cluster description."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except (OSError, ValueError) as error:
        raise HardwareError(f"{path}: cannot be read: {error}") from error
    if len(text) > LONGEST:
        raise HardwareError(f"{path}: is longer than {LONGEST:,} characters; a cluster description has about 3,000")
    return _parse(text, where=str(path))


def _parse(text: str, *, where: str) -> Section:
    try:
        content = json.loads(text, object_pairs_hook=_unique)
        json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair (\ud800) is JSON but no text
    except json.JSONDecodeError as error:
        raise HardwareError(f"{where}: line {error.lineno} is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise HardwareError(f"{where}: is not usable JSON: {error}") from error
    if not isinstance(content, dict):
        raise HardwareError(f"{where}: must hold one object, found {_shown(content)}")
    section = Section(content, where=where)
    if section.text("format") != FORMAT:
        raise HardwareError(f"{where}: format must be {FORMAT!r}, found {content['format']!r}")
    return section


def _unique(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice in one object; keep one of them")
    return found


def _shown(value: Json) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
