"""What the core is meant to reach, and whether it did. Nothing here fails a run: a timing is no test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from native.bench.decoding import Case
from native.bench.glm import ScaleRun


class Gate(NamedTuple):
    """measured is at least (or, for seconds, at most) target if passed; None: not measured in this run."""

    name: str
    target: float
    measured: float | None
    passed: bool | None


def _at_least(name: str, target: float, measured: float | None) -> Gate:
    return Gate(name, target, measured, None if measured is None else measured >= target)


def _decoding_gates(cases: Mapping[str, Case]) -> Iterator[Gate]:
    over_b = [
        ("bf16 0.09% uniform level 3", 10.0),
        ("fp8 0.09% uniform level 3", 6.0),
        ("bf16 0.09% uniform level 9", 18.0),
        ("fp8 0.09% uniform level 9", 12.0),
        ("bf16 0.09% uniform default", 18.0),
        ("fp8 0.09% uniform default", 12.0),
    ]
    over_b += [(f"{kind} 0.01% uniform {level}", 40.0) for kind in ("bf16", "fp8") for level in LEVEL_NAMES]
    for name, target in over_b:
        case = cases.get(name)
        yield _at_least(f"{name}: over (b)", target, case and case.over_b)
    for kind in ("bf16", "fp8"):
        for density in ("1%", "3%", "10%"):
            for level in LEVEL_NAMES:
                case = cases.get(f"{kind} {density} uniform {level}")
                lower = case and min(case.over_a, case.over_b)
                yield _at_least(f"{kind} {density} uniform {level}: over both (a) and (b)", 1.0, lower)
    for name, target in (("real bf16 lr 1e-06", 2.5), ("real bf16 lr 1e-05", 1.2)):
        case = cases.get(name)
        yield _at_least(f"{name}: over (a)", target, case and case.over_a)


LEVEL_NAMES = ("level 1", "level 3", "level 9", "default")


def gates(cases: Mapping[str, Case], scale: Mapping[str, ScaleRun]) -> list[Gate]:
    result = list(_decoding_gates(cases))
    for name, target in (("fp8_level3", 17.3), ("fp8_default", 12.0)):
        seconds = scale[name].seconds if name in scale else None
        passed = None if seconds is None else seconds <= target
        result.append(Gate(f"GLM-5.3 scale {name}: seconds", target, seconds, passed))
    return result
