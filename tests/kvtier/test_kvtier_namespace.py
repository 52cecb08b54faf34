"""Namespaces as pure rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.namespace import KvPolicy, Namespace, OnUpdate, move_salt, namespace_of, namespace_salt, version_of

FORBIDDEN = set("@/\\\x00")


@given(st.text(max_size=400), st.text(max_size=400), st.integers(0, 10**9), st.integers(0, 10**9))
def test_salts_are_apart_and_fit_the_host_tier(alice: str, bob: str, version: int, opening: int) -> None:
    name = Namespace(version, opening).name
    salts = {caller: namespace_salt(name, caller) for caller in (alice, bob, "")}
    assert len(set(salts.values())) == len(salts)
    for salt in salts.values():
        assert len(salt) <= 128 and not FORBIDDEN & set(salt)
        assert namespace_of(salt) == name
    assert version_of(name) == version


@given(st.text(max_size=50), st.integers(0, 99), st.integers(100, 199))
def test_moving_keeps_the_caller(caller: str, old: int, new: int) -> None:
    before, after = Namespace(old).name, Namespace(new, 1).name
    assert move_salt(namespace_salt(before, caller), after) == namespace_salt(after, caller)


@pytest.mark.parametrize("on_update", [OnUpdate.KEEP, OnUpdate.RECOMPUTE, OnUpdate.ABORT])
def test_each_update_opens_a_namespace(on_update: OnUpdate) -> None:
    assert Namespace(3, 1).after(4, KvPolicy(on_update)) == Namespace(4, 2)


def test_a_version_served_twice_gets_two_namespaces() -> None:
    keep = KvPolicy()
    first = Namespace(5, 0)
    assert first.after(6, keep).after(5, keep).name != first.name


@given(st.integers(1, 5), st.lists(st.integers(1, 3), max_size=30))
def test_share_reuses_up_to_its_lag_and_not_one_version_more(lag: int, steps: list[int]) -> None:
    policy = KvPolicy(OnUpdate.SHARE, lag)
    namespace, version = Namespace(0), 0
    for step in steps:
        version += step
        kept = version - namespace.version <= lag
        after = namespace.after(version, policy)
        assert (after == namespace) is kept
        assert 0 <= version - after.version <= lag
        namespace = after


def test_share_does_not_reach_back_over_a_rollback() -> None:
    assert Namespace(7, 3).after(6, KvPolicy(OnUpdate.SHARE, 2)) == Namespace(6, 4)


@pytest.mark.parametrize(("on_update", "lag"), [(OnUpdate.SHARE, 0), (OnUpdate.KEEP, 1)])
def test_lag_belongs_to_share(on_update: OnUpdate, lag: int) -> None:
    with pytest.raises(ValueError, match="lag"):
        KvPolicy(on_update, lag)
