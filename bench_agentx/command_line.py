"""The command line of ``bench-agentx``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bench_agentx.workload import Options

_DEFAULTS = Options()


_EXAMPLES = """examples:
  bench-agentx run --url http://127.0.0.1:8000 --trace traces/ --concurrency 16
  bench-agentx sweep --url http://127.0.0.1:8000 --concurrency 4,16,48
  bench-agentx compare a/run-c48.parquet b/run-c48.parquet
  bench-agentx offload --model MODEL -- --max-model-len 8192

Each run leaves LABEL.parquet (a row a request), LABEL.json (the summary) and report.html in --out. Ctrl-C ends a run
early, with its report. Exit status: 0 done, 1 a run ended early, 2 nothing could be run.
"""


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, (), False) else action.help


def parser() -> argparse.ArgumentParser:
    """The parser of every command; ``command`` names the chosen one."""
    top = argparse.ArgumentParser(
        prog="bench-agentx",
        description="Replay recorded agent sessions against any OpenAI-compatible server, by AgentX's rules.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)

    run = _command(commands, "run", "measure one concurrency")
    run.add_argument("--concurrency", type=_one_level, default="16", metavar="N", help="live session trees")
    sweep = _command(commands, "sweep", "measure several concurrencies, one after the other")
    sweep.add_argument("--concurrency", type=_levels, default="4,16,48", metavar="N,N", help="live session trees")
    for command in (run, sweep):
        _add_server(command)
        _add_replay(command)
        command.add_argument("--series", default="run", help="name of what is measured, in tables and plots")
        _add_output(command)

    compare = _command(commands, "compare", "show finished runs side by side, the first as the base")
    compare.add_argument("runs", nargs="+", type=Path, metavar="RUN.parquet")
    _add_output(compare)

    _add_offload(commands)

    synthesize = _command(commands, "synthesize", "write synthetic sessions of the published shape as WEKA files")
    synthesize.add_argument("--sessions", type=_positive, default=64, metavar="N", help="how many")
    synthesize.add_argument("--seed", type=int, default=0, help="the same seed gives the same files")
    synthesize.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to")

    describe = _command(commands, "describe", "check trace files, and print what they ask of a server")
    describe.add_argument("trace", nargs="+", type=Path, metavar="PATH")
    describe.add_argument("--tokenizer", help="directory or name, for conversations of texts")

    overhead = _command(commands, "overhead", "measure this client itself against a server that only keeps time")
    overhead.add_argument("--streams", type=_positive, default=1000, metavar="N", help="session trees at once")
    overhead.add_argument("--duration-s", type=_seconds, default=60.0, metavar="S", help="how long")
    return top


def options_of(parsed: argparse.Namespace) -> Options:
    """The options of a parsed command; what a command has no argument for keeps its default."""
    names = {field.name for field in dataclasses.fields(Options)}
    given = {name: value for name, value in vars(parsed).items() if name in names}
    if "trace" in given:
        given["trace"] = tuple(given["trace"])
    if "start_ratio" in given:
        given["start_ratio"] = tuple(given["start_ratio"])
    return Options(**given, api_key=os.environ.get("OPENAI_API_KEY"))


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    description = text[0].upper() + text[1:] + "."
    return commands.add_parser(name, help=text, description=description, formatter_class=_HelpFormatter)


def _add_server(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("server (its key, if it wants one, from OPENAI_API_KEY)")
    group.add_argument("--url", default=_DEFAULTS.url, help="base URL")
    group.add_argument("--model", help="served model; the server's only one if not given")
    group.add_argument(
        "--endpoint-type",
        choices=("auto", "completions", "chat"),
        default=_DEFAULTS.endpoint_type,
        help="completions sends token ids: exact lengths, no tokenizer; auto is chat for traces of texts only",
    )
    _add_vocabulary(group)
    group.add_argument("--extra-body", type=_json_object, default="{}", metavar="JSON", help="into every request")
    _add_devices(group)
    group.add_argument("--policy-sync-url", metavar="URL", help="POST a policy update here during the run")
    group.add_argument(
        "--policy-sync-every-s", type=_seconds, default=_DEFAULTS.policy_sync_every_s, metavar="S", help="how often"
    )


def _add_vocabulary(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer", help="directory or name; the model's own directory if it is readable here")
    group.add_argument("--vocab-size", type=_positive, metavar="N", help="instead of a tokenizer, for completions")


def _add_devices(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--devices", type=_positive, default=1, metavar="N", help="GPUs that throughput is divided by")


def _add_replay(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("what is replayed, and how (AgentX' rules are the defaults of run and sweep)")

    def add(name: str, kind: Callable[[str], object], metavar: str, text: str) -> None:
        default = getattr(_DEFAULTS, name.removeprefix("--").replace("-", "_"))
        group.add_argument(name, type=kind, default=default, metavar=metavar, help=text)

    group.add_argument("--trace", nargs="+", type=Path, default=(), metavar="PATH", help="files or directories")
    add("--synthetic", _positive, "N", "without --trace: so many synthetic sessions")
    add("--context-scale", _scale, "FACTOR|fit", "multiply every token count; fit: what the server's context needs")
    add("--duration-s", _seconds, "S", "nothing new is sent after this")
    add("--grace-period-s", _seconds, "S", "what is under way then may take so long to finish")
    add("--max-sessions", _positive, "N", "end after this many sessions, if sooner")
    add("--max-turns", _positive, "N", "cut every trajectory after so many turns of its root")
    add("--idle-cap-s", _seconds, "S", "longest idle gap of a session")
    add("--delay-scale", _seconds, "FACTOR", "multiply every recorded delay")
    group.add_argument(
        "--start-ratio",
        nargs=2,
        type=_share,
        default=_DEFAULTS.start_ratio,
        metavar=("MIN", "MAX"),
        help="where in its session each lane starts",
    )
    group.add_argument(
        "--order",
        choices=("shuffled", "sequential", "recorded"),
        default=_DEFAULTS.order,
        help="of sessions; recorded: each once, at its recorded arrival (Mooncake)",
    )
    group.add_argument(
        "--cache-bust",
        action=argparse.BooleanOptionalAction,
        default=_DEFAULTS.cache_bust,
        help="mark each play, so that none finds another's cache",
    )
    add("--seed", int, "N", "for prompts, the order and the starts")
    add("--stall-timeout-s", _seconds, "S", "a stream silent for so long has failed")


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, default=Path("bench-agentx-results"), metavar="DIR", help="for all files")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_offload(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "offload", "measure rollout-serve with its host KV tier off, then on")
    group = command.add_argument_group("server (started and stopped here, twice)")
    group.add_argument("--model", required=True, help="what rollout-serve takes as its model")
    group.add_argument("--kv-tier", default="auto", metavar="SIZE|auto", help="the tier's size when it is on")
    group.add_argument("--server", type=_words, default="rollout-serve", metavar="COMMAND", help="the program")
    group.add_argument("server_arguments", nargs="*", metavar="-- ARGUMENTS", help="more arguments for it")
    group.add_argument("--ready-timeout-s", type=_seconds, default=600.0, metavar="S", help="for its start")
    _add_vocabulary(group)
    _add_devices(group)
    command.add_argument("--concurrency", type=_levels, default="2,8", metavar="N,N", help="live session trees")
    command.add_argument("--repeats", type=_positive, default=1, metavar="N", help="of each; medians are reported")
    _add_replay(command)
    command.set_defaults(context_scale="fit", duration_s=60.0, delay_scale=0.1, start_ratio=(0.25, 0.75), synthetic=32)
    _add_output(command)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, found {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number >= 0, found {text}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text}")
    return value


def _scale(text: str) -> float | Literal["fit"]:
    if text == "fit":
        return "fit"
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected 'fit' or a number in (0, 1], found {text}")
    return value


def _one_level(text: str) -> tuple[int, ...]:
    return (_positive(text),)


def _levels(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _json_object(text: str) -> str:
    try:
        valid = isinstance(json.loads(text), dict)
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"expected a JSON object, found {text}")
    return text
