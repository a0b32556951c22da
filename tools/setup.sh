#!/usr/bin/env bash
# Sets up this checkout: system packages, LibTorch in .venv/, the release build in build/.
#
#   tools/setup.sh [bench|all]
#
# bench: what ./bench/run.sh needs, the stages and the benchmark. all (the default): also submit and the tests.
# Each step first looks whether anything is left to do, so that a second run takes seconds.
# LIBTORCH=/path uses a LibTorch that is already there; no .venv/ is made then.
# Exit codes: 2 the machine lacks something (the message says what), 1 a step failed.
set -euo pipefail

packages=(
    # to build
    g++ cmake ninja-build ccache git ca-certificates python3 python3-venv
    libcli11-dev nlohmann-json3-dev libxxhash-dev libsodium-dev zlib1g-dev libpng-dev libturbojpeg0-dev libgloo-dev libopenmpi-dev libbenchmark-dev
    libkainjow-mustache-dev libjs-chart.js
    # to run: mpirun
    openmpi-bin
)
requirements=(requirements.txt)
target=benchmark
case ${1:-all} in
    bench) ;;
    all)
        packages+=(
            # submit
            libyaml-cpp-dev
            # the tests' data, their framework, Google Benchmark's compare.py, what reads this script and the page's
            dataset-fashion-mnist catch2 libbenchmark-tools shellcheck nodejs
            # clusters of Slurm and HTCondor, MPICH's mpiexec.hydra (mpirun and mpicc stay Open MPI's)
            slurm-wlm debootstrap iproute2 mpich
            # the programs' manual pages, and what reads them
            help2man groff-base
        )
        requirements+=(tests/requirements.txt docs/site/requirements.txt)
        target=all
        ;;
    *)
        printf 'setup: got "%s", expected bench or all\n' "$1" >&2
        exit 2
        ;;
esac
# What the requirements have wheels for.
python_oldest="3, 10"
python_newest="3, 13"
# The environment needs 5 GB; while it is being installed, the downloads lie beside it.
venv_mb=5000
download_mb=3000

say() { printf '==> %s\n' "$*"; }
die() {
    local code=$1
    shift
    printf 'setup: %s\n' "$*" >&2
    exit "$code"
}

caller_dir=$PWD
root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=$root/.venv
stamp=$venv/.requirements-installed
unfinished=$venv/.installing

# ---------------------------------------------------------------------------------------------------------------
# System packages

missing_packages() {
    # dpkg-query fails when it does not know a package, which is no error here.
    local installed
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
    local package
    for package in "${packages[@]}"; do
        grep -qxF "installed $package" <<<"$installed" || printf '%s\n' "$package"
    done
}

