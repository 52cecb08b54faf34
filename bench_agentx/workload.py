"""From the command line's options to what a run needs: the server's facts, the sessions, the filler."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench_agentx.client import Client, Endpoint, EndpointType
from bench_agentx.plays import Order
from bench_agentx.prefix_cache import EndlessPrefixCache
from bench_agentx.synthetic import synthetic_sessions
from bench_agentx.timeline import shorten_idle_gaps
from bench_agentx.traces import fitting_scale, limit_turns, read_traces, scale_context
from bench_agentx.types import Session, TraceError
from bench_agentx.vocabulary import (
    Vocabulary,
    encode,
    vocabulary_of_ids,
    vocabulary_of_words,
    vocabulary_size,
)

_CHAT_TEMPLATE_SHARE = 0.05


class ServerError(RuntimeError):
    """The server does not answer as an OpenAI server does. The user looks at the server."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one or several runs share; every field is a command-line option of the same name."""

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    endpoint_type: EndpointType | Literal["auto"] = "auto"
    tokenizer: str | None = None
    vocab_size: int | None = None
    trace: tuple[Path, ...] = ()
    synthetic: int = 64
    context_scale: float | Literal["fit"] = 1.0
    max_turns: int | None = None
    max_sessions: int | None = None
    duration_s: float = 1800.0
    idle_cap_s: float = 10.0
    delay_scale: float = 1.0
    start_ratio: tuple[float, float] = (0.0, 1.0)
    order: Order = "shuffled"
    cache_bust: bool = True
    seed: int = 0
    grace_period_s: float = 30.0
    stall_timeout_s: float = 900.0
    devices: int = 1
    policy_sync_url: str | None = None
    policy_sync_every_s: float = 30.0
    extra_body: str = "{}"
    api_key: str | None = field(default=None, repr=False)

    def public(self) -> dict[str, Any]:
        """The options as JSON values, without the key."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if name != "api_key"}
        return {**values, "trace": [str(path) for path in self.trace]}


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions ready to replay against one server, the endpoint, and the filler for prompts.

    ``dropped``: sessions that do not fit. ``sent``: what the server has been sent, over all runs: what an earlier
    one left in its cache is not news.
    """

    endpoint: Endpoint
    vocabulary: Vocabulary
    sessions: tuple[Session, ...]
    dropped: int
    context_scale: float
    sent: EndlessPrefixCache = field(default_factory=EndlessPrefixCache)


async def load_workload(options: Options) -> Workload:
    """Ask the server what it serves, read the traces, fit them to it.

    Raises TraceError for a bad trace or one that cannot be sent, ServerError for a server that does not answer.
    """
    probe = Endpoint(options.url.rstrip("/").removesuffix("/v1"), "", "completions", options.api_key)
    async with Client(probe, stall_timeout_s=15.0) as client:
        card = _model_card(await client.get_text("/v1/models"), options, probe.base_url)
    tokenizer = options.tokenizer or _local_directory(card.get("root"))
    sessions = _sessions(options, tokenizer)
    endpoint_type = _endpoint_type(options, sessions)
    context_tokens = _context_tokens(card, endpoint_type)
    scale = _scale(options, sessions, context_tokens)
    fitting = _fitting([scale_context(session, scale) for session in sessions], context_tokens)
    return Workload(
        endpoint=Endpoint(probe.base_url, card["id"], endpoint_type, options.api_key, json.loads(options.extra_body)),
        vocabulary=_vocabulary(options, endpoint_type, tokenizer, sessions),
        sessions=tuple(shorten_idle_gaps(session, options.idle_cap_s) for session in fitting),
        dropped=len(sessions) - len(fitting),
        context_scale=scale,
    )


def _sessions(options: Options, tokenizer: str | None) -> list[Session]:
    sessions = (
        read_traces(options.trace, lambda text: encode(tokenizer, text))
        if options.trace
        else synthetic_sessions(options.synthetic, options.seed)
    )
    if options.max_turns is None:
        return list(sessions)
    return [limit_turns(session, options.max_turns) for session in sessions]


def _endpoint_type(options: Options, sessions: list[Session]) -> EndpointType:
    if options.endpoint_type != "auto":
        return options.endpoint_type
    return "chat" if sessions[0].root.turns[0].messages else "completions"


def _context_tokens(card: dict[str, Any], endpoint_type: EndpointType) -> int | None:
    """Room for a prompt and its output; None where the server does not tell. Chat templates take some of it."""
    context_tokens: int | None = card.get("max_model_len")
    if context_tokens is None or endpoint_type == "completions":
        return context_tokens
    return int(context_tokens * (1 - _CHAT_TEMPLATE_SHARE))


def _scale(options: Options, sessions: list[Session], context_tokens: int | None) -> float:
    if options.context_scale != "fit":
        return options.context_scale
    if context_tokens is None:
        raise TraceError("--context-scale fit: the server's /v1/models has no max_model_len; pass a number")
    return fitting_scale(sessions, context_tokens)


def _fitting(sessions: list[Session], context_tokens: int | None) -> list[Session]:
    fitting = [s for s in sessions if context_tokens is None or s.peak_context_tokens <= context_tokens]
    if not fitting:
        raise TraceError(
            f"no session fits the server's context of {context_tokens} tokens (the shortest needs "
            f"{min(s.peak_context_tokens for s in sessions)}): pass --context-scale fit"
        )
    return fitting


def _vocabulary(
    options: Options, endpoint_type: EndpointType, tokenizer: str | None, sessions: list[Session]
) -> Vocabulary:
    if endpoint_type == "chat" and not sessions[0].root.turns[0].messages:
        return vocabulary_of_words(tokenizer)
    if options.vocab_size is not None:
        return vocabulary_of_ids(options.vocab_size)
    if tokenizer is None:
        raise TraceError(
            "prompts of token ids need the size of the model's vocabulary, and the server names no model "
            "directory that is readable here: pass --vocab-size N or --tokenizer DIR_OR_NAME"
        )
    return vocabulary_of_ids(vocabulary_size(tokenizer))


def _model_card(answer: str | None, options: Options, base_url: str) -> dict[str, Any]:
    """The entry of ``/v1/models`` for the chosen model, or for the only one."""
    if answer is None:
        raise ServerError(f"{base_url}/v1/models: expected an OpenAI server, found no answer")
    try:
        cards: list[dict[str, Any]] = json.loads(answer)["data"]
        chosen = [card for card in cards if options.model in (None, card["id"])]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{base_url}/v1/models: expected a list of models, found {answer[:200]!r}") from error
    if not chosen:
        raise ServerError(
            f"{base_url}/v1/models: expected model {options.model!r}, found {[card['id'] for card in cards]}"
        )
    return chosen[0]


def _local_directory(root: object) -> str | None:
    return root if isinstance(root, str) and Path(root).is_dir() else None
