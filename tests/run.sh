#!/usr/bin/env bash
# Sets up, builds, and runs all tests; arguments go to ctest, for example: ./tests/run.sh -L unit
# LIBTORCH_VERSION=2.15.0 ./tests/run.sh tests with another LibTorch than the pinned one.
set -euo pipefail

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tools/setup.sh"

cd "$root"
# torchrun and Python are those of the environment.
[[ -n ${LIBTORCH:-} ]] || PATH=$root/.venv${LIBTORCH_VERSION:+-$LIBTORCH_VERSION}/bin:$PATH
code=0
start=$SECONDS
# One more than there are processors: beside the tests that use them all, the clusters wait for their daemons.
ctest --preset release --parallel "$(($(nproc) + 1))" "$@" || code=$?
tests/skipped.sh build
tests/size.py --seconds "$((SECONDS - start))"
exit "$code"
