#!/usr/bin/env bash
# Says which tests the last run of ctest left out, and why: tests/skipped.sh BUILD_DIR
set -euo pipefail

mapfile -t reasons < <(sed -n 's/^skipped: //p' "$1/Testing/Temporary/LastTest.log")
printf '%d skipped\n' "${#reasons[@]}"
for reason in "${reasons[@]}"; do
    printf '  %s\n' "$reason"
done
