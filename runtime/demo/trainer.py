"""The demo's trainer process: fine-tunes a real policy and publishes each version to a policy store.

    python -m runtime.demo.trainer --store URL --model DIR

Owns: the training loop, its reports, and stopping cleanly. The arithmetic is in ``finetune``; what a
version looks like on the store is the publisher's. A publication is never cut in half: SIGINT or SIGTERM
is acted on between steps and publications, and the process then exits 0. Killed outright, it leaves a
version without an index, which readers ignore.

With ``--json`` each report is one JSON object a line on stdout, told apart by ``event``:
    started    model, store, pid
    resumed    version (only if the store was not empty)
    step       step, loss, seconds
    published  version, base_version, changed_elements, total_elements, density, payload_bytes,
               publish_s, train_s, loss; of an anchor: version, base_version null, publish_s
    stopped    reason, versions
    failed     error
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sync.checkpoint_copy import write_checkpoint_copy
from sync.errors import PublicationError, StoreError
from sync.types import version_directory

if TYPE_CHECKING:
    import torch

    from runtime.demo.finetune import FineTuner
    from sync.publisher import Publisher

Report = Callable[[dict[str, Any]], None]

_POLL_S = 0.1


class StopRequest:
    """Says when to stop, and why: a signal, a reader of our reports that went away, or a dead parent.

    Signals only set a flag, so that whatever is running (a step, a publication) comes to its end.
    """

    def __init__(self, *, with_parent: bool) -> None:
        self._reason: str | None = None
        self._parent = os.getppid() if with_parent else None

    def listen(self) -> None:
        """Takes over SIGINT and SIGTERM of this process."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def request(self, reason: str) -> None:
        """Asks for a stop; the first reason is kept."""
        self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """None as long as there is none to stop."""
        if self._parent is not None and os.getppid() != self._parent:
            self.request("the parent process ended")
        return self._reason

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not past a stop request."""
        deadline = time.monotonic() + seconds
        while self.reason is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)


def train(options: argparse.Namespace, stop: StopRequest, report: Report) -> int:
    """Publishes the anchor, then a version every ``options.steps_per_version`` steps, until stopped or
    ``options.versions`` are out (None: no end). Returns the number of deltas published.

    Raises ValueError if the checkpoint cannot be trained, PublicationError if it is not what the store
    holds as its latest version, or a version cannot be published, StoreError.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    from runtime.demo.finetune import FineTuner
    from sync.publisher import Publisher

    disable_progress_bar()  # standard error is for errors, and loading takes a second
    torch.set_num_threads(options.threads)
    tuner = FineTuner(options.model, options.learning_rate)
    publisher = Publisher(options.store, threads=options.threads)
    report({"event": "started", "model": str(options.model), "store": options.store, "pid": os.getpid()})
    if stop.reason is not None:
        return 0
    version = _begin(publisher, options, report)
    published = 0
    while stop.reason is None and published != options.versions:
        started = time.monotonic()
        loss = _reported_steps(tuner, options.steps_per_version, stop, report)
        if stop.reason is not None:
            break
        train_s = time.monotonic() - started
        weights = tuner.weights()
        _keep(options, version + 1, weights)
        result = publisher.publish_delta(weights)
        version = result.version
        published += 1
        report(
            {
                "event": "published",
                "version": result.version,
                "base_version": result.base_version,
                "changed_elements": result.changed_elements,
                "total_elements": result.total_elements,
                "density": result.density,
                "payload_bytes": result.payload_bytes,
                "publish_s": round(result.seconds, 3),
                "train_s": round(train_s, 3),
                "loss": round(loss, 4),
            }
        )
        if published != options.versions:
            stop.sleep(started + options.interval_s - time.monotonic())
    return published


def _reported_steps(tuner: FineTuner, count: int, stop: StopRequest, report: Report) -> float:
    """Takes ``count`` steps, fewer if a stop is requested; returns the last loss."""
    loss = float("nan")
    for _ in range(count):
        if stop.reason is None:
            started = time.monotonic()
            loss = tuner.step()
            seconds = round(time.monotonic() - started, 3)
            report({"event": "step", "step": tuner.steps_taken, "loss": round(loss, 4), "seconds": seconds})
    return loss


def _begin(publisher: Publisher, options: argparse.Namespace, report: Report) -> int:
    """Publishes the anchor to an empty store; otherwise goes on from the latest version, which the model
    must then equal (the publisher compares checksums). Returns the version that the model is."""
    if publisher.store.latest() is not None:
        version = publisher.resume(options.model)
        report({"event": "resumed", "version": version})
        return version
    _keep(options, 0, {})
    result = publisher.publish_anchor(options.model, version=0)
    seconds = round(result.seconds, 3)
    report({"event": "published", "version": result.version, "base_version": None, "publish_s": seconds})
    return result.version


