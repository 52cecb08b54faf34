"""Typed access to parsed JSON whose errors name the file, the line or path, the field and the value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_agentx.types import TraceError

MAX_TRACE_BYTES = 2 << 30
_SHOWN_CHARACTERS = 80


class Fields:
    """A JSON object at a known place. Every getter raises TraceError naming that place."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise TraceError(f"{where}: expected a JSON object, found {_shown(value)}")
        self._values: dict[str, Any] = value
        self.where = where

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def error(self, name: str, expected: str) -> TraceError:
        found = _shown(self._values[name]) if name in self._values else "nothing (the field is missing)"
        return TraceError(f"{self.where}: field {name!r}: expected {expected}, found {found}")

    def integer(self, name: str, *, at_least: int, default: int | None = None) -> int:
        value = self._values.get(name, default)
        if type(value) is not int or value < at_least:
            raise self.error(name, f"an integer >= {at_least}")
        return value

    def seconds(self, name: str, *, default: float | None = None) -> float:
        """A finite, non-negative number; null counts as missing."""
        value: Any = self._values.get(name)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise self.error(name, "a finite number >= 0")
        return float(value)

    def text(self, name: str, *, one_of: tuple[str, ...] = (), default: str | None = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str) or (one_of and value not in one_of):
            raise self.error(name, f"one of {', '.join(map(repr, one_of))}" if one_of else "a string")
        return value

    def objects(self, name: str) -> tuple[Fields, ...]:
        """A non-empty array of objects."""
        value = self._values.get(name)
        if not isinstance(value, list) or not value:
            raise self.error(name, "a non-empty array")
        return tuple(Fields(item, f"{self.where}: {name}[{index}]") for index, item in enumerate(value))

    def block_ids(self, name: str, *, at_most: int) -> npt.NDArray[np.int64]:
        """An array of int64 ids, int64 [blocks], no longer than ``at_most``."""
        value = self._values.get(name)
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self.error(name, "an array of integers")
        if len(value) > at_most:
            raise TraceError(
                f"{self.where}: field {name!r}: {len(value)} block ids, but the input length fills only {at_most}"
            )
        try:
            return np.array(value, dtype=np.int64)
        except OverflowError:
            raise self.error(name, "ids that fit 64 bits") from None


def read_json(path: Path) -> Any:
    """The one JSON document of a file; TraceError if it is not JSON or is absurdly large."""
    return _parse(_read_text(path), str(path))


def read_json_lines(path: Path) -> Iterator[Fields]:
    """The objects of a JSONL file, in order; blank lines are skipped."""
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if line.strip():
            where = f"{path}: line {number}"
            yield Fields(_parse(line, where), where)


def _read_text(path: Path) -> str:
    size_bytes = path.stat().st_size
    if size_bytes > MAX_TRACE_BYTES:
        raise TraceError(f"{path}: {size_bytes} bytes; a trace file has at most {MAX_TRACE_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text: {error}") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON: {error}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
