#!/usr/bin/env bash
# Sets up, builds, and runs the benchmark; arguments go to build/bin/bench (see its --help).
# Without --json and --html the results go to report.json and report.html in the checkout.
set -euo pipefail
unset CDPATH

cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# To stderr: with --json and no file, standard output is the JSON document.
tools/setup.sh bench >&2
exec build/bin/bench --json report.json --html report.html "$@"
