"""A policy as named tensors: numpy arrays, torch tensors, or a checkpoint directory, all as plain bytes.

Owns the one place where dtypes of three libraries meet. Nothing is copied where bytes are contiguous already: a
directory's files are mapped, an array's memory is viewed.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sync.errors import PublicationError
from sync.format.safetensors_header import DTYPE_BITS, LENGTH_PREFIX_BYTES, header_length, parse_header
from sync.types import INDEX_FILE

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = npt.NDArray[np.generic] | torch.Tensor
    """An array in host memory. bfloat16 and fp8: torch, or numpy with ml_dtypes, or numpy integers of their size."""

    Tensors: TypeAlias = Mapping[str, Tensor] | str | os.PathLike[str]
    """A whole policy: tensors by checkpoint name, or a checkpoint directory in Hugging Face layout."""

DTYPE_NAMES: Mapping[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}
"""safetensors dtype -> the name that torch, numpy (with ml_dtypes) and the safetensors library use."""
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class NamedTensor(NamedTuple):
    """One tensor: safetensors dtype and shape, and its bytes, row-major little-endian (uint8, 1-D)."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def element_size_bytes(self) -> int:
        """Bytes of the unit in which changes are counted: an element, or a byte of packed sub-byte ones."""
        return max(1, DTYPE_BITS[self.dtype] // 8)

    @property
    def element_count(self) -> int:
        return self.data.nbytes // self.element_size_bytes


def named_tensors(source: Tensors) -> dict[str, NamedTensor]:
    """The tensors of `source` by name, as views where that is possible.

    A directory's bytes are mapped from its files, which must not be rewritten in place meanwhile.
    Raises `FileNotFoundError` or `ValueError` for a directory without weights, or with a name in two files;
    `TypeError` for a dtype that safetensors does not know; `PublicationError` for a broken file.
    """
    if isinstance(source, str | os.PathLike):
        return _from_directory(Path(source))
    return {name: _from_array(name, tensor) for name, tensor in source.items()}


def checkpoint_files(directory: Path) -> list[Path]:
    """The weight files of a checkpoint directory: those that its index names, else all `*.safetensors`.

    Raises `FileNotFoundError` if there is none, or one that the index names is missing.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is not a directory; expected a Hugging Face checkpoint")
    index = directory / INDEX_FILE
    if index.is_file():
        weight_map: Mapping[str, str] = json.loads(index.read_bytes())["weight_map"]
        files = sorted({directory / file for file in weight_map.values()})
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{directory} has no *.safetensors file; expected a Hugging Face checkpoint")
    if missing := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{directory} lacks {', '.join(missing[:5])}, which its {INDEX_FILE} names")
    return files


def _from_directory(directory: Path) -> dict[str, NamedTensor]:
    found: dict[str, NamedTensor] = {}
    for file in checkpoint_files(directory):
        for name, tensor in _from_file(file).items():
            if name in found:
                raise ValueError(f"{directory}: tensor {name} is in two files, the second is {file.name}")
            found[name] = tensor
    return found


def _from_file(file: Path) -> dict[str, NamedTensor]:
    size_bytes = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = header_length(stream.read(LENGTH_PREFIX_BYTES), size_bytes)
            header = parse_header(stream.read(length), size_bytes)
            # The mapping outlives the file object, and ends with the last array over it.
            content = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except PublicationError as error:
        raise error.at(file=str(file)) from error
    return {
        entry.name: NamedTensor(entry.dtype, entry.shape, content[entry.start : entry.end]) for entry in header.tensors
    }


def _from_array(name: str, tensor: Tensor) -> NamedTensor:
    torch = sys.modules.get("torch")  # who passes a torch tensor has imported it
    if torch is not None and isinstance(tensor, torch.Tensor):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        dtype = _dtype(name, str(tensor.dtype).removeprefix("torch."))
        data = flat.view(torch.uint8).numpy()
        shape = tuple(tensor.shape)
        return NamedTensor(dtype, (*shape[:-1], 2 * shape[-1]) if dtype == "F4" else shape, data)
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"tensor {name}: expected a numpy array or a torch tensor, found {type(tensor).__name__}")
    dtype = _dtype(name, tensor.dtype.name)
    little_endian = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
    return NamedTensor(dtype, tensor.shape, np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8))


def _dtype(name: str, dtype_name: str) -> str:
    if dtype_name not in _DTYPES:
        raise TypeError(f"tensor {name}: safetensors knows no dtype {dtype_name}; publish its bits as integers")
    return _DTYPES[dtype_name]
