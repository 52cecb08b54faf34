"""The benchmark runs and says what its readers expect; no figure is judged here."""

from __future__ import annotations

import json

import pytest

from native.bench.__main__ import main
from native.bench.baselines import Libzstd


def test_json_holds_cases_and_gates(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        Libzstd()
    except OSError as error:
        pytest.skip(f"no system libzstd to measure against: {error}")
    assert main(["--json", "--rounds", "1", "--size-mib", "4", "--only", "bf16 1% uniform level 3"]) == 0
    result = json.loads(capsys.readouterr().out)
    (case,) = result["cases"]
    assert case["name"] == "bf16 1% uniform level 3"
    assert case["native"] > 0
    assert case["over_a"] == pytest.approx(case["native"] / case["libzstd_dense"])
    gates = {gate["name"]: gate for gate in result["gates"]}
    measured = gates["bf16 1% uniform level 3: over both (a) and (b)"]
    assert measured["measured"] == pytest.approx(min(case["over_a"], case["over_b"]))
    assert measured["passed"] == (measured["measured"] >= measured["target"])
    skipped = gates["GLM-5.3 scale fp8_level3: seconds"]
    assert (skipped["measured"], skipped["passed"], skipped["target"]) == (None, None, 17.3)


def test_help_explains_the_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "(b) libzstd through 16 MiB" in capsys.readouterr().out
