"""Synthetic checkpoints: what transformers loads, byte determinism, and optimizer-like changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sync.checkpoint_copy import atomic_directory, write_checkpoint_copy
from sync.synthetic import (
    CheckpointInfo,
    perturb,
    small_moe,
    small_tied,
    small_untied,
    write_random_checkpoint,
)

PRESETS = [small_tied, small_untied, small_moe]


@pytest.mark.parametrize("preset", PRESETS)
def test_transformers_loads_every_tensor_and_logits_are_of_order_one(
    preset: Callable[..., CheckpointInfo], tmp_path: Path
) -> None:
    info = preset(tmp_path / "model")
    model, loading = AutoModelForCausalLM.from_pretrained(info.directory, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.dtype == torch.bfloat16
    with torch.no_grad():
        logits = model(torch.arange(3, 40)[None]).logits.float()
    assert 0.3 < logits.std().item() < 3.0
    assert logits.abs().max().item() < 20.0


@pytest.mark.parametrize("preset", PRESETS)
def test_files_agree_with_the_returned_info(preset: Callable[..., CheckpointInfo], tmp_path: Path) -> None:
    info = preset(tmp_path / "model")
    assert sorted(info.shards) == sorted(path.name for path in info.directory.glob("*.safetensors"))
    tensors = {name: t for shard in info.shards for name, t in load_file(info.directory / shard).items()}
    assert len(tensors) == info.tensor_count
    assert sum(t.numel() for t in tensors.values()) == info.element_count
    assert sum(t.numel() * t.element_size() for t in tensors.values()) == info.size_bytes
    config = json.loads((info.directory / "config.json").read_text())
    assert config["architectures"][0].endswith("ForCausalLM")
    assert ("lm_head.weight" in tensors) != config["tie_word_embeddings"]
    if len(info.shards) > 1:
        index = json.loads((info.directory / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == tensors.keys()
        assert index["metadata"]["total_size"] == info.size_bytes


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    def digest(name: str, seed: int) -> str:
        info = small_tied(tmp_path / name, seed=seed)
        return hashlib.sha256((info.directory / info.shards[0]).read_bytes()).hexdigest()

    assert digest("a", 1) == digest("b", 1) != digest("c", 2)


def test_shards_stay_within_the_limit(tmp_path: Path) -> None:
    info = write_random_checkpoint(tmp_path / "model", architecture="qwen3", tied=False, shard_bytes=200_000)
    assert len(info.shards) > 3
    for shard in info.shards:
        tensors = load_file(info.directory / shard)
        assert sum(t.numel() * t.element_size() for t in tensors.values()) <= 200_000


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes_are_written_as_such(dtype: str, tmp_path: Path) -> None:
    info = write_random_checkpoint(tmp_path / "model", dtype=dtype)
    tensors = load_file(info.directory / info.shards[0])
    assert {t.dtype for t in tensors.values()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("vocab", [259, 512, 70_000])
def test_tokenizer_covers_the_vocabulary_and_round_trips_any_text(vocab: int, tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "model", hidden=64, heads=2, layers=1, vocab=vocab)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(tokenizer) == vocab
    text = "def f(x):\n\treturn 12345  # naïve 你好 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert all(token is not None for token in tokenizer.convert_ids_to_tokens(range(vocab)))
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_vocabulary_below_the_bytes_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 259, found 100"):
        write_random_checkpoint(tmp_path / "model", vocab=100)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    small_tied(tmp_path / "model")
    with pytest.raises(FileExistsError, match="exists already"):
        small_tied(tmp_path / "model")


def test_a_failed_write_leaves_no_directory(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_directory(tmp_path / "model") as directory:
            (directory / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert list(tmp_path.iterdir()) == []


FLOATS = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])


@settings(max_examples=60, deadline=None)
@given(FLOATS, st.integers(0, 5000), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_perturb_moves_exactly_the_given_fraction_by_one_step(
    dtype: torch.dtype, size: int, density: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(size, generator=generator).to(dtype)
    extremes = [0.0, -0.0, torch.finfo(dtype).max, torch.finfo(dtype).min]
    old[: len(extremes)] = torch.tensor(extremes, dtype=dtype)[:size]
    before = old.clone()
    new = perturb({"w": old}, density, seed)["w"]
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    distance = (new.view(integer).long() - old.view(integer).long()).abs()
    assert int((distance > 0).sum()) == round(density * size)
    assert distance.numel() == 0 or int(distance.max()) <= 1
    assert torch.isfinite(new).all()
    assert torch.equal(old.view(integer), before.view(integer)), "the input was written to"


def test_perturb_is_exact_beyond_one_chunk_and_deterministic() -> None:
    old = torch.ones(1500, 2000, dtype=torch.bfloat16)
    first, again = (perturb({"w": old}, 0.001, seed=7)["w"] for _ in range(2))
    assert torch.equal(first, again)
    assert int((first != old).sum()) == 3000
    rows = (first != old).any(dim=1)
    assert rows[:100].any()
    assert rows[-100:].any()


def test_perturb_refuses_integers_and_bad_densities() -> None:
    with pytest.raises(TypeError, match="w: only floating-point"):
        perturb({"w": torch.zeros(3, dtype=torch.int32)}, 0.5)
    with pytest.raises(ValueError, match=r"found 1\.5"):
        perturb({"w": torch.zeros(3)}, 1.5)


def test_checkpoint_copy_replaces_the_named_tensors_only(tmp_path: Path) -> None:
    info = small_untied(tmp_path / "source")
    name = "model.layers.1.self_attn.q_proj.weight"
    old = {n: t for shard in info.shards for n, t in load_file(info.directory / shard).items()}
    changed = perturb({name: old[name]}, 0.01, seed=3)
    write_checkpoint_copy(info.directory, tmp_path / "copy", changed)
    new = {n: t for shard in info.shards for n, t in load_file(tmp_path / "copy" / shard).items()}
    assert new.keys() == old.keys()
    assert [n for n in old if not torch.equal(new[n], old[n])] == [name]
    assert torch.equal(new[name], changed[name])
    names = {path.name for path in info.directory.iterdir()}
    assert {path.name for path in (tmp_path / "copy").iterdir()} == names
    AutoModelForCausalLM.from_pretrained(tmp_path / "copy")


def test_checkpoint_copy_refuses_other_names_shapes_and_dtypes(tmp_path: Path) -> None:
    info = small_tied(tmp_path / "source")
    for tensors, message in [
        ({"lm_head.weight": torch.zeros(1)}, "not tensors of the checkpoint"),
        ({"model.norm.weight": torch.zeros(3, dtype=torch.bfloat16)}, r"expected .*\(128,\).*found .*\(3,\)"),
        ({"model.norm.weight": torch.zeros(128)}, r"expected torch.bfloat16.*found torch.float32"),
    ]:
        with pytest.raises(ValueError, match=message):
            write_checkpoint_copy(info.directory, tmp_path / "copy", tensors)
        assert not (tmp_path / "copy").exists()
