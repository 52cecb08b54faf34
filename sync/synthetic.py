"""Random Hugging Face checkpoints for tests and benchmarks: quick, deterministic, and servable by vLLM.

Owns: making up weights and a byte-level tokenizer, and changing weights as a training step would.
Holds no table of tensor shapes: names and shapes come from transformers' own model, built on the
meta device, so an architecture that transformers knows needs no code here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sync.checkpoint_copy import atomic_directory, write_index

if TYPE_CHECKING:
    import torch

Architecture = Literal["llama", "qwen3", "qwen3_moe"]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SAMPLE_LEVELS = 1 << 16
_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class CheckpointInfo:
    """What a call wrote: tensors and their bytes (without file headers), and the shard files."""

    directory: Path
    tensor_count: int
    element_count: int
    size_bytes: int
    shards: tuple[str, ...]


def write_random_checkpoint(
    directory: Path | str,
    *,
    architecture: Architecture = "llama",
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 256,
    vocab: int = 512,
    tied: bool = True,
    dtype: str = "bfloat16",
    seed: int = 0,
    shard_bytes: int = 1 << 30,
    max_position: int = 4096,
    tokenizer: bool = True,
    extra_config: Mapping[str, Any] | None = None,
) -> CheckpointInfo:
    """Writes a checkpoint with random weights; the same arguments give the same bytes.

    Matrices are normal with variance 1/fan-in and norm weights scatter around 1, so activations and
    logits stay of order 1 at any size. Each file holds at most ``shard_bytes`` of tensors (more only
    if one tensor is larger), and peak memory is about one file. With ``tokenizer=False`` load it with
    vLLM's ``--skip-tokenizer-init``. ``extra_config`` goes to transformers' config as it is
    (``num_experts`` and the like). ``directory`` must not exist; it appears whole or not at all.

    Raises FileExistsError if ``directory`` exists, ValueError for a ``vocab`` that is too small for
    the tokenizer.
    """
    import torch

    directory = Path(directory)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    config = _model_config(
        architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=max_position,
        tie_word_embeddings=tied,
        dtype=torch_dtype,
        bos_token_id=0,
        eos_token_id=2,
        **dict(extra_config or {}),
    )
    shapes = _checkpoint_shapes(config)
    with atomic_directory(directory) as temporary:
        config.save_pretrained(temporary)
        if tokenizer:
            write_byte_tokenizer(temporary, vocab, max_position)
        shards = _write_shards(temporary, shapes, torch_dtype, seed, shard_bytes)
    element_count = sum(math.prod(shape) for shape in shapes.values())
    return CheckpointInfo(directory, len(shapes), element_count, element_count * torch_dtype.itemsize, shards)


def small_tied(directory: Path | str, *, seed: int = 0) -> CheckpointInfo:
    """A tied Llama of 2 layers, 0.7 MB."""
    return write_random_checkpoint(directory, architecture="llama", tied=True, seed=seed)


def small_untied(directory: Path | str, *, seed: int = 0) -> CheckpointInfo:
    """An untied Qwen3 of 3 layers in several shards, about 5 MB."""
    return write_random_checkpoint(
        directory,
        architecture="qwen3",
        hidden=256,
        layers=3,
        heads=8,
        kv_heads=4,
        intermediate=512,
        vocab=1024,
        tied=False,
        seed=seed,
        shard_bytes=2 << 20,
    )


def small_moe(directory: Path | str, *, seed: int = 0) -> CheckpointInfo:
    """A Qwen3 MoE of 2 layers with 8 experts, 2 a token, 1.3 MB."""
    return write_random_checkpoint(
        directory,
        architecture="qwen3_moe",
        hidden=128,
        tied=False,
        seed=seed,
        extra_config={
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    )


def qwen3_2gb(directory: Path | str, *, seed: int = 0) -> CheckpointInfo:
    """Qwen3-1.7B's own shapes with 14 of its 28 layers: 2.03 GB in bf16, tied, two files, no tokenizer."""
    return write_random_checkpoint(
        directory,
        architecture="qwen3",
        hidden=2048,
        layers=14,
        heads=16,
        kv_heads=8,
        intermediate=6144,
        vocab=151936,
        tied=True,
        seed=seed,
        tokenizer=False,
    )


