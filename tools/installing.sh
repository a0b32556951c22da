# shellcheck shell=bash
# What tools/setup.sh and bench/peers/install.sh do alike; both source it.

# Variables that send cd, grep, Python or pip elsewhere, or that nproc prints instead of the processors.
unset CDPATH GREP_OPTIONS OMP_NUM_THREADS OMP_THREAD_LIMIT PYTHONPATH PYTHONHOME PIP_PYTHON PIP_DRY_RUN PIP_NO_DEPS PIP_REQUIREMENT PIP_REQUIRE_HASHES

say() { printf '==> %s\n' "$*"; }

# die CODE MESSAGE: the message has the name of the script, setup or install.sh, in front.
die() {
    printf '%s: %s\n' "$program" "${*:2}" >&2
    exit "$1"
}

# lock DESCRIPTOR MESSAGE: one installation at a time, if the file system has locks. Says the message where it waits.
lock() { flock -n "$1" || { say "$2" && flock "$1"; } || true; }

# pip_install VENV OPTIONS: installs wheels, so that nothing is compiled.
# TMPDIR: /tmp may be a small memory disk. --no-user and its neighbours: pip's settings may name a folder for other packages.
pip_install() {
    TMPDIR=$1/tmp "$1/bin/python" -I -m pip install --disable-pip-version-check --only-binary :all: \
        --no-user --target "" --root / --prefix "$@" </dev/null
}
