#!/usr/bin/env bash
# Prints the path of a Python with the packages of the peer NAME, in the versions below:
# the project's .venv if it has the packages, else .venv-peers/NAME, which is made or updated first.
# Standard output is only the path. Exit codes: 2 usage or no Python; 1 the installation failed.
set -euo pipefail
program=install.sh
# shellcheck source=tools/installing.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../../tools/installing.sh"

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
project=$root/.venv/bin/python

name=$*
# Each peer also needs torch and numpy, in the project's versions: peers without torch draw data and weights by it, in another process.
mapfile -t packages < <(grep -E '^(torch|numpy)==' "$root/requirements.txt")
case $name in
    pytorch) ;;
    accelerate) packages+=(accelerate==1.15.0) ;;
    tensorflow) packages+=(tensorflow-cpu==2.21.0) ;;
    jax) packages+=('jax==0.10.2; python_version >= "3.11"' 'jax==0.6.2; python_version < "3.11"') ;;
    *) die 2 "got \"$name\", expected one of: accelerate jax pytorch tensorflow" ;;
esac
venv=$root/.venv-peers/$name

# use PYTHON: prints it and ends if it has every pinned version. Without an index pip only checks that.
use() {
    [[ -x $1 && ! -e ${1%/bin/python}/.installing ]] || return 1
    pip_install "${1%/bin/python}" --isolated --quiet --no-index "${packages[@]}" >/dev/null 2>&1 || return 1
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
say "$name: installing ${packages[*]} into ${venv#"$root"/}" >&2
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
pip_install "$venv" "${packages[@]}" >&2 9>&- ||
    die 1 "pip could not install ${packages[*]} (its reason stands above; run this again when it is gone)"
rm -r "$venv/tmp" "$venv/.installing"
use "$venv/bin/python" || die 1 "$venv lacks what pip said to have installed: ${packages[*]}"
