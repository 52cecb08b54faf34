"""Filler: ids that a server accepts, and words that its tokenizer gives back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench_agentx.prompts import PromptBuilder
from bench_agentx.traces import read_traces
from bench_agentx.types import TraceError
from bench_agentx.vocabulary import encode, vocabulary_of_ids, vocabulary_of_words, vocabulary_size


def test_words_come_back_as_the_ids_that_made_them(word_tokenizer: Path) -> None:
    vocabulary = vocabulary_of_words(str(word_tokenizer))
    assert len(vocabulary.token_ids) == 256
    assert encode(str(word_tokenizer), vocabulary.decode(vocabulary.token_ids)) == vocabulary.token_ids.tolist()


def test_chat_messages_have_exactly_the_recorded_length_together(data: Path, word_tokenizer: Path) -> None:
    (session,) = read_traces([data / "weka_relative.json"], lambda text: [])
    builder = PromptBuilder(vocabulary_of_words(str(word_tokenizer)), 0, "run", cache_bust=True)
    for agent in session.agents():
        for index, turn in enumerate(agent.turns):
            messages = builder.messages(session, 0, agent, index)
            ids = [token for message in messages for token in encode(str(word_tokenizer), message.content)]
            assert ids == builder.prompt(session, 0, agent, index).token_ids.tolist()
            assert len(ids) == turn.input_tokens


def test_a_vocabulary_without_words_is_refused_for_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0, "b": 1}, []))).save_pretrained(tmp_path)
    with pytest.raises(TraceError, match="0 whole-word tokens, and exact text needs 64"):
        vocabulary_of_words(str(tmp_path))


def test_the_size_is_the_models_own_and_needs_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 777}))
    assert vocabulary_size(str(tmp_path)) == 777
    with pytest.raises(TraceError, match="no tokenizer"):
        encode(str(tmp_path), "text")
    with pytest.raises(TraceError, match="pass --tokenizer"):
        encode(None, "text")
    with pytest.raises(TraceError, match="at least 2"):
        vocabulary_of_ids(1)
