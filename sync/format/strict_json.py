"""JSON as a reader of untrusted bytes needs it: bounded by its caller, no key twice, an object at the top.

Python's `json` keeps the last of two equal keys; another reader may keep the first, and then the two would
serve different weights under one version.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises `ValueError` with the reason in one line."""
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object at the top, found {type(parsed).__name__}")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {ascii(twice)[:80]} appears more than once")
    return unique


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
