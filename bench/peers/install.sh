#!/usr/bin/env bash
# Prints the path of a Python with the packages of bench/peers/requirements-NAME.txt, for the peer NAME:
# the project's .venv if it has the packages, else .venv-peers/NAME, which is made or updated first.
# Standard output is only the path. Exit codes: 2 usage or no Python; 1 the installation failed.
set -euo pipefail
program=install.sh
# shellcheck source=tools/installing.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../../tools/installing.sh"

here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -P -- "$here/../.." && pwd)
project=$root/.venv/bin/python

known=$(cd "$here" && printf '%s ' requirements-*.txt | sed 's/requirements-//g; s/\.txt//g; s/ $//')
name=${1:-}
[[ $# == 1 && " $known " == *" $name "* ]] || die 2 "got \"$*\", expected one of: $known"
requirements=$here/requirements-$name.txt
venv=$root/.venv-peers/$name

# use PYTHON: prints it and ends if it has every pinned version. Without an index pip only checks that.
use() {
    [[ -x $1 && ! -e ${1%/bin/python}/.installing ]] || return 1
    pip_install "${1%/bin/python}" --isolated --quiet --no-index --requirement "$requirements" >/dev/null 2>&1 || return 1
    printf '%s\n' "$1"
    exit 0
}

use "$project" || use "$venv/bin/python" || true

# After the wait the packages may be there.
mkdir -p "$root/.venv-peers"
exec 9>"$root/.venv-peers/.$name.lock"
lock 9 "$name: waiting for another installation" >&2
use "$venv/bin/python" || true

# A new environment, without remains of an interrupted installation or of other versions.
say "$name: installing ${requirements#"$root"/} into ${venv#"$root"/}" >&2
rm -rf "$venv"
python=python3
[[ ! -x $project ]] || python=$project
"$python" -I -m venv "$venv" >&2 9>&- || die 2 "$python could not make $venv, expected a Python with the venv module"
touch "$venv/.installing"
if [[ -x $project ]]; then
    # The project's packages, above all torch, are shared. The peer's own packages come first.
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$project" -I -c "$purelib" >"$("$venv/bin/python" -I -c "$purelib")/project.pth"
fi
mkdir "$venv/tmp"
pip_install "$venv" --requirement "$requirements" >&2 9>&- ||
    die 1 "pip could not install $requirements (its reason stands above; run this again when it is gone)"
rm -r "$venv/tmp" "$venv/.installing"
use "$venv/bin/python" || die 1 "$venv lacks what pip said to have installed from $requirements"
