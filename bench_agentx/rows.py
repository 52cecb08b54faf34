"""One row for each request, and the Parquet file that holds a run: rows, and its summary in the metadata."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_SUMMARY_KEY = b"bench_agentx.summary"


@dataclass(frozen=True, slots=True)
class Row:
    """One request. ``*_s`` are seconds since its phase began, ``*_ms`` durations; ``None`` where the request
    failed before it could be known, or the server does not say."""

    phase: str
    """``warmup`` or ``profiling``."""
    session: str
    play: int
    """Which play of the run: a session that is replayed again is another play."""
    lane: int
    agent: str
    depth: int
    turn: int
    due_s: float
    """When the trace wanted it sent."""
    sent_s: float
    end_s: float
    input_tokens: int
    """As the trace has it (scaled)."""
    output_tokens: int
    prompt_tokens: int | None
    """As the server counted."""
    completion_tokens: int | None
    cached_tokens: int | None
    theoretical_hit_tokens: int
    time_to_first_token_ms: float | None
    inter_token_latency_ms: float | None
    request_latency_ms: float | None
    status: int | None
    error: str | None
    error_message: str
    policy_version: int | None
    version_spans: list[dict[str, int]]
    arrivals_s: list[float]
    """Arrival of each piece that carried tokens."""

    @property
    def ok(self) -> bool:
        return self.error is None


_SPAN = pa.struct([("version", pa.int64()), ("start", pa.int64()), ("end", pa.int64())])
_ARROW_TYPES: dict[str, pa.DataType] = {
    "str": pa.string(),
    "str | None": pa.string(),
    "int": pa.int64(),
    "int | None": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "list[dict[str, int]]": pa.list_(_SPAN),
    "list[float]": pa.list_(pa.float64()),
}
SCHEMA = pa.schema([(column.name, _ARROW_TYPES[str(column.type)]) for column in fields(Row)])


def write_rows(path: Path, rows: list[Row], summary: dict[str, Any]) -> None:
    """Write a run: ``SCHEMA``, zstd, the summary as JSON in the file's metadata."""
    metadata = {_SUMMARY_KEY: json.dumps(summary).encode()}
    table = pa.Table.from_pylist([asdict(row) for row in rows], SCHEMA.with_metadata(metadata))
    pq.write_table(table, path, compression="zstd")


def read_rows(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """The rows and the summary of a run. Raises ValueError for a file that is not one."""
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file: {error}") from error
    metadata = table.schema.metadata or {}
    if _SUMMARY_KEY not in metadata:
        raise ValueError(f"{path}: expected a file written by bench-agentx, found other Parquet columns")
    rows = [Row(**values) for values in table.to_pylist()]
    summary: dict[str, Any] = json.loads(metadata[_SUMMARY_KEY])
    return rows, summary