def perturb(tensors: Mapping[str, torch.Tensor], density: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """Returns copies in which ``round(density * numel)`` elements of each tensor moved by one unit in the
    last place, up or down: what a small optimizer step does to low-precision weights.

    Positions are uniform without repetition, every chosen element changes, and none becomes infinite
    or NaN. Tensors are contiguous CPU floating-point tensors, of any shape.

    Raises ValueError if ``density`` is not in [0, 1], TypeError for a tensor that is not floating point.
    """
    if not 0.0 <= density <= 1.0:
        raise ValueError(f"density is a fraction between 0 and 1, found {density}")
    generator = np.random.Generator(np.random.SFC64(seed))
    return {name: _perturb_one(name, tensor, density, generator) for name, tensor in tensors.items()}


def write_byte_tokenizer(directory: Path, vocab: int, max_length: int) -> None:
    """Saves a byte-level BPE tokenizer with exactly ``vocab`` tokens and a chat template.

    Ids 0-2 are ``SPECIAL_TOKENS``, the next 256 the bytes, the rest pairs and then triples of bytes, so
    that every id a random model samples decodes to something and every text round-trips.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    base = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if vocab < len(base):
        raise ValueError(f"a byte-level tokenizer needs a vocabulary of at least {len(base)}, found {vocab}")
    byte_tokens = base[len(SPECIAL_TOKENS) :]
    merges = list(itertools.islice(_byte_merges(byte_tokens), vocab - len(base)))
    if len(base) + len(merges) < vocab:
        raise ValueError(f"vocabulary of {vocab} is larger than all pairs and triples of bytes")
    tokens = base + [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[2],
        pad_token=SPECIAL_TOKENS[0],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
    ).save_pretrained(directory)


def _byte_merges(byte_tokens: list[str]) -> Iterator[tuple[str, str]]:
    """All pairs of bytes, then all triples as pair + byte (every pair is a token by then)."""
    yield from itertools.product(byte_tokens, repeat=2)
    for first, second, third in itertools.product(byte_tokens, repeat=3):
        yield first + second, third


def _model_config(architecture: Architecture, **values: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(architecture, **values)


def _checkpoint_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint that transformers would save for ``config``; allocates nothing.

    transformers fuses some tensors in its own modules (MoE experts); reverting its load conversion on
    meta tensors gives the names on disk. A tied tensor appears once, under its first name.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    tied = set(model.all_tied_weights_keys)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    on_disk = revert_weight_conversion(model, state)
    return {name: tuple(tensor.shape) for name, tensor in on_disk.items()}


def _write_shards(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    seed: int,
    shard_bytes: int,
) -> tuple[str, ...]:
    from safetensors.torch import save_file

    groups = _group_by_size({name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}, shard_bytes)
    generator = np.random.Generator(np.random.SFC64(seed))
    weight_map: dict[str, str] = {}
    files: list[str] = []
    for number, group in enumerate(groups, start=1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        tensors = {name: _random_tensor(shapes[name], dtype, generator) for name in group}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(group, file))
        files.append(file)
    if len(files) > 1:
        total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
        write_index(directory, weight_map, total)
    return tuple(files)


def _group_by_size(sizes: Mapping[str, int], limit_bytes: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _random_tensor(shape: tuple[int, ...], dtype: torch.dtype, generator: np.random.Generator) -> torch.Tensor:
    """Normal values: mean 1 and deviation 0.1 for vectors (norm weights), else mean 0, variance 1/fan-in.

    Drawn as 16 random bits an element that index a table of normal quantiles, a chunk at a time:
    quicker than drawing normal values, without a wider copy, and as good for bf16.
    """
    import torch

    quantiles = torch.special.ndtri((torch.arange(_SAMPLE_LEVELS, dtype=torch.float64) + 0.5) / _SAMPLE_LEVELS)
    table = 1.0 + 0.1 * quantiles if len(shape) == 1 else quantiles / math.sqrt(shape[-1])
    table_bits = table.to(dtype).view(_integer_dtype(dtype)).numpy()
    bits = np.empty(math.prod(shape), dtype=table_bits.dtype)
    for start in range(0, bits.size, _CHUNK_ELEMENTS):
        chunk = bits[start : start + _CHUNK_ELEMENTS]
        levels = generator.integers(0, _SAMPLE_LEVELS, size=chunk.size, dtype=np.uint16)
        table_bits.take(levels, out=chunk, mode="clip")
    return torch.from_numpy(bits).view(dtype).reshape(shape)


def _perturb_one(name: str, tensor: torch.Tensor, density: float, generator: np.random.Generator) -> torch.Tensor:
    import torch

    if not tensor.dtype.is_floating_point:
        raise TypeError(f"{name}: only floating-point tensors are perturbed, found {tensor.dtype}")
    integer = _integer_dtype(tensor.dtype)
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    bits = result.view(-1).view(integer).numpy()
    largest = int(torch.tensor([torch.finfo(tensor.dtype).max], dtype=tensor.dtype).view(integer).item())
    magnitude_mask = np.iinfo(bits.dtype).max
    total = round(density * bits.size)
    chosen = 0
    for start in range(0, bits.size, _CHUNK_ELEMENTS):
        chunk = bits[start : start + _CHUNK_ELEMENTS]
        count = total * (start + chunk.size) // bits.size - chosen
        chosen += count
        positions = generator.choice(chunk.size, size=count, replace=False, shuffle=False)
        old = chunk[positions]
        magnitude = old & magnitude_mask
        # Formats are sign and magnitude: adding one to the bits is one step away from zero.
        steps = generator.integers(0, 2, size=count, dtype=bits.dtype) * 2 - 1
        steps = np.where(magnitude == 0, 1, np.where(magnitude >= largest, -1, steps))
        chunk[positions] = old + steps.astype(bits.dtype)
    return result


def _integer_dtype(dtype: torch.dtype) -> torch.dtype:
    import torch

    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
