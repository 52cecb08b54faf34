"""Element access to engine memory: gather, write and compare through flat integer views.

Weights are handled as integers of their element size, never as floats: a NaN compares equal to itself, and nothing
is rounded. Works the same on any torch device; the caller chooses stream and thread.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from sync.layout import Box, LayoutError, LayoutMap
from sync.trace import flat_storage, named_memory

INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WIDENED_SHIFT_BITS = 16


class EngineMemory:
    """The destinations of one rank's layout map, as flat integer tensors over the live storage."""

    def __init__(self, model: torch.nn.Module, layout: LayoutMap) -> None:
        live = dict(named_memory(model))
        self.layout = layout
        self.flat: dict[str, torch.Tensor] = {
            destination.name: as_integers(flat_storage(live[destination.name])) for destination in layout.destinations
        }

    @property
    def device(self) -> torch.device:
        """Where the destinations live; one device a rank."""
        return next(iter(self.flat.values())).device

    def is_widened(self, box_or_destination: str, tensor: str) -> bool:
        """Whether `tensor` (bf16) sits in the destination as fp32."""
        destination = self.layout.destination[box_or_destination]
        return destination.element_size != self.layout.tensor[tensor].element_size

    def block(self, box: Box) -> torch.Tensor:
        """The box's elements in the destination, as a strided view of shape `box.extents`."""
        return self.flat[box.destination].as_strided(box.extents, box.destination_strides, box.destination_offset)

    def read_box(self, box: Box) -> torch.Tensor:
        """The box's elements as the checkpoint has them: `box.extents`, integers of the checkpoint's element size."""
        return self.narrow(self.block(box), box.destination, box.tensor)

    def narrow(self, values: torch.Tensor, destination: str, tensor: str) -> torch.Tensor:
        """Engine values (integers) to checkpoint values; LayoutError where widened ones lost exactness."""
        if not self.is_widened(destination, tensor):
            return values
        if bool((values & 0xFFFF).any()):
            raise LayoutError(f"tensor {tensor!r} in {destination!r}: fp32 values that no bf16 widens to")
        return (values >> WIDENED_SHIFT_BITS).to(torch.int16)

    def widen(self, values: torch.Tensor, destination: str, tensor: str) -> torch.Tensor:
        """Checkpoint values (integers) to what the engine holds."""
        if not self.is_widened(destination, tensor):
            return values
        return values.to(torch.int32) << WIDENED_SHIFT_BITS

    def gather(self, destination: str, offsets: torch.Tensor) -> torch.Tensor:
        """Values at `offsets` (int64, elements of the flat storage)."""
        return self.flat[destination].index_select(0, offsets)

    def write(self, destination: str, offsets: torch.Tensor, values: torch.Tensor) -> None:
        """Writes absolute `values` at `offsets`; writing twice is harmless."""
        self.flat[destination].index_copy_(0, offsets, values)


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of `array` on `device`; to CUDA through page-locked memory, ordered on the current stream."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory seen as signed integers of the same element size."""
    return tensor.view(INTEGER_OF_SIZE[tensor.element_size()])


def source_block(flat: torch.Tensor, box: Box) -> torch.Tensor:
    """The box's elements in a checkpoint tensor given as 1-D integers, as a strided view of shape `box.extents`."""
    return flat.as_strided(box.extents, box.source_strides, box.source_offset)
