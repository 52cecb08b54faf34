"""The decoder under address and undefined-behaviour sanitizers, on the corpus and on mutations of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from native_contents import CONTENTS, parameter_grid

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def decoder_check() -> Path:
    """The check program, built once into build/sanitize (kept for the next run)."""
    build = ROOT / "build" / "sanitize"
    beside_python = Path(sys.executable).with_name("cmake")
    cmake = beside_python if beside_python.exists() else "cmake"
    subprocess.run([cmake, "-S", ROOT / "native", "-B", build, "-DNATIVE_SANITIZE=ON"], check=True, capture_output=True)
    subprocess.run([cmake, "--build", build, "--parallel", "2"], check=True, capture_output=True)
    return build / "decoder_check"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    files = []
    for number, (name, content_of) in enumerate(CONTENTS.items()):
        for variant, (_, parameters) in enumerate(parameter_grid()):
            content = content_of(20_000 + 997 * variant, number)
            file = folder / f"{name}_{variant}.zst"
            file.write_bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(content))
            files.append(file)
    return files


def run_check(program: Path, *arguments: object) -> dict[str, int]:
    # The sanitizer's runtime must be the first library; what else is preloaded here is of no use there.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", result.stdout.splitlines()[-1])}


@pytest.mark.slow
def test_the_corpus_decodes_without_a_report(decoder_check: Path, corpus: list[Path]) -> None:
    counts = run_check(decoder_check, *corpus)
    assert counts["agree"] + counts["unchecked"] == len(corpus)


@pytest.mark.slow
def test_mutations_decode_without_a_report_or_a_difference(decoder_check: Path, corpus: list[Path]) -> None:
    counts = run_check(decoder_check, "--mutate", 8, 1, *corpus)
    assert counts["differ"] == 0
    assert counts["reject"] > 0
    assert counts["agree"] + counts["unchecked"] > len(corpus)
