"""How much of what this client measures is its own: a known server, many streams, and the difference."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_agentx import loopback
from bench_agentx.child_server import child_server, free_port
from bench_agentx.progress import Display
from bench_agentx.run import measure
from bench_agentx.workload import Options, load_workload

TTFT_S = 0.2
ITL_S = 0.1
OUTPUT_TOKENS = 200


async def check_client(streams: int, duration_s: float, display: Display) -> dict[str, Any]:
    """Replay ``streams`` sessions at once, 10 tokens per second and stream, against a loopback server.

    The server runs in a process of its own and keeps ``TTFT_S`` and ``ITL_S``; where the measured ones are
    longer, client, server and loopback interface together are to blame.
    """
    port = free_port()
    command = [sys.executable, "-m", "bench_agentx.loopback", str(port), str(TTFT_S), str(ITL_S)]
    with tempfile.TemporaryDirectory() as directory:
        async with child_server(command, port, Path(directory) / "loopback.log", ready_timeout_s=60.0) as url:
            options = Options(
                url=url,
                vocab_size=loopback.VOCABULARY_SIZE,
                synthetic=64,
                context_scale=1 / 64,
                delay_scale=0.5,
                duration_s=duration_s,
                extra_body=json.dumps({"max_tokens": OUTPUT_TOKENS}),
            )
            workload = await load_workload(options)
            run = await measure(options, workload, streams, "overhead", display)
    return {
        "streams": streams,
        "served_time_to_first_token_ms": TTFT_S * 1000,
        "served_inter_token_latency_ms": ITL_S * 1000,
        **{
            name: run.summary[name]
            for name in (
                "time_to_first_token_ms",
                "inter_token_latency_ms",
                "dispatch_lateness_ms",
                "output_token_throughput",
                "request_count",
                "errors",
                "client",
            )
        },
    }
