#!/usr/bin/env bash
# Prints the path of a Python that has what the peer NAME needs, as bench/peers/requirements-NAME.txt pins it:
# the project's .venv if it has that, else .venv-peers/NAME, which is made or brought up to date first.
# Standard output is the path alone. Exit codes: 2 usage or no Python; 1 the installation failed.
set -euo pipefail

here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -P -- "$here/../.." && pwd)
project=$root/.venv/bin/python

say() { printf '==> %s\n' "$*" >&2; }
die() {
    local code=$1
    shift
    printf 'install.sh: %s\n' "$*" >&2
    exit "$code"
}

known=$(cd "$here" && printf '%s ' requirements-*.txt | sed 's/requirements-//g; s/\.txt//g; s/ $//')
name=${1:-}
[[ $# == 1 && " $known " == *" $name "* ]] || die 2 "got \"$*\", expected one of: $known"
requirements=$here/requirements-$name.txt
venv=$root/.venv-peers/$name

# use PYTHON: prints it and ends if pip finds every pinned version there. Without an index it can install nothing.
use() {
    [[ -x $1 && ! -e ${1%/bin/python}/.installing ]] || return 1
    "$1" -I -m pip --isolated --disable-pip-version-check install --quiet --no-index \
        --requirement "$requirements" >/dev/null 2>&1 || return 1
    printf '%s\n' "$1"
    exit 0
}

use "$project" || use "$venv/bin/python" || true

# One installation at a time. The one that waited finds the work done.
mkdir -p "$root/.venv-peers"
exec 9>"$root/.venv-peers/.$name.lock"
flock 9
use "$venv/bin/python" || true

# Made anew, so that what an installation left that was interrupted, or what is of another version, does not matter.
say "$name: installing ${requirements#"$root"/} into ${venv#"$root"/}"
rm -rf "$venv"
python=python3
[[ ! -x $project ]] || python=$project
"$python" -I -m venv "$venv" >&2 9>&- || die 2 "$python could not make $venv, expected a Python with the venv module"
touch "$venv/.installing"
if [[ -x $project ]]; then
    # What the project has, torch above all, need not be there twice: the peer's own packages come first.
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$project" -I -c "$purelib" >"$("$venv/bin/python" -I -c "$purelib")/project.pth"
fi
# TMPDIR: /tmp may be a small memory disk. Only wheels: nothing is compiled.
mkdir "$venv/tmp"
TMPDIR=$venv/tmp "$venv/bin/python" -I -m pip install --disable-pip-version-check --only-binary :all: \
    --requirement "$requirements" </dev/null >&2 9>&- ||
    die 1 "pip could not install $requirements (its reason stands above; run this again when it is gone)"
rm -r "$venv/tmp" "$venv/.installing"
use "$venv/bin/python" || die 1 "$venv lacks what pip said to have installed from $requirements"
