#!/usr/bin/env bash
# Sets up, builds, and runs the benchmark; arguments go to build/bin/bench (see its --help).
# Unless --json or --html says otherwise, the results go to report.json and report.html in the checkout.
set -euo pipefail

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# To stderr: with --json and no file, standard output is the JSON document.
"$root/tools/setup.sh" bench >&2

cd "$root"
# torchrun and Python are those of the environment.
[[ -n ${LIBTORCH:-} ]] || PATH=$root/.venv/bin:$PATH

report=(--json report.json --html report.html)
case ${1:-} in compare | html | predict) report=() ;; esac
for argument in "$@"; do
    case $argument in
        --json | --json=* | --html | --html=* | --dry[-_]run | -h | --help | --version) report=() ;;
        --benchmark[-_]list[-_]tests*) report=() ;;
    esac
done
exec build/bin/bench "$@" "${report[@]}"
