#!/usr/bin/env bash
# Sets up, builds, and runs all tests; arguments go to ctest, for example: ./tests/run.sh -L unit
# LIBTORCH_VERSION=2.15.0 ./tests/run.sh tests with that LibTorch instead of the pinned version.
set -euo pipefail
unset CDPATH PYTHONPATH PYTHONHOME

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tools/setup.sh"

cd "$root"
# torchrun and Python from the environment.
[[ -n ${LIBTORCH:-} ]] || PATH=$root/.venv${LIBTORCH_VERSION:+-$LIBTORCH_VERSION}/bin:$PATH
code=0
start=$SECONDS
# One job more than processors, because the tests of clusters wait for daemons beside the other tests.
ctest --preset release --parallel "$(($(nproc) + 1))" "$@" || code=$?
log=build/Testing/Temporary/LastTest.log
printf '%d skipped\n' "$(grep -c '^skipped: ' "$log")"
sed -n 's/^skipped: /  /p' "$log" || true
tests/repository/size.py --seconds "$((SECONDS - start))"
exit "$code"
