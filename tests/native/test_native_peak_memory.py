"""What a decode takes beyond its input and its output: at most 1 MiB a thread, whatever the density and the window.

A process of its own reads its own high-water mark (Linux's /proc/self/status).
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import zstandard
from native_contents import dense_content, sparse_content

SIZE_BYTES = 48 << 20
FRAME_BYTES = 12 << 20
LIMIT_BYTES = 1 << 20

PROGRAM = """
import sys, native
size_bytes, element_size, threads = map(int, sys.argv[1:])
payload = sys.stdin.buffer.read()
def status(field):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(field))
def decode(payload, size_bytes):
    if threads == 0:
        return native.decode_sparse(payload, size_bytes, element_size)
    job = native.DecodeJob("t", payload, size_bytes, element_size)
    return native.decode_many([job], threads=threads, reserve_cores=0)[0].xor
decode(b"", 0)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
decoded = decode(payload, size_bytes)
print(status("VmHWM") - before - decoded.positions.nbytes - decoded.masks.nbytes)
"""


def compress(content: bytes, level: int) -> bytes:
    frames = range(0, len(content), FRAME_BYTES)
    return b"".join(zstandard.compress(content[at : at + FRAME_BYTES], level) for at in frames)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's high-water mark of memory")
@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize(
    ("density", "level", "element_size"),
    [(0.0009, 3, 2), (0.01, 3, 1), (0.03, 9, 2), (0.1, 3, 1), (0.1, 12, 4), (1.0, 3, 1)],
)
def test_a_decode_takes_under_a_mebibyte_a_thread(density: float, level: int, element_size: int, threads: int) -> None:
    content = sparse_content(SIZE_BYTES, density, seed=1) if density < 1 else dense_content(SIZE_BYTES, seed=1)
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(SIZE_BYTES), str(element_size), str(threads)],
        input=compress(content, level),
        capture_output=True,
        check=True,
    )
    assert int(program.stdout) <= LIMIT_BYTES * max(threads, 1)
