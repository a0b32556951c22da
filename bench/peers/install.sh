#!/usr/bin/env bash
# Prints the path of a Python that has what the peer NAME needs, as bench/peers/requirements-NAME.txt pins it:
# the project's .venv if it satisfies that, else .venv-peers/NAME, which is made or brought up to date first.
# With --only-look before NAME nothing is made, and one that is not there is exit code 1.
# Standard output is the path alone. Exit codes: 2 usage, requirements or no Python; 1 the installation failed.
set -euo pipefail

# What the peers' packages have wheels for, as in tools/setup.sh.
python_oldest="3, 10"
python_newest="3, 13"

here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -P -- "$here/../.." && pwd)

say() { printf '==> %s\n' "$*" >&2; }
die() {
    local code=$1
    shift
    printf 'install.sh: %s\n' "$*" >&2
    exit "$code"
}

known() {
    local file names=()
    for file in "$here"/requirements-*.txt; do
        file=${file##*/requirements-}
        names+=("${file%.txt}")
    done
    printf '%s' "${names[*]}"
}

only_look=false
if [[ ${1:-} == --only-look ]]; then
    only_look=true
    shift
fi
(($# == 1)) || die 2 "got $# arguments, expected the name of a peer: $(known)"
name=$1
requirements=$here/requirements-$name.txt
[[ $name =~ ^[a-z0-9_]+$ && -f $requirements ]] || die 2 "unknown peer \"$name\", expected one of: $(known)"

# On a machine without a network its owner says which Python has what is needed, whatever the versions.
if [[ -n ${DDP_PEERS_PYTHON:-} ]]; then
    printf '%s\n' "$DDP_PEERS_PYTHON"
    exit
fi

# One NAME==VERSION an element. What else pip would understand is refused, because satisfies() does not.
pins=()
while read -r line || [[ -n $line ]]; do
    line=${line%%#*}
    line=${line%"${line##*[![:space:]]}"}
    [[ -n $line ]] || continue
    [[ $line =~ ^[A-Za-z0-9._-]+==[A-Za-z0-9._!+-]+$ ]] ||
        die 2 "$requirements: got \"$line\", expected lines NAME==VERSION"
    pins+=("$line")
done <"$requirements"

# satisfies PYTHON: whether it has every pinned version. By the packages' metadata: importing torch would take seconds.
satisfies() {
    "$1" -I - "${pins[@]}" <<'EOP'
import importlib.metadata
import sys

for pin in sys.argv[1:]:
    name, _, version = pin.partition("==")
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(1)
    # A local version, "2.11.0+cpu", satisfies the public one.
    if version not in (found, found.partition("+")[0]):
        sys.exit(1)
EOP
}

# use PYTHON: prints it and ends if it satisfies the requirements.
use() {
    satisfies "$1" || return 1
    printf '%s\n' "$1"
    exit 0
}

project=$root/.venv/bin/python
has_project=false
# While tools/setup.sh installs into it, it is not to be relied on.
if [[ -x $project && ! -e $root/.venv/.installing ]]; then
    use "$project" || has_project=true
fi

venv=$root/.venv-peers/$name
stamp=$venv/.requirements-installed
expected=$(sha256sum <"$requirements" | cut -d' ' -f1)$'\n'$venv
is_whole() { [[ -e $stamp && $(<"$stamp") == "$expected" && -x $venv/bin/python ]]; }

! is_whole || use "$venv/bin/python" || true
[[ $only_look == false ]] || die 1 "$name is not installed"

find_python() {
    local candidate
    while read -r candidate; do
        if "$candidate" -I -c "import ensurepip, sys, venv
sys.exit(not ($python_oldest) <= sys.version_info[:2] <= ($python_newest))" 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done < <([[ $has_project == false ]] || printf '%s\n' "$project"
             type -ap python3 || true
             printf '%s\n' /usr/bin/python3
             type -ap python3.13 python3.12 python3.11 python3.10 || true)
    return 1
}

# One installation at a time. The one that waited finds the work done.
mkdir -p "$root/.venv-peers"
exec 9>"$root/.venv-peers/.$name.lock"
if ! flock -n 9; then
    say "$name: waiting for another installation"
    flock 9
    ! is_whole || use "$venv/bin/python" || true
fi

start=$SECONDS
in_place=false
# A stamp that names this folder: made here, not moved, and complete, if for other requirements.
if [[ -e $stamp && $(tail -n +2 "$stamp") == "$venv" ]] && "$venv/bin/python" -I -c 'import pip' 2>/dev/null; then
    in_place=true
fi
# From here to the end it is not whole.
rm -f "$stamp"
if [[ $in_place == false ]]; then
    python=$(find_python) ||
        die 2 "no Python for $venv: expected python3 from ${python_oldest/, /.} to ${python_newest/, /.}" \
            "with the venv module"
    rm -rf "$venv"
    say "$name: making ${venv#"$root"/}"
    "$python" -I -m venv "$venv" >&2 9>&- || die 1 "$python could not create $venv (its reason stands above)"
    if [[ $has_project == true ]]; then
        # What the project has, torch above all, need not be there twice: the peer's own packages come first.
        "$project" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$("$venv/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
    fi
fi

say "$name: installing ${requirements#"$root"/}"
mkdir -p "$venv/tmp"
# TMPDIR: /tmp may be a small memory disk. Only wheels: nothing is compiled. -I: a PYTHONPATH set for other programs
# must not count as installed here.
TMPDIR=$venv/tmp "$venv/bin/python" -I -m pip install --disable-pip-version-check --only-binary :all: \
    --requirement "$requirements" </dev/null >&2 9>&- ||
    die 1 "pip could not install $requirements (its reason stands above; run this again when it is gone)"
rm -rf "$venv/tmp"
satisfies "$venv/bin/python" || die 1 "$venv lacks what pip said to have installed from $requirements"
printf '%s\n' "$expected" >"$stamp.new"
mv "$stamp.new" "$stamp"
say "$name: installed ($((SECONDS - start)) s)"
printf '%s\n' "$venv/bin/python"
