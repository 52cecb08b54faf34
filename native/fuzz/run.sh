#!/usr/bin/env bash
# Coverage-guided fuzzing of the decoder under sanitizers, against libzstd.
#
#   native/fuzz/run.sh [RUNS]      1,000,000 runs by default; finds are left in build/fuzz, the corpus grows there
#
# Needs clang with libFuzzer: apt-get install clang-14 libclang-rt-14-dev
set -euo pipefail
cd "$(dirname "$0")/../.."
runs="${1:-1000000}"
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
cmake="$([ -x .venv/bin/cmake ] && echo .venv/bin/cmake || echo cmake)"
compiler="$(command -v clang++ || command -v clang++-14 || true)"
if [ -z "$compiler" ]; then
  echo "no clang++ found: apt-get install clang-14 libclang-rt-14-dev" >&2
  exit 3
fi
"$cmake" -S native -B build/fuzz -DCMAKE_CXX_COMPILER="$compiler" -DNATIVE_SANITIZE=ON > /dev/null
"$cmake" --build build/fuzz --parallel 2 --target fuzz_decode > /dev/null
"$python" native/fuzz/make_corpus.py build/fuzz/seeds
mkdir -p build/fuzz/corpus
cd build/fuzz
exec ./fuzz_decode -runs="$runs" -max_len=16384 -timeout=60 -rss_limit_mb=3000 -print_final_stats=1 corpus seeds
