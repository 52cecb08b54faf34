"""An independent writer of the published format, from its specification alone, as a public trainer would be.

Shares no code with `sync`: struct, json, hashlib-like libraries and zstandard only.
"""

import json
import struct
import zlib
from collections.abc import Mapping

import blake3
import numpy as np
import xxhash
import zstandard

CHECKSUMS = {
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
    "xxh3-128": lambda data: xxhash.xxh3_128_hexdigest(data),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
}


def safetensors_file(header: Mapping[str, object], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def payload_file(payloads: Mapping[str, bytes], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    body = b""
    for name, payload in payloads.items():
        offsets = [len(body), len(body) + len(payload)]
        header[name] = {"dtype": "U8", "shape": [len(payload)], "data_offsets": offsets}
        body += payload
    return safetensors_file(header, body)


def xor_payload(parent: bytes, new: bytes, *, level: int = 1) -> bytes:
    dense = np.frombuffer(parent, np.uint8) ^ np.frombuffer(new, np.uint8)
    return zstandard.ZstdCompressor(level=level).compress(dense.tobytes())


def overwrite_payload(parent: bytes, new: bytes) -> bytes:
    changed = [position for position in range(len(new)) if parent[position] != new[position]]
    content = struct.pack(f"<I{len(changed)}I", len(changed), *changed)
    return zstandard.compress(content + bytes(new[position] for position in changed), level=1)


def delta_files(
    version: int,
    base_version: int,
    changes: Mapping[str, tuple[bytes, bytes]],
    *,
    encoding: str = "xor",
    checksum_format: str = "xxh3-128",
    file_count: int = 1,
) -> dict[str, bytes]:
    """Keys below the store's root -> contents, for tensors given as (parent bytes, new bytes)."""
    directory = f"weight_v{version:06d}"
    encode = {"xor": xor_payload, "overwrite": overwrite_payload}[encoding]
    weight_map = {
        name: f"model-{number % file_count:05d}-of-{file_count:05d}.safetensors" for number, name in enumerate(changes)
    }
    written = {}
    for file in sorted(set(weight_map.values())):
        names = [name for name in changes if weight_map[name] == file]
        written[f"{directory}/{file}"] = payload_file(
            {name: encode(*changes[name]) for name in names},
            {name: CHECKSUMS[checksum_format](changes[name][1]) for name in names},
        )
    index = {
        "metadata": {
            "version": f"{version:06d}",
            "base_version": f"{base_version:06d}",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum_format,
        },
        "weight_map": weight_map,
    }
    written[f"{directory}/model.safetensors.index.json"] = json.dumps(index).encode()
    return written


def anchor_files(version: int, tensors: Mapping[str, bytes], **metadata: object) -> dict[str, bytes]:
    """An anchor of 1-D BF16 tensors as Hugging Face writes it."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, data in tensors.items():
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": offsets}
        body += data
    file = "model-00001-of-00001.safetensors"
    index = {"metadata": {"total_size": len(body), **metadata}, "weight_map": dict.fromkeys(tensors, file)}
    directory = f"weight_v{version:06d}"
    return {
        f"{directory}/{file}": safetensors_file(header, body),
        f"{directory}/model.safetensors.index.json": json.dumps(index).encode(),
    }
