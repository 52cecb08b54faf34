import sys

from bench_agentx.main import main

sys.exit(main())