def _keep(options: argparse.Namespace, version: int, weights: dict[str, torch.Tensor]) -> None:
    """Writes the version as a checkpoint of its own: before its publication, so that whoever sees the
    version finds the checkpoint."""
    if options.keep_checkpoints is not None:
        write_checkpoint_copy(options.model, options.keep_checkpoints / version_directory(version), weights)


class Reporter:
    """Prints reports for a person, or as JSON lines; a reader that went away is a reason to stop."""

    def __init__(self, *, as_json: bool, stop: StopRequest) -> None:
        self._format = json.dumps if as_json else _as_text
        self._stop = stop

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            print(self._format(event), flush=True)
        except BrokenPipeError:
            self._stop.request("nobody reads the reports any more")
            # Later prints, and the interpreter's own flush at exit, must not fail on the closed pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_text(event: Mapping[str, Any]) -> str:
    match event["event"]:
        case "started":
            return f"training {event['model']}, publishing to {event['store']}"
        case "step":
            return f"step {event['step']}: loss {event['loss']:.4f}, {event['seconds']:.2f} s"
        case "resumed":
            return f"going on from version {event['version']} of the store"
        case "published" if event["base_version"] is None:
            return f"version {event['version']} published: anchor, {event['publish_s']:.2f} s"
        case "published":
            return (
                f"version {event['version']} published: {100 * event['density']:.3f}% changed, "
                f"{event['payload_bytes'] / 1e6:.2f} MB, trained {event['train_s']:.2f} s, "
                f"published in {event['publish_s']:.2f} s"
            )
        case "stopped":
            return f"stopped after {event['versions']} versions: {event['reason']}"
        case other:
            raise ValueError(f"no text for the report {other!r}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runtime.demo.trainer",
        description="Fine-tunes a bf16 policy on CPU (fp32 master weights, AdamW, this project's docstrings "
        "as text) and publishes it: the anchor as version 0, then a delta every few steps.",
        epilog="Example: python -m runtime.demo.trainer --store /tmp/policies "
        '--model "$(python -m runtime.demo.convert)" --versions 3',
    )
    parser.add_argument("--store", required=True, metavar="URL", help="path, file:///path or s3://bucket/prefix")
    parser.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="bf16 Hugging Face checkpoint to start from"
    )
    parser.add_argument(
        "--learning-rate",
        type=_positive_float,
        default=1e-6,
        metavar="LR",
        help="AdamW's (default: %(default)s)",
    )
    parser.add_argument(
        "--steps-per-version",
        type=_positive_int,
        default=2,
        metavar="N",
        help="optimizer steps from one version to the next (default: %(default)s)",
    )
    parser.add_argument(
        "--versions",
        type=_positive_int,
        metavar="N",
        help="stop after N deltas (default: go on until stopped)",
    )
    parser.add_argument(
        "--interval-s",
        type=_positive_float,
        default=0.0,
        metavar="S",
        help="at least S seconds from one version to the next (default: no pause)",
    )
    parser.add_argument(
        "--threads", type=_positive_int, default=1, metavar="N", help="CPU threads (default: %(default)s)"
    )
    parser.add_argument(
        "--niceness",
        type=int,
        choices=range(20),
        default=10,
        metavar="N",
        help="0: as important as the server beside it; 19: only what that leaves (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-checkpoints",
        type=Path,
        metavar="DIR",
        help="also write every version as a whole checkpoint to DIR/weight_vNNNNNN",
    )
    parser.add_argument(
        "--stop-with-parent",
        action="store_true",
        help="stop when the process that started this one has ended",
    )
    parser.add_argument("--json", action="store_true", help="report as JSON lines on stdout")
    return parser


def _positive_int(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, found {text}")
    return value


def _positive_float(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the trainer. Returns 0 when it is done or was asked to stop, 1 when it cannot go on."""
    options = _parser().parse_args(arguments)
    stop = StopRequest(with_parent=options.stop_with_parent)
    stop.listen()
    os.nice(options.niceness)
    report = Reporter(as_json=options.json, stop=stop)
    try:
        versions = train(options, stop, report)
    except (OSError, ValueError, PublicationError, StoreError) as error:
        if options.json:
            report({"event": "failed", "error": str(error)})
        print(f"error: {error}", file=sys.stderr)
        return 1
    report({"event": "stopped", "reason": stop.reason or "all versions published", "versions": versions})
    return 0


if __name__ == "__main__":
    sys.exit(main())
