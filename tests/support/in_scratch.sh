#!/usr/bin/env bash
# Runs a test with its own TMPDIR, and removes it: torchrun, Open MPI and failed tests leave folders behind.
set -euo pipefail

TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf -- "$TMPDIR" || true' EXIT
"$@"
