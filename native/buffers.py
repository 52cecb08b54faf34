"""The type of what the native functions read: anything with a C-contiguous buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    # numpy's stubs show ndarray's buffer only from Python 3.12 on.
    BufferLike: TypeAlias = Buffer | NDArray[Any]


def as_bytes(data: BufferLike) -> NDArray[np.uint8]:
    """data's memory as one array of bytes, without a copy. Raises ValueError if it is not C-contiguous."""
    return np.frombuffer(cast("memoryview", data), np.uint8)
