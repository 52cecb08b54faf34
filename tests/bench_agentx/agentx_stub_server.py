"""The stub as a program that takes ``rollout-serve``'s arguments: a tier that is off forgets every prefix."""

import argparse
import json
import sys

from agentx_stub import Stub
from aiohttp import web

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--kv-tier", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--extra")
parser.add_argument("--die", action="store_true")
parser.add_argument("--ttft-s", type=float, default=0.0)
parser.add_argument("--itl-s", type=float, default=0.0)
arguments = parser.parse_args()
print(json.dumps(sys.argv[1:]), flush=True)
if arguments.die:
    print("no memory for the model")
    sys.exit(7)
stub = Stub(arguments.ttft_s, arguments.itl_s, remembers=arguments.kv_tier != "off")
web.run_app(stub.app(), host="127.0.0.1", port=arguments.port, print=None)
