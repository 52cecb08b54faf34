"""Prompts: lengths exact, equal ids equal tokens, different ids different tokens, one marker a play."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_agentx.prefix_cache import EndlessPrefixCache
from bench_agentx.prompts import MARKER_TOKENS, PromptBuilder, marker_start
from bench_agentx.traces import read_traces, scale_context
from bench_agentx.types import Agent, Session, Turn
from bench_agentx.vocabulary import vocabulary_of_ids

VOCABULARY = vocabulary_of_ids(1 << 20)


def _builder(seed: int = 0, run_key: str = "run", cache_bust: bool = False) -> PromptBuilder:
    return PromptBuilder(VOCABULARY, seed, run_key, cache_bust)


def _session(*turns: tuple[int, list[int]], block_tokens: float = 16.0, prefix_tokens: int = 0) -> Session:
    made = tuple(Turn(count, 1, np.array(ids, np.int64), 0.0, 0.0) for count, ids in turns)
    return Session("s", "names", block_tokens, Agent("root", made, prefix_tokens=prefix_tokens))


def _common(first: np.ndarray, second: np.ndarray) -> int:
    length = min(len(first), len(second))
    differing = np.nonzero(first[:length] != second[:length])[0]
    return int(differing[0]) if len(differing) else length


def _tokens(builder: PromptBuilder, session: Session, turn: int, play: int = 0) -> np.ndarray:
    return builder.prompt(session, play, session.root, turn).token_ids


ids = st.lists(st.integers(0, 3), max_size=6)


@settings(max_examples=60, deadline=None)
@given(ids, ids, st.integers(0, 15), st.integers(0, 15), st.sampled_from([1.0, 0.5, 0.21]))
def test_prompts_agree_exactly_as_far_as_their_ids_do(
    first: list[int], second: list[int], first_tail: int, second_tail: int, factor: float
) -> None:
    turns = [(max(1, 16 * len(first) + first_tail), first), (max(1, 16 * len(second) + second_tail), second)]
    session = scale_context(_session(*turns), factor)
    one, two = (_tokens(_builder(), session, turn) for turn in (0, 1))
    assert [len(one), len(two)] == [turn.input_tokens for turn in session.root.turns]
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    assert _common(one, two) == min(round(shared * 16 * factor), len(one), len(two))


def test_the_same_seed_gives_the_same_prompt_and_another_seed_another() -> None:
    session = _session((40, [5, 6]))
    assert np.array_equal(_tokens(_builder(seed=1), session, 0), _tokens(_builder(seed=1), session, 0))
    assert _common(_tokens(_builder(seed=1), session, 0), _tokens(_builder(seed=2), session, 0)) == 0


def test_equal_ids_of_different_namespaces_are_different_tokens() -> None:
    session = _session((40, [5, 6]))
    assert _common(_tokens(_builder(), session, 0), _tokens(_builder(), replace(session, namespace="b"), 0)) == 0


def test_tokens_are_in_the_vocabulary() -> None:
    builder = PromptBuilder(vocabulary_of_ids(300), 0, "run", cache_bust=True)
    tokens = _tokens(builder, _session((5000, list(range(300)))), 0)
    assert tokens.min() >= 150
    assert tokens.max() < 300


def test_the_marker_follows_the_prefix_keeps_the_length_and_parts_plays() -> None:
    session = _session((100, [1, 2, 3, 4, 5, 6]), (140, [1, 2, 3, 4, 5, 6, 7, 8]), prefix_tokens=40)
    plain, busted = _builder(), _builder(cache_bust=True)
    marked = _tokens(busted, session, 0)
    changed = np.nonzero(marked != _tokens(plain, session, 0))[0]
    assert (changed[0], changed[-1]) == (40, 40 + MARKER_TOKENS - 1)
    assert _common(marked, _tokens(busted, session, 1)) == 96  # turns of one play share everything else
    assert _common(marked, _tokens(busted, session, 0, play=1)) == 40
    assert _common(marked, _tokens(_builder(run_key="other", cache_bust=True), session, 0)) == 40


def test_a_marker_without_room_after_the_prefix_goes_to_the_front() -> None:
    assert marker_start(_session((20, [1]), prefix_tokens=15).root) == 0


def test_chat_messages_grow_by_the_recorded_answer_and_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session((50, [1, 2, 3]), (100, [1, 2, 3, 4, 5, 6]), (40, [9, 8]), prefix_tokens=16)
    builder = _builder()
    monkeypatch.setattr(type(VOCABULARY), "decode", lambda _, tokens: " ".join(map(str, tokens)))
    first, second, third = (builder.messages(session, 0, session.root, turn) for turn in range(3))
    assert [message.role for message in first] == ["system", "user"]
    assert [message.role for message in second] == ["system", "user", "assistant", "user"]
    assert [len(message.content.split()) for message in second] == [16, 34, 1, 49]
    assert [message.role for message in third] == ["system", "user"]  # another context: nothing to go on from
    assert second[0] == first[0]
    whole = " ".join(message.content for message in second)
    assert whole == " ".join(map(str, _tokens(builder, session, 1)))


def test_texts_are_marked_in_their_first_user_message_only(data: Path) -> None:
    greeting, _ = read_traces([data / "conversations.json"], lambda text: list(range(len(text.split()))))
    marked = _builder(cache_bust=True).messages(greeting, 0, greeting.root, 1)
    assert marked[0].content == "Answer in one word."
    assert marked[1].content.startswith("[rid:")
    assert marked[1].content.endswith("]\n\nWhat is the capital of France?")
    assert [message.content for message in marked[2:]] == ["Paris.", "And of Italy?"]
    assert _builder().messages(greeting, 0, greeting.root, 1) == greeting.root.turns[1].messages


def test_the_endless_cache_finds_what_a_hand_count_finds() -> None:
    #          ids              tokens  seen before
    turns = [
        (70, [1, 2, 3, 4]),  #  70      0
        (100, [1, 2, 3, 4, 5, 6]),  # 100     64: four blocks; the six tokens after them had no block then
        (90, [1, 2, 9, 4, 5]),  # 90      32: block 4 recurs, behind another block 3
        (32, [1, 2]),  #  32      32
        (20, [7]),  #  20      0
    ]
    session = _session(*turns)
    cache = EndlessPrefixCache()
    hits = [cache.admit(_builder().prompt(session, 0, session.root, turn)) for turn in range(len(turns))]
    assert hits == [0, 64, 32, 32, 0]


@pytest.mark.parametrize("factor", [1.0, 0.3, 0.04])
def test_the_endless_cache_finds_every_token_that_any_earlier_prompt_begins_with(data: Path, factor: float) -> None:
    sessions = read_traces([data / "weka_relative.json", data / "weka_absolute.json"], lambda text: [])
    builder, cache = _builder(cache_bust=True), EndlessPrefixCache()
    earlier: list[np.ndarray] = []
    for play, session in enumerate([scale_context(session, factor) for session in sessions] * 2):
        for agent in session.agents():
            for turn in range(len(agent.turns)):
                prompt = builder.prompt(session, play, agent, turn)
                longest = max((_common(prompt.token_ids, other) for other in earlier), default=0)
                assert cache.admit(prompt) == longest
                earlier.append(prompt.token_ids)
