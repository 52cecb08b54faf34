"""Composition of changes over a chain, against applying them one after the other to real bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sync.compose import UNSIGNED_OF_SIZE, apply_dense, compose, overwrite_changes
from sync.mapping import Changes

ELEMENTS = 24


@st.composite
def steps(draw: st.DrawFn, element_size: int) -> Changes:
    unsigned = UNSIGNED_OF_SIZE[element_size]
    if draw(st.booleans()):
        positions = sorted(draw(st.sets(st.integers(0, ELEMENTS - 1))))
        masks = [draw(st.integers(1, 2 ** (8 * element_size) - 1)) for _ in positions]
        return Changes(np.array(positions, np.uint32), np.array(masks, unsigned))
    positions = sorted(draw(st.sets(st.integers(0, ELEMENTS * element_size - 1))))
    values = [draw(st.integers(0, 255)) for _ in positions]
    return overwrite_changes(np.array(positions, np.uint32), np.array(values, np.uint8), element_size)


@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_composed_changes_have_the_effect_of_the_steps(element_size: int, data: st.DataObject) -> None:
    unsigned = UNSIGNED_OF_SIZE[element_size]
    old = np.array(data.draw(st.lists(st.integers(0, 255), min_size=ELEMENTS, max_size=ELEMENTS)), unsigned)
    chain = data.draw(st.lists(steps(element_size), min_size=1, max_size=4))
    expected = old.copy()
    composed = chain[0]
    for step in chain:
        apply_dense(step, expected)
    for step in chain[1:]:
        composed = compose(composed, step)
    found = old.copy()
    apply_dense(composed, found)
    assert np.array_equal(found, expected)
    assert (np.diff(composed.positions.astype(np.int64)) > 0).all()
    assert len(composed.masks) == len(composed.positions)


@given(st.sampled_from([1, 2, 4]), st.data())
def test_an_overwrite_sets_exactly_the_bytes_it_names(element_size: int, data: st.DataObject) -> None:
    old = np.array(
        data.draw(st.lists(st.integers(0, 255), min_size=ELEMENTS * element_size, max_size=ELEMENTS * element_size)),
        np.uint8,
    )
    positions = sorted(data.draw(st.sets(st.integers(0, len(old) - 1))))
    values = np.array([data.draw(st.integers(0, 255)) for _ in positions], np.uint8)
    expected = old.copy()
    expected[positions] = values
    changes = overwrite_changes(np.array(positions, np.uint32), values, element_size)
    found = old.copy().view(UNSIGNED_OF_SIZE[element_size])
    apply_dense(changes, found)
    assert np.array_equal(found.view(np.uint8), expected)


def test_a_change_and_its_reverse_leave_nothing_to_write() -> None:
    step = Changes(np.array([3], np.uint32), np.array([5], np.uint16))
    assert len(compose(step, step)) == 0