install_packages() {
    local start=$SECONDS missing command as_root
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        # Another distribution: its packages have other names, so only the tools can be checked.
        for command in g++ cmake ninja git python3; do
            command -v "$command" >/dev/null ||
                die 2 "no $command and no apt-get here; expected what Debian calls: ${packages[*]}"
        done
        say "System packages: not Debian or Ubuntu, trusting that the libraries are there"
        return
    fi

    mapfile -t missing < <(missing_packages)
    if ((${#missing[@]} == 0)); then
        say "System packages: all there"
        return
    fi

    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if ((EUID == 0)); then
        as_root=()
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    elif command -v sudo >/dev/null && [[ -t 0 ]] &&
        say "System packages: sudo is needed to install ${missing[*]}" && sudo -v; then
        as_root=(sudo)
    else
        die 2 "system packages missing (${#missing[@]}), which this account may not install;" \
            "as root: apt-get update && ${install[*]}"
    fi

    say "System packages: installing ${missing[*]}"
    # The lock: a machine just started often runs its own updates.
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    # One repository of many out of reach fails the update, but need not matter: the installation decides.
    "${apt[@]}" update </dev/null || true
    "${apt[@]}" "${install[@]:1}" </dev/null ||
        die 1 "apt-get could not install: ${missing[*]} (its reason stands above; run this again when it is gone)"
    say "System packages: installed ($((SECONDS - start)) s)"
}

# ---------------------------------------------------------------------------------------------------------------
# LibTorch

find_python() {
    local candidate
    while read -r candidate; do
        # An activated .venv of this checkout cannot make itself anew.
        [[ $candidate != "$venv"/* ]] || continue
        if "$candidate" -I -c "import ensurepip, sys, venv
sys.exit(not ($python_oldest) <= sys.version_info[:2] <= ($python_newest))" 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done < <(type -ap python3 || true
             printf '%s\n' /usr/bin/python3
             type -ap python3.13 python3.12 python3.11 python3.10 || true)
    return 1
}

# pip is silent while it unpacks, for a minute or more.
report_growth() {
    local before=$1 now
    # Nothing of this may outlive the script or hold its output open.
    while sleep 10 &>/dev/null && kill -0 $$ 2>/dev/null; do
        now=$(du -sm "$venv/lib" 2>/dev/null | cut -f1) || true
        if ((${now:-0} > before + 100)); then
            printf '    %d MB of about %d MB unpacked\n' "$now" "$venv_mb"
            before=$now
        fi
    done
}

stop_reporter() {
    [[ -z $reporter ]] || kill "$reporter" 2>/dev/null || true
    reporter=""
}
reporter=""
trap stop_reporter EXIT

free_mb() { df -Pm "$1" | awk 'NR == 2 { print $4 }'; }

# Of the files that are needed, those whose present text is not what was installed.
missing_requirements() {
    sha256sum "${requirements[@]}" | grep -vxFf "$stamp" || true
}

install_venv() {
    local start=$SECONDS why="" in_place=false file arguments=()
    for file in "${requirements[@]}"; do
        arguments+=(--requirement "$file")
    done

    if [[ ! -e $venv/pyvenv.cfg ]]; then
        why="new"
    elif [[ -e $unfinished ]]; then
        why="anew, the last installation was interrupted"
    elif ! "$venv/bin/python" -I -c 'import pip' 2>/dev/null; then
        why="anew, its Python does not run any more"
    elif [[ -e $stamp ]] && ! grep -qxF "$venv" "$stamp"; then
        # The scripts in .venv/bin hold their own path.
        why="anew, the checkout was moved"
    elif [[ ! -e $stamp ]] || [[ -n $(missing_requirements) ]]; then
        why="bringing it up to ${requirements[*]}"
        in_place=true
    else
        say "LibTorch: .venv is up to date"
        return
    fi

    local python="" present=0 need free
    if [[ $in_place == false ]]; then
        python=$(find_python) ||
            die 2 "no Python for .venv: expected python3 from ${python_oldest/, /.} to ${python_newest/, /.} with the venv module," \
                "found $(python3 --version 2>&1 || true)"
        # .venv may be a link to a larger disk: empty it, keep the link.
        mkdir -p "$venv"
        touch "$unfinished"
        find "$venv/" -mindepth 1 ! -name "${unfinished##*/}" -delete
    fi
    present=$(du -sm "$venv/" | cut -f1)
    need=$((venv_mb + download_mb - present))
    # What only the tests need is small.
    [[ $in_place == false || ! -e $stamp || $(missing_requirements) == *" requirements.txt"* ]] || need=0
    free=$(free_mb "$venv/")
    ((need <= 0 || free >= need)) ||
        die 2 "not enough disk space for LibTorch: $((free / 1000)) GB free in $venv, expected $((need / 1000)) GB;" \
            "free some, link .venv to a larger disk, or set LIBTORCH=/path"

    say "LibTorch: installing ${requirements[*]} into .venv ($why)"
    [[ $in_place == true ]] ||
        say "LibTorch: about 3 GB to download, 5 GB on disk, 1 to 5 minutes"
    touch "$unfinished"
    if [[ $in_place == false ]]; then
        "$python" -I -m venv "$venv" || die 1 "$python could not create $venv (its reason stands above)"
    fi

    # pip keeps a second copy of the downloads in its cache; without room for that it has to do without.
    ((free >= need + download_mb)) || export PIP_NO_CACHE_DIR=1
    mkdir -p "$venv/tmp"
    report_growth "$present" 9>&- &
    reporter=$!
    disown
    # -I: a PYTHONPATH set for other programs must not count as installed here.
    # TMPDIR: /tmp may be a small memory disk. Only wheels: compiling torch is not an option. --no-compile: of its seven
    # thousand Python files few are ever used, and most of these are compiled by the import below.
    local code=0 interrupted=false
    trap 'interrupted=true' INT
    TMPDIR=$venv/tmp "$venv/bin/python" -I -m pip install --disable-pip-version-check --no-compile --only-binary :all: \
        "${arguments[@]}" </dev/null || code=$?
    trap - INT
    stop_reporter
    [[ $interrupted == false ]] || die 130 "interrupted while installing into .venv; run this again to start that anew"
    if ((code != 0)); then
        # pip refused (no network, no such version) before it changed anything: what was there still works.
        [[ $in_place == false || $code -gt 2 ]] || rm "$unfinished"
        die 1 "pip could not install ${requirements[*]} (its reason stands above; run this again when it is gone)"
    fi
    "$venv/bin/python" -I -c 'import torch, torch.distributed.run; print("    torch", torch.__version__)' ||
        die 1 "the installed torch does not load (its reason stands above)"

    # In this order an interruption costs a repetition, and never looks like success.
    rm -rf "$venv/tmp"
    { printf '%s\n' "$venv" && sha256sum "${requirements[@]}"; } >"$stamp.new"
    mv "$stamp.new" "$stamp"
    rm "$unfinished"
    say "LibTorch: installed ($((SECONDS - start)) s)"
}

# ---------------------------------------------------------------------------------------------------------------
# Build

# Of Ninja's lines "[steps/all seconds] what": one every 15 s, with the minutes that are left. All else passes.
report_build() {
    local line said=0 seconds
    while IFS= read -r line; do
        if [[ $line =~ ^\[([0-9]+)/([0-9]+)\ ([0-9]+)\.?[0-9]*\]\  ]]; then
            seconds=${BASH_REMATCH[3]}
            if ((seconds >= said + 15)); then
                said=$seconds
                printf '    %d of %d build steps, about %d min left\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" \
                    $((seconds * (BASH_REMATCH[2] - BASH_REMATCH[1]) / BASH_REMATCH[1] / 60 + 1))
            fi
        else
            printf '%s\n' "$line"
        fi
    done
}

build() {
    local start=$SECONDS key
    # CMake keeps the paths it once found, so another LibTorch or a moved checkout starts a new cache.
    # The objects stay; Ninja compiles again only what really changed.
    key="$root"$'\n'"${LIBTORCH:-$(cd "$venv" && echo "$PWD"/lib/python3.*)}"
    if [[ -e build/CMakeCache.txt && (! -e build/.setup-key || $(<build/.setup-key) != "$key") ]]; then
        rm -rf build/CMakeCache.txt build/CMakeFiles build/.setup-key
    fi
    # What was once configured with tests stays so, and only less of it is built.
    local parts=()
    if [[ $target == all ]]; then
        parts=(-DBUILD_TESTING=ON -DDDP_SUBMIT=ON)
    elif [[ ! -e build/CMakeCache.txt ]]; then
        parts=(-DBUILD_TESTING=OFF -DDDP_SUBMIT=OFF)
    fi
    cmake --preset release -DLIBTORCH="${LIBTORCH:-}" "${parts[@]}" ||
        die 1 "cmake could not configure the build (its reason stands above)"
    printf '%s\n' "$key" >build/.setup-key

    # LibTorch's precompiled header takes 1.6 GB to compile, a source that uses it up to 1.4 GB.
    local jobs memory
    jobs=$(nproc)
    memory=$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo)
    ((memory >= jobs)) || jobs=$((memory > 0 ? memory : 1))
    CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs} NINJA_STATUS='[%f/%t %e] ' \
        cmake --build --preset release --target "$target" | report_build ||
        die 1 "the build failed (its reason stands above)"
    say "Build: build/bin is up to date ($((SECONDS - start)) s)"
}

# ---------------------------------------------------------------------------------------------------------------

# One setup at a time; the checkout itself is the lock. A file system without locks does without.
exec 9<"$root"
if ! flock -n 9; then
    say "Waiting for another setup in this checkout"
    flock 9 || true
fi

if [[ -n ${LIBTORCH:-} ]]; then
    given=$LIBTORCH
    [[ $given == /* ]] || LIBTORCH=$caller_dir/$given
    [[ -e $LIBTORCH/lib/libtorch_cpu.so && -d $LIBTORCH/include/torch ]] ||
        die 2 "LIBTORCH=$given is no LibTorch: expected a folder with include/torch and lib/libtorch_cpu.so"
fi

install_packages
if [[ -n ${LIBTORCH:-} ]]; then
    say "LibTorch: $LIBTORCH, no .venv is made"
else
    install_venv
fi
build
say "Set up in $SECONDS s"
