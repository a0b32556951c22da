#!/usr/bin/env bash
# Writes the pages as a site: build/site/index.html, or FOLDER/index.html. A link that leads nowhere is an error.
#
#   tools/site.sh [FOLDER]
#
# Sphinx, MyST and Furo are in .venv/ after tools/setup.sh, or in any environment after `pip install -r docs/site/requirements.txt`.
# Exit codes: 2 they are missing, 1 a page is wrong (the message says which and where).
set -euo pipefail

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
site=$(realpath -m -- "${1:-$root/build/site}")
for python in "$root/.venv/bin/python" python3 ""; do
    [[ -n $python ]] || {
        printf 'site: found no sphinx, myst_parser and furo in .venv or for python3, expected those of docs/site/requirements.txt\n' >&2
        exit 2
    }
    ! "$python" -c 'import furo, myst_parser, sphinx' 2>/dev/null || break
done

# Pages of another time, if it was Sphinx that wrote there.
[[ ! -e $site/.buildinfo ]] || rm -rf -- "$site"
cd "$root"
"$python" -m sphinx -q -W --keep-going -n -E -b html -c docs/site -d "$site/.doctrees" . "$site" || exit 1
rm -rf -- "$site/.doctrees"
printf '%s\n' "$site/index.html"
