"""The published format, read: index, chain, shards, payloads, with every rejection that needs no engine.

`read_manifest` and `resolve_chain` say what there is to do, `fetch_shard` brings it into memory,
`decode_overwrite` and `decode_xor` unpack one tensor. All raise `sync.errors.PublicationError`.
"""

from sync.format.chain import resolve_chain
from sync.format.frames import Overwrite, decode_overwrite, decode_xor
from sync.format.manifest import parse_manifest, read_manifest
from sync.format.shards import (
    AnchorShard,
    AnchorTensor,
    DeltaShard,
    DeltaTensor,
    fetch_anchor_shard,
    fetch_shard,
    read_checksums,
)

__all__ = [
    "AnchorShard",
    "AnchorTensor",
    "DeltaShard",
    "DeltaTensor",
    "Overwrite",
    "decode_overwrite",
    "decode_xor",
    "fetch_anchor_shard",
    "fetch_shard",
    "parse_manifest",
    "read_checksums",
    "read_manifest",
    "resolve_chain",
]
