"""The command line of ``bench-agentx``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Literal

from bench_agentx.workload import Options

_DEFAULTS = Options()


def parser() -> argparse.ArgumentParser:
    """The parser of every command; ``command`` names the chosen one."""
    top = argparse.ArgumentParser(
        prog="bench-agentx",
        description="Replay recorded agent sessions against any OpenAI-compatible server, by AgentX's rules.",
    )
    commands = top.add_subparsers(dest="command", required=True)

    run = _command(commands, "run", "one concurrency: python -m bench_agentx run --trace traces/ --concurrency 16")
    run.add_argument("--concurrency", type=_one_level, default=(16,), metavar="N", help="live session trees (16)")
    sweep = _command(commands, "sweep", "several concurrencies, one after the other, and their curves")
    sweep.add_argument("--concurrency", type=_levels, default=(4, 16, 48), metavar="N,N", help="(4,16,48)")
    for command in (run, sweep):
        _add_server(command)
        _add_replay(command)
        command.add_argument("--series", default="run", help="name of what is measured, in tables and plots")
        _add_output(command)

    compare = _command(commands, "compare", "two or more finished runs side by side, the first as the base")
    compare.add_argument("runs", nargs="+", type=Path, metavar="RUN.parquet")
    _add_output(compare)

    _add_offload(commands)

    synthesize = _command(commands, "synthesize", "write synthetic sessions of the published shape as WEKA files")
    synthesize.add_argument("--sessions", type=_positive, default=64)
    synthesize.add_argument("--seed", type=int, default=0)
    synthesize.add_argument("--out", type=Path, required=True, help="directory for the files")

    describe = _command(commands, "describe", "check trace files, and print what they ask of a server")
    describe.add_argument("trace", nargs="+", type=Path)
    describe.add_argument("--tokenizer", help="for conversations of texts")

    overhead = _command(commands, "overhead", "measure this client itself against a server that only keeps time")
    overhead.add_argument("--streams", type=_positive, default=1000)
    overhead.add_argument("--duration-s", type=_seconds, default=60.0)
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
    return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")


def _add_server(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("server (its key, if it wants one, from OPENAI_API_KEY)")
    group.add_argument("--url", default=_DEFAULTS.url, help="base URL (%(default)s)")
    group.add_argument("--model", help="served model (the server's only one)")
    group.add_argument(
        "--endpoint-type",
        choices=("auto", "completions", "chat"),
        default=_DEFAULTS.endpoint_type,
        help="completions sends token ids: exact lengths, no tokenizer. auto: chat for traces of texts only",
    )
    _add_vocabulary(group)
    group.add_argument("--extra-body", type=_json_object, default="{}", metavar="JSON", help="into every request")
    group.add_argument("--devices", type=_positive, default=1, help="GPUs that throughput is divided by (1)")
    group.add_argument("--policy-sync-url", metavar="URL", help="POST a policy update here during the run")
    group.add_argument("--policy-sync-every-s", type=_seconds, default=_DEFAULTS.policy_sync_every_s)


def _add_vocabulary(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer", help="directory or name (the model's directory, where readable)")
    group.add_argument("--vocab-size", type=_positive, help="instead of a tokenizer, for completions")


def _add_replay(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("what is replayed, and how (the defaults are AgentX's rules)")
    group.add_argument("--trace", nargs="+", type=Path, default=(), help="files or directories; else synthetic")
    group.add_argument("--synthetic", type=_positive, default=_DEFAULTS.synthetic, metavar="SESSIONS")
    group.add_argument(
        "--context-scale", type=_scale, default=_DEFAULTS.context_scale, metavar="FACTOR|fit",
        help="multiply every token count; fit: as far as the server's context needs (1)",
    )  # fmt: skip
    group.add_argument("--duration-s", type=_seconds, default=_DEFAULTS.duration_s, help="(%(default)s)")
    group.add_argument("--max-sessions", type=_positive, help="end after this many sessions, if sooner")
    group.add_argument("--max-turns", type=_positive, help="cut every trajectory after this many turns of its root")
    group.add_argument("--idle-cap-s", type=_seconds, default=_DEFAULTS.idle_cap_s, help="(%(default)s)")
    group.add_argument("--delay-scale", type=_seconds, default=_DEFAULTS.delay_scale, help="(%(default)s)")
    group.add_argument(
        "--start-ratio", nargs=2, type=_share, default=_DEFAULTS.start_ratio, metavar=("MIN", "MAX"),
        help="where in its session each lane starts (0 1)",
    )  # fmt: skip
    group.add_argument(
        "--order", choices=("shuffled", "sequential", "recorded"), default=_DEFAULTS.order,
        help="recorded: once each, at its recorded arrival (Mooncake)",
    )  # fmt: skip
    group.add_argument("--no-cache-bust", dest="cache_bust", action="store_false", help="let plays share cache")
    group.add_argument("--seed", type=int, default=_DEFAULTS.seed)
    group.add_argument("--grace-period-s", type=_seconds, default=_DEFAULTS.grace_period_s, help="(%(default)s)")
    group.add_argument(
        "--stall-timeout-s", type=_seconds, default=_DEFAULTS.stall_timeout_s,
        help="a stream silent for this long has failed (%(default)s)",
    )  # fmt: skip


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, default=Path("bench-agentx-results"), help="directory (%(default)s)")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_offload(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "offload", "what the host KV tier buys: rollout-serve with it off, then on")
    group = command.add_argument_group("server (started and stopped here, twice)")
    group.add_argument("--model", required=True)
    group.add_argument("--kv-tier", default="auto", metavar="SIZE|auto", help="size of the tier when on (auto)")
    group.add_argument("--server", type=_words, default=("rollout-serve",), metavar="COMMAND", help="(rollout-serve)")
    group.add_argument("server_arguments", nargs="*", metavar="-- ARGUMENTS", help="more arguments for the server")
    group.add_argument("--ready-timeout-s", type=_seconds, default=600.0, help="(%(default)s)")
    _add_vocabulary(group)
    command.add_argument("--concurrency", type=_levels, default=(2, 12), metavar="N,N", help="(2,12)")
    command.add_argument("--repeats", type=_positive, default=1, help="runs of each, medians reported (1)")
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
