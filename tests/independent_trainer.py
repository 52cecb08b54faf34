"""A trainer of a few lines that shares no code with the project: it writes the published format by the letter.

Deltas as a public trainer writes them: `zstd(parent XOR new)` per changed tensor, safetensors built by hand.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import xxhash
import zstandard
from blake3 import blake3

Weights = dict[str, np.ndarray]  # name -> 1-D uint8

HASHES = {
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
    "xxh3-128": lambda data: xxhash.xxh3_128_hexdigest(data),
    "blake3": lambda data: blake3(data).hexdigest(),
}


def read_checkpoint(directory: Path) -> tuple[Weights, dict[str, dict]]:
    """All tensors' bytes, and the safetensors headers' entries."""
    weights, entries = {}, {}
    for file in sorted(directory.glob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                weights[name] = np.frombuffer(data[8 + length + start : 8 + length + end], np.uint8).copy()
                entries[name] = entry
    return weights, entries


def safetensors_bytes(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str]) -> bytes:
    header: dict = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def write_anchor(store: Path, version: int, directory: Path, weights: Weights) -> None:
    """An ordinary checkpoint: the given directory's config files, one safetensors file, an index."""
    _, entries = read_checkpoint(directory)
    target = store / f"weight_v{version:06d}"
    target.mkdir(parents=True)
    for file in directory.iterdir():
        if file.suffix in {".json", ".jinja", ".txt"} and "index" not in file.name:
            (target / file.name).write_bytes(file.read_bytes())
    tensors = {name: (entries[name]["dtype"], entries[name]["shape"], weights[name].tobytes()) for name in weights}
    (target / "model-00001-of-00001.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    (store / "latest").write_text(f"weight_v{version:06d}")


def write_delta(
    store: Path,
    version: int,
    base: int,
    parent: Weights,
    new: Weights,
    *,
    checksum: str = "adler32",
    encoding: str = "xor",
    level: int = 1,
    shards: int = 2,
    checksums: dict[str, str] | None = None,
    extra_metadata: dict | None = None,
) -> Path:
    """Writes one delta and moves the pointer. `checksums` overrides what is written for some tensors."""
    target = store / f"weight_v{version:06d}"
    target.mkdir(parents=True, exist_ok=True)
    changed = sorted(name for name in new if not np.array_equal(new[name], parent.get(name)))
    files: list[dict[str, tuple[str, list[int], bytes]]] = [{} for _ in range(shards)]
    metadata: list[dict[str, str]] = [{} for _ in range(shards)]
    weight_map = {}
    for index, name in enumerate(changed):
        payload = _payload(parent.get(name), new[name], encoding, level)
        files[index % shards][name] = ("U8", [len(payload)], payload)
        metadata[index % shards][name] = (checksums or {}).get(name, HASHES[checksum](new[name].tobytes()))
        weight_map[name] = f"model-{index % shards:05d}-of-{shards:05d}.safetensors"
    for index in range(shards):
        if files[index]:
            file = target / f"model-{index:05d}-of-{shards:05d}.safetensors"
            file.write_bytes(safetensors_bytes(files[index], metadata[index]))
    document = {
        "metadata": {
            "version": f"{version:06d}",
            "base_version": f"{base:06d}",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum,
            **(extra_metadata or {}),
        },
        "weight_map": weight_map,
    }
    (target / "model.safetensors.index.json").write_text(json.dumps(document))
    (store / "latest").write_text(f"weight_v{version:06d}")
    return target


def _payload(parent: np.ndarray | None, new: np.ndarray, encoding: str, level: int) -> bytes:
    old = np.zeros_like(new) if parent is None else parent
    xor = old ^ new
    if encoding == "overwrite":
        (positions,) = np.nonzero(xor)
        content = struct.pack("<I", len(positions)) + positions.astype("<u4").tobytes() + new[positions].tobytes()
    else:
        content = xor.tobytes()
    return zstandard.ZstdCompressor(level=level).compress(content)


def train_step(weights: Weights, seed: int, density: float = 0.01) -> Weights:
    """Changes a fraction of the bf16 elements in their low bits, as an optimiser step would."""
    random = np.random.default_rng(seed)
    stepped = {}
    for name, data in weights.items():
        values = data.view("<u2").copy()
        chosen = random.random(len(values)) < density
        values[chosen] ^= random.integers(1, 4, size=int(chosen.sum()), dtype=np.uint16)
        stepped[name] = values.view(np.uint8)
    return stepped
