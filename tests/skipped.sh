#!/usr/bin/env bash
# Lists the tests that the last run of ctest left out, with reasons: tests/skipped.sh BUILD_DIR
set -euo pipefail

mapfile -t reasons < <(sed -n 's/^skipped: //p' "$1/Testing/Temporary/LastTest.log")
printf '%d skipped\n' "${#reasons[@]}"
for reason in "${reasons[@]}"; do
    printf '  %s\n' "$reason"
done
