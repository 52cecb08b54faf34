"""The ledger: per checkpoint tensor, the Adler-32 of the bytes that the engine holds. Recorded as Parquet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from native import adler32_add
from sync.errors import PublicationError, Rejection
from sync.layout import CheckpointTensor


@dataclass(frozen=True)
class Ledger:
    """`adler32`: by tensor name. `version`: the policy version that the engine holds."""

    version: int
    tensors: tuple[CheckpointTensor, ...]
    adler32: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        """Bytes of weights that the ledger answers for."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def check_parent(self, version: int, parent_checksums: Mapping[str, str]) -> None:
        """Raises PublicationError (WRONG_PARENT) where a delta names another parent than the engine holds."""
        for name, text in parent_checksums.items():
            held = self.adler32.get(name)
            if held is not None and f"{held:08x}" != text:
                raise PublicationError(
                    Rejection.WRONG_PARENT,
                    f"the delta was computed against bytes with Adler-32 {text}, the engine's version {self.version} "
                    f"has {held:08x}; publish an anchor",
                    version=version,
                    tensor=name,
                )

    def advance(self, version: int, expected: Mapping[str, str | None], corrections: Mapping[str, int]) -> Ledger:
        """The ledger after `version`, with the verdict: every changed tensor must come out as the trainer published.

        `expected`: Adler-32 in hexadecimal by changed tensor, None where another format was judged already.
        `corrections`: by tensor, of all ranks together. Raises PublicationError (CHECKSUM_MISMATCH).
        """
        adler32 = dict(self.adler32)
        for name in corrections.keys() - expected.keys():
            raise PublicationError(
                Rejection.CHECKSUM_MISMATCH, "changed without a published checksum", version=version, tensor=name
            )
        for name, text in expected.items():
            adler32[name] = adler32_add(adler32[name], corrections.get(name, 0))
            if text is not None and f"{adler32[name]:08x}" != text:
                raise PublicationError(
                    Rejection.CHECKSUM_MISMATCH,
                    f"the new bytes' Adler-32 would be {adler32[name]:08x} (the engine holds "
                    f"{self.adler32[name]:08x}), the trainer published {text}: the delta is corrupt, or was computed "
                    f"against another parent than version {self.version}",
                    version=version,
                    tensor=name,
                )
        return Ledger(version, self.tensors, adler32)

    def write(self, path: Path) -> None:
        """Writes the ledger whole or not at all."""
        table = pa.table(
            {
                "name": [tensor.name for tensor in self.tensors],
                "dtype": [tensor.dtype for tensor in self.tensors],
                "shape": pa.array([list(tensor.shape) for tensor in self.tensors], pa.list_(pa.int64())),
                "adler32": pa.array([self.adler32[tensor.name] for tensor in self.tensors], pa.uint32()),
            }
        ).replace_schema_metadata({"policy_version": str(self.version)})
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        pq.write_table(table, temporary)
        temporary.replace(path)

    @staticmethod
    def read(path: Path) -> Ledger:
        """Reads what `write` wrote."""
        table = pq.read_table(path)
        rows = table.to_pylist()
        return Ledger(
            int((table.schema.metadata or {})[b"policy_version"]),
            tuple(CheckpointTensor(row["name"], row["dtype"], tuple(row["shape"])) for row in rows),
            {row["name"]: row["adler32"] for row in rows},
        )
