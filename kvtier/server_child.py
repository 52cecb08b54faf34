"""The process that `kvtier.server` starts: `lmcache server`, tied to the life of its parent.

python -m kvtier.server_child PARENT_PID server --port ...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> int:
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # The parent died before the line above.
    from lmcache.cli.main import main as lmcache

    sys.argv = ["lmcache", *sys.argv[2:]]
    return lmcache() or 0


if __name__ == "__main__":
    sys.exit(main())
