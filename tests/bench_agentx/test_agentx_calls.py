"""Bodies on the wire."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_agentx.calls import json_array
from bench_agentx.client import Endpoint


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**12), max_size=50))
def test_token_ids_are_the_json_array_that_any_parser_reads(ids: list[int]) -> None:
    assert json.loads(json_array(np.array(ids, dtype=np.int64))) == ids


def test_a_body_asks_for_exact_lengths_and_streams_and_takes_extra_fields() -> None:
    endpoint = Endpoint("http://host", "m", "completions", extra_body={"temperature": 0, "ignore_eos": False})
    assert json.loads(endpoint.body(b"[1,2]", 7)) == {
        "prompt": [1, 2],
        "model": "m",
        "max_tokens": 7,
        "ignore_eos": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("http://host", "m", "chat", api_key="secret"))
