"""Reader of vLLM's multi-turn conversation JSON: an array of ``{"id", "messages": [{"role", "content"}]}``.

Format: vLLM's ``benchmarks/multi_turn``. One turn for each assistant message: its prompt is every message
before it, its output length the assistant message's own length. Recorded assistant messages are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bench_agentx.fields import Fields
from bench_agentx.types import Agent, Message, Role, Session, TraceError, Turn

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


Encode = Callable[[str], Sequence[int]]


def read_conversations(document: object, where: str, encode: Encode) -> tuple[Session, ...]:
    """The conversations of one parsed file as sessions without recorded times.

    ``encode`` gives a text's token ids in the served model's vocabulary. They become the turn's block ids, at
    one token a block; ``input_tokens`` is their number, without what the server's chat template adds.
    """
    if not isinstance(document, list) or not document:
        raise TraceError(f"{where}: expected a non-empty array of conversations, found {document!r:.80}")
    conversations = [Fields(item, f"{where}: [{index}]") for index, item in enumerate(document)]
    return tuple(_session(conversation, encode) for conversation in conversations)


def _session(conversation: Fields, encode: Encode) -> Session:
    messages: list[Message] = []
    token_ids: list[int] = []
    answers: list[tuple[int, int, int]] = []  # messages before it, tokens before it, its own tokens
    for entry in conversation.objects("messages"):
        message = Message(_ROLES[entry.text("role", one_of=tuple(_ROLES))], entry.text("content"))
        ids = encode(message.content)
        if message.role == "assistant":
            if not messages or messages[-1].role != "user":
                raise entry.error("role", "'user' before each 'assistant'")
            answers.append((len(messages), len(token_ids), len(ids)))
        messages.append(message)
        token_ids.extend(ids)
    if not answers:
        raise conversation.error("messages", "at least one 'assistant' message after a 'user' message")
    all_ids = np.array(token_ids, dtype=np.int64)
    turns = tuple(
        Turn(
            input_tokens=prompt_tokens,
            output_tokens=max(1, answer_tokens),
            block_ids=all_ids[:prompt_tokens],
            start_s=0.0,
            end_s=0.0,
            messages=tuple(messages[:count]),
        )
        for count, prompt_tokens, answer_tokens in answers
    )
    prefix_tokens = len(encode(messages[0].content)) if messages[0].role == "system" else 0
    session_id = conversation.text("id")
    root = Agent(name="root", turns=turns, prefix_tokens=prefix_tokens)
    return Session(id=session_id, namespace="", block_tokens=1.0, root=root)
