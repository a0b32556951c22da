#!/usr/bin/env bash
# Runs a test with a TMPDIR of its own, of which nothing stays: torchrun, Open MPI and a test that fails leave folders behind.
set -euo pipefail

TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf -- "$TMPDIR" || true' EXIT
"$@"
