"""Traces a layout map out of the engine's own weight loader. Knows vLLM; runs inside a worker.

The model class is built again on the meta device and its own `load_weights` is fed meta tensors, one for each
checkpoint tensor. Meta tensors keep storage identity, offset and strides through narrow, view and transpose, so a
dispatch mode that catches `aten.copy_` sees both ends of every final copy exactly. Nothing is executed and no
weight is read. What the trace says is proved against real bytes by `sync.verify` before anyone relies on it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from sync.layout import Box, CheckpointTensor, Destination, LayoutError, LayoutMap, make_box

TORCH_DTYPE = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
SAFETENSORS_DTYPE = {dtype: name for name, dtype in TORCH_DTYPE.items()}

# Besides equal dtypes, the only conversion a copy may do: exact, and undone by dropping the low 16 bits.
WIDENING = ("BF16", "F32")


class _CopyRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not type-checked here
    """Records copies from watched (checkpoint) storages and executes none; refuses any other use of them."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[int, CheckpointTensor] = {}
        self.copies: list[tuple[CheckpointTensor, torch.Tensor, torch.Tensor]] = []
        self._alive: list[torch.Tensor] = []

    def watch(self, tensor: CheckpointTensor) -> torch.Tensor:
        """A meta tensor that stands for `tensor`."""
        stand_in = torch.empty(tensor.shape, dtype=TORCH_DTYPE[tensor.dtype], device="meta")
        self.sources[_storage(stand_in)] = tensor
        self._alive.append(stand_in)
        return stand_in

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        watched = [
            self.sources[_storage(leaf)]
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and _storage(leaf) in self.sources
        ]
        if not watched:
            return func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default:
            target, source = args[0], args[1]
            if _storage(source) in self.sources:
                self._alive += [target, source]
                self.copies.append((watched[0], source, target))
                return target
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _storage(leaf) not in self.sources:
                raise LayoutError(
                    f"tensor {watched[0].name!r}: the model's loader computes new values from it ({func}) instead "
                    "of copying views, so engine memory cannot be traced back to the checkpoint"
                )
        return result


def _storage(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity


def trace_layout(
    vllm_config: VllmConfig, live_model: torch.nn.Module, tensors: Iterable[CheckpointTensor], rank: int
) -> LayoutMap:
    """Traces where this rank keeps each checkpoint tensor.

    `live_model` is the served model: a destination must exist there with the dtype and storage size that the trace
    saw. Raises LayoutError, naming the tensor, where a copy is not a strided box, converts values inexactly, or ends
    in storage that is not a named parameter or buffer of the live model with the same storage.
    """
    tensors = tuple(tensors)
    recorder = _CopyRecorder()
    config = copy.deepcopy(vllm_config)
    config.compilation_config.static_forward_context.clear()
    model_config = config.model_config
    with set_default_torch_dtype(model_config.dtype), torch.device("meta"), set_current_vllm_config(config):
        model = initialize_model(vllm_config=config, model_config=model_config)
        stand_ins = [(tensor.name, recorder.watch(tensor)) for tensor in tensors]
        with recorder:
            model.load_weights(iter(stand_ins))
    traced_owner = {_storage(tensor): name for name, tensor in named_memory(model)}
    live_memory = dict(named_memory(live_model))
    boxes = list(_boxes(recorder, traced_owner))
    destinations = [_destination(name, live_memory, model) for name in dict.fromkeys(box.destination for box in boxes)]
    return LayoutMap(rank, tensors, tuple(destinations), tuple(boxes))


def named_memory(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, each storage once (tied parameters share one)."""
    seen: set[int] = set()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if _storage(tensor) not in seen:
            seen.add(_storage(tensor))
            yield name, tensor


def _boxes(recorder: _CopyRecorder, owner: dict[int, str]) -> Iterator[Box]:
    for tensor, source, target in recorder.copies:
        destination = owner.get(_storage(target))
        if destination is None:
            raise LayoutError(f"tensor {tensor.name!r}: copied to memory that is no parameter of the model")
        if source.squeeze().shape != target.squeeze().shape:
            raise LayoutError(
                f"tensor {tensor.name!r} -> {destination!r}: copied by broadcasting "
                f"{list(source.shape)} to {list(target.shape)}"
            )
        pair = (SAFETENSORS_DTYPE[source.dtype], SAFETENSORS_DTYPE[target.dtype])
        if pair[0] != pair[1] and pair != WIDENING:
            raise LayoutError(
                f"tensor {tensor.name!r} -> {destination!r}: converted on load from {pair[0]} to {pair[1]}, which "
                "loses the published bytes"
            )
        source, target = source.squeeze(), target.squeeze()
        yield make_box(
            tensor.name,
            destination,
            (source.storage_offset(), source.stride()),
            (target.storage_offset(), target.stride()),
            source.shape,
        )


def _destination(name: str, live_memory: dict[str, torch.Tensor], traced: torch.nn.Module) -> Destination:
    live = live_memory.get(name)
    expected = dict(named_memory(traced))[name]
    if live is None or live.dtype != expected.dtype or flat_storage(live).numel() < flat_storage(expected).numel():
        found = "nothing" if live is None else f"{live.dtype} with {flat_storage(live).numel()} elements"
        raise LayoutError(
            f"engine tensor {name!r}: the loader fills {expected.dtype} with {flat_storage(expected).numel()} "
            f"elements, but the served model holds {found}: it was rearranged after loading"
        )
    return Destination(name, SAFETENSORS_DTYPE[live.dtype], flat_storage(live).numel())


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage behind `tensor` as a 1-D tensor of its dtype, sharing memory."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((elements,), (1,), 0)
