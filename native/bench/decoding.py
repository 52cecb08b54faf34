"""The decoder against the three baselines, one core, one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from native import decode_sparse
from native.bench.baselines import Libzstd, Scan, decode_in_python
from native.bench.fixtures import Fixture, Recipe
from native.bench.measure import median_seconds

DENSITIES = (0.0001, 0.0009, 0.01, 0.03, 0.1)
LEVELS = (1, 3, 9, None)


class Case(NamedTuple):
    """Rates in GB/s of logical content; over_a and over_b: how many times faster than (a) and (b)."""

    name: str
    compressed_percent: float
    bytes_a_change: float
    native: float
    libzstd_dense: float
    libzstd_stream_scan: float
    python: float | None
    over_a: float
    over_b: float


def recipes(size_bytes: int) -> Iterator[Recipe]:
    """Every kind, density and level with uniform changes; clustered ones at 0.09% and 1%."""
    for kind in ("bf16", "fp8"):
        for density in DENSITIES:
            content_bytes = size_bytes if density < 0.005 else size_bytes // 4
            for level in LEVELS:
                yield Recipe(kind, density, level, content_bytes)
                if density in (0.0009, 0.01) and level in (3, None):
                    yield Recipe(kind, density, level, content_bytes, clustered=True)


def measure_fixture(fixture: Fixture, rounds: int, *, with_python: bool) -> Case:
    """Checks that all agree, then measures."""
    libzstd, scan = Libzstd(), Scan()
    out = np.zeros(fixture.size_bytes, np.uint8)
    decoded = decode_sparse(fixture.payload, fixture.size_bytes, fixture.element_size)
    libzstd.decode_dense(fixture.payload, out)
    elements = out.view(f"<u{fixture.element_size}")
    np.testing.assert_array_equal(decoded.positions, np.flatnonzero(elements))
    np.testing.assert_array_equal(decoded.masks, elements[decoded.positions])
    assert libzstd.decode_and_scan(fixture.payload, scan) == np.count_nonzero(out)
    work: dict[str, Any] = {
        "native": lambda: decode_sparse(fixture.payload, fixture.size_bytes, fixture.element_size),
        "a": lambda: libzstd.decode_dense(fixture.payload, out),
        "b": lambda: libzstd.decode_and_scan(fixture.payload, scan),
    }
    if with_python:
        work["c"] = lambda: decode_in_python(fixture.payload, fixture.element_size)
    seconds = median_seconds(work, rounds)
    rate = {name: fixture.size_bytes / value / 1e9 for name, value in seconds.items()}
    return Case(
        fixture.name,
        100 * len(fixture.payload) / fixture.size_bytes,
        len(fixture.payload) / max(1, fixture.changed_elements),
        rate["native"],
        rate["a"],
        rate["b"],
        rate.get("c"),
        seconds["a"] / seconds["native"],
        seconds["b"] / seconds["native"],
    )
