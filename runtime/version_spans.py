"""Which policy version made which tokens of a response, on vLLM's OpenAI routes too.

vLLM follows the weight version of every token and returns spans `[{"version", "start", "end"}]` over a choice's output
tokens, but its own routes carry them only on `/inference/v1/generate`. Here they are noted as the engine's outputs pass
(`record_spans`) and written into the response's bytes as they leave (`SpanWriter`), under the name that route uses:
- completions and chat: `weight_versions` of each choice; in a stream, of the chunk with its `finish_reason`;
- responses: `weight_versions` of the response, over the tokens of all its turns; in a stream, of its last event.
So no class of vLLM's protocol is changed, and a route that has spans of its own keeps them. Where choices cannot be
told apart by the order of engine requests (beam search), the response carries none rather than wrong ones.
Background responses (`"background": true`), which are fetched by a later request, carry none either.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from runtime.admission import CURRENT_STAMP, PolicyStamp, VersionSpan

KEY = "weight_versions"
_JSON, _EVENTS = b"application/json", b"text/event-stream"
_EVENT_END = b"\n\n"
# What marks an event with spans. A quote inside a generated text is escaped, so no text looks like the first.
_FINISHED_CHOICE = b'"finish_reason":"'
_FINISHED_RESPONSE = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")


def record_spans(generate: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """`AsyncLLM.generate` that also notes each choice's spans in the stamp of the HTTP request it runs for.

    Choices are numbered as vLLM's routes number them: prompts in the order of the calls, `n` choices each.
    """

    def generate_and_record(
        prompt: Any, sampling_params: Any, request_id: str, **arguments: Any
    ) -> AsyncGenerator[Any, None]:
        outputs = generate(prompt, sampling_params, request_id, **arguments)
        stamp = CURRENT_STAMP.get()
        if stamp is None:
            return outputs
        first_choice = len(stamp.spans)
        stamp.spans += [None] * sampling_params.n
        return _recording(outputs, stamp, first_choice)

    return generate_and_record


async def _recording(
    outputs: AsyncGenerator[Any, None], stamp: PolicyStamp, first_choice: int
) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            for completion in output.outputs:
                if completion.weight_versions is not None:
                    stamp.spans[first_choice + completion.index] = [
                        VersionSpan(span.version, span.start, span.end) for span in completion.weight_versions
                    ]
            yield output


class SpanWriter:
    """Adds spans to one response's body, message by message."""

    def __init__(self, stamp: PolicyStamp, headers: list[tuple[bytes, bytes]]) -> None:
        self._stamp = stamp
        named = {name.lower(): value for name, value in headers}
        content = b"" if b"content-encoding" in named else named.get(b"content-type", b"").partition(b";")[0]
        self._is_stream = content == _EVENTS
        self.is_document = content == _JSON and bool(stamp.spans)
        """Whether the whole body is needed before its first byte can be sent: its length changes."""
        self._held = bytearray()

    def write(self, body: bytes, is_last: bool) -> bytes:
        """What to send now; held back is what is not complete yet."""
        if self.is_document:
            self._held += body
            return self._document(bytes(self._held)) if is_last else b""
        if not self._is_stream:
            return body
        self._held += body
        complete = len(self._held) if is_last else self._held.rfind(_EVENT_END) + len(_EVENT_END)
        if complete < len(_EVENT_END):
            return b""
        events = bytes(self._held[:complete])
        del self._held[:complete]
        return _EVENT_END.join(map(self._event, events.split(_EVENT_END)))

    def _document(self, body: bytes) -> bytes:
        document = json.loads(body)
        return _dump(document) if self._add(document, is_whole=True) else body

    def _event(self, event: bytes) -> bytes:
        if _FINISHED_CHOICE not in event and not event.startswith(_FINISHED_RESPONSE):
            return event
        start, found, data = event.partition(b"data: ")
        document = json.loads(data)
        changed = self._add(document.get("response", document), is_whole=False)
        return start + found + _dump(document) if changed else event

    def _add(self, document: Any, is_whole: bool) -> bool:
        """Whether spans were added. `is_whole`: all of the response's choices are in it."""
        if not isinstance(document, dict):
            return False
        if document.get("object") == "response":
            if (spans := self._joined()) is None or document.get(KEY) is not None:
                return False
            document[KEY] = spans
            return True
        choices, spans_of = document.get("choices") or [], self._stamp.spans
        if is_whole and len(choices) != len(spans_of):
            return False
        added = False
        for choice in choices:
            spans_of_choice = spans_of[choice["index"]] if choice.get("finish_reason") else None
            if spans_of_choice is not None and choice.get(KEY) is None:
                choice[KEY] = [span._asdict() for span in spans_of_choice]
                added = True
        return added

    def _joined(self) -> list[dict[str, Any]] | None:
        """The turns of one response, one after the other; None if there is none, or one of them has not told."""
        if not self._stamp.spans:
            return None
        joined: list[VersionSpan] = []
        for turn in self._stamp.spans:
            if turn is None:
                return None
            offset = joined[-1].end if joined else 0
            for span in turn:
                moved = VersionSpan(span.version, span.start + offset, span.end + offset)
                if joined and joined[-1].version == moved.version:
                    moved = moved._replace(start=joined.pop().start)
                joined.append(moved)
        return [span._asdict() for span in joined]


def _dump(document: Any) -> bytes:
    """As vLLM's routes write JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
