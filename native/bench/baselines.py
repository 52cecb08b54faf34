"""What a user would do without the sparse decoder, with the system's libzstd or with `zstandard` and numpy."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from native import _core

STREAM_BYTES = 16 << 20
MARGIN_BYTES = 64


class _InBuffer(ctypes.Structure):
    _fields_ = (("src", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


class _OutBuffer(ctypes.Structure):
    _fields_ = (("dst", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


class Libzstd:
    """The system's libzstd. Raises OSError where there is none."""

    def __init__(self) -> None:
        library = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_decompressDCtx.restype = ctypes.c_size_t
        library.ZSTD_decompressDCtx.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        library.ZSTD_decompressStream.restype = ctypes.c_size_t
        library.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        library.ZSTD_DCtx_reset.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.ZSTD_isError.argtypes = [ctypes.c_size_t]
        library.ZSTD_versionString.restype = ctypes.c_char_p
        self._library = library
        self._context = library.ZSTD_createDCtx()
        self.version: str = library.ZSTD_versionString().decode()

    def _check(self, result: int) -> int:
        if self._library.ZSTD_isError(result):
            raise RuntimeError(f"libzstd failed with code {result - (1 << 64)}")
        return result

    def decode_dense(self, payload: bytes, out: NDArray[np.uint8]) -> int:
        """(a) One shot into a buffer that is there already."""
        return self._check(
            self._library.ZSTD_decompressDCtx(self._context, out.ctypes.data, out.nbytes, payload, len(payload))
        )

    def decode_and_scan(self, payload: bytes, scan: Scan) -> int:
        """(b) Streamed through 16 MiB, each piece scanned for nonzero bytes; returns how many there are."""
        self._library.ZSTD_DCtx_reset(self._context, 1)
        source = ctypes.create_string_buffer(payload, len(payload))
        incoming = _InBuffer(ctypes.addressof(source), len(payload), 0)
        total = 0
        while True:
            outgoing = _OutBuffer(scan.buffer.ctypes.data, STREAM_BYTES, 0)
            while outgoing.pos < outgoing.size:
                before = (incoming.pos, outgoing.pos)
                self._check(
                    self._library.ZSTD_decompressStream(self._context, ctypes.byref(outgoing), ctypes.byref(incoming))
                )
                if (incoming.pos, outgoing.pos) == before:
                    break
            total += scan.run(outgoing.pos)
            if outgoing.pos < outgoing.size:
                return total


class Scan:
    """Buffers of (b): 16 MiB of content, and the positions and values found in it."""

    def __init__(self) -> None:
        self.buffer = np.zeros(STREAM_BYTES + MARGIN_BYTES, np.uint8)
        self._positions = np.zeros(STREAM_BYTES + MARGIN_BYTES, np.uint32)
        self._values = np.zeros(STREAM_BYTES + MARGIN_BYTES, np.uint8)

    def run(self, length: int) -> int:
        return _core.scan_nonzero(self.buffer, length, self._positions, self._values)


def decode_in_python(payload: bytes, element_size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(c) `zstandard` and numpy.nonzero."""
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(payload, read_across_frames=True)
    content = reader.read()
    elements = np.frombuffer(content, f"<u{element_size}")
    positions = np.flatnonzero(elements)
    return positions, elements[positions]
