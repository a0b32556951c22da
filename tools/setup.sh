#!/usr/bin/env bash
# Sets up this checkout: system packages, LibTorch in .venv/, the release build in build/.
#   tools/setup.sh [bench|all]
# bench: the stages and the benchmark, for ./bench/run.sh. all (the default): also the tests and their packages.
# Steps that are already done are skipped, so a second run takes seconds. What the steps print goes to build/setup.log.
# LIBTORCH=/path uses an existing LibTorch instead of .venv/.
# LIBTORCH_VERSION=2.15.0 installs that version instead of the pinned version, into .venv-2.15.0/, and builds with it.
# Exit codes: 2 the machine lacks something (the message says what), 1 a step failed.
set -euo pipefail
program=setup
# shellcheck source=tools/installing.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/installing.sh"

packages=(
    # to build
    g++ cmake make ninja-build ccache git ca-certificates python3 python3-dev python3-venv
    libcli11-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev libopenmpi-dev libbenchmark-dev libjs-chart.js
    # to run: mpirun
    openmpi-bin
)
requirements=(requirements.txt)
target=benchmark tests=OFF
case ${1:-all} in
    bench) ;;
    all)
        packages+=(
            # test data, Catch2, Google Benchmark's compare.py, shellcheck for scripts
            dataset-fashion-mnist catch2 libbenchmark-tools shellcheck
            # a library built as others do: their fmt, pkg-config, another processor
            libfmt-dev pkg-config g++-aarch64-linux-gnu
            # clusters of Slurm and HTCondor
            slurm-wlm debootstrap iproute2
        )
        # A browser for the report's page, which Ubuntu has only as a snap.
        ! grep -qsx ID=debian /etc/os-release || packages+=(chromium-headless-shell)
        requirements+=(tests/requirements.txt)
        target=all tests=ON
        ;;
    *) die 2 "got \"$1\", expected bench or all" ;;
esac
venv_mb=8000 # disk space to install .venv/: 5 GB, and the downloads

caller_dir=$PWD
root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=$root/.venv
if [[ -n ${LIBTORCH_VERSION:-} ]]; then
    [[ $LIBTORCH_VERSION =~ ^[0-9][0-9a-z.+]*$ ]] || die 2 "LIBTORCH_VERSION: got $LIBTORCH_VERSION, expected a version such as 2.15.0"
    venv=$root/.venv-$LIBTORCH_VERSION
    # With CUDA headers in the version of this torch.
    sed "s/^torch==.*/torch==$LIBTORCH_VERSION/; s/^\(nvidia-[a-z-]*\)==.*/\1/" requirements.txt >"$venv.txt"
    requirements[0]=$venv.txt
fi
log=$root/build/setup.log
# Written at the end of an installation: the path of .venv/, and the hashes of its requirements files.
stamp=$venv/.requirements-installed

# logged COMMAND: its output goes to the log. If it fails, the end of the log is shown.
logged() { "$@" >>"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; echo "All of it: $log" >&2; return 1; }; }

install_packages() {
    local installed missing=() package command as_root=()
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        # Other distributions have other names for packages, so only tools can be checked.
        for command in g++ cmake ninja git python3; do
            command -v "$command" >/dev/null ||
                die 2 "no $command and no apt-get here; expected what Debian calls: ${packages[*]}"
        done
        say "System packages: not Debian or Ubuntu, trusting that the libraries are there"
        return
    fi
    # dpkg-query fails for unknown packages, which is no error here.
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
    for package in "${packages[@]}"; do
        grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        say "System packages: all there"
        return
    fi

    local install=(install -y --no-install-recommends "${missing[@]}")
    if ((EUID != 0)); then
        as_root=(sudo)
        [[ -t 0 ]] || as_root+=(-n)
        "${as_root[@]}" -v 2>/dev/null ||
            die 2 "system packages missing (${#missing[@]}), which this account may not install;" \
                "as root: apt-get update && apt-get ${install[*]}"
    fi
    say "System packages: installing ${#missing[@]}: ${missing[*]}"
    # Waits for apt's lock, because a machine often runs its own updates after its start.
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    # A failed update may not matter, for example if one of many repositories is out of reach.
    "${apt[@]}" update >>"$log" 2>&1 </dev/null || true
    logged "${apt[@]}" "${install[@]}" ||
        die 1 "apt-get could not install: ${missing[*]} (its reason stands above; run this again when it is gone)"
}

find_python() {
    local candidate
    # Not the Python of .venv, which is replaced. The requirements have wheels for Python 3.10 to 3.13.
    for candidate in $(type -ap python3 python3.13 python3.12 python3.11 python3.10 || true); do
        if [[ $candidate != "$venv"/* ]] && "$candidate" -I -c "import ensurepip, sys, venv
sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

wanted_stamp() { printf '%s\n' "$venv" && sha256sum "${requirements[@]}"; }

install_venv() {
    local python free
    # The stamp has the path, because scripts in .venv/bin have it too: a moved checkout needs a new .venv.
    if [[ -e $stamp ]] && grep -qxF "$venv" "$stamp" && "$venv/bin/python" -I -c 'import pip' 2>/dev/null; then
        if [[ -z $(wanted_stamp | grep -vxFf "$stamp" || true) ]]; then
            say "LibTorch: .venv is up to date"
            return
        fi
        say "LibTorch: bringing .venv up to ${requirements[*]}"
    else
        python=$(find_python) ||
            die 2 "no Python for .venv: expected python3 from 3.10 to 3.13 with the venv module, found $(python3 --version 2>&1 || true)"
        # Empties .venv instead of removing it, because it may be a link to a larger disk.
        mkdir -p "$venv"
        [[ -e $venv/pyvenv.cfg || -z $(ls -A "$venv/") ]] || die 2 "$venv: got a folder of other files, expected an empty one, or no folder"
        find "$venv/" -mindepth 1 ! -path "$venv/pyvenv.cfg" -delete
        free=$(df -Pm "$venv/" | awk 'NR == 2 { print $4 }')
        ((free >= venv_mb)) ||
            die 2 "not enough disk space for LibTorch: $((free / 1000)) GB free in $venv, expected $((venv_mb / 1000)) GB;" \
                "free some, link .venv to a larger disk, or set LIBTORCH=/path"
        # pip's cache holds a second copy of the downloads, if there is room.
        ((free >= venv_mb + 3000)) || export PIP_NO_CACHE_DIR=1
        say "LibTorch: installing ${requirements[*]} into .venv: about 3 GB to download, 5 GB on disk, 1 to 5 minutes"
        logged "$python" -I -m venv "$venv" || die 1 "$python could not create $venv (its reason stands above)"
    fi

    [[ ! -e $stamp ]] || mv "$stamp" "$stamp.before"
    mkdir -p "$venv/tmp"
    # --no-compile: few of torch's seven thousand Python files are used.
    logged pip_install "$venv" --no-compile "${requirements[@]/#/--requirement=}" || {
        # After a failure, for example without network, the old installation still works.
        [[ ! -e $stamp.before ]] || mv "$stamp.before" "$stamp"
        die 1 "pip could not install ${requirements[*]} (its reason stands above; run this again when it is gone)"
    }
    logged "$venv/bin/python" -I -c 'import torch, torch.distributed.run' ||
        die 1 "the installed torch does not load (its reason stands above)"
    rm -rf "$venv/tmp" "$stamp.before"
    wanted_stamp >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

# Prints how many compilers may run: by the processors and the memory that are free, and by the limits of control groups, versions 1 and 2.
# LibTorch's precompiled header takes 1.6 GB to compile, a source that uses it up to 1.4 GB.
find_jobs() {
    local group folder folders=()
    while IFS= read -r group; do
        while folders+=(/sys/fs/cgroup{,/unified,/memory,/cpu}"$group"); [[ -n $group ]]; do group=${group%/*}; done
    done < <(cut -d: -f3- /proc/self/cgroup)
    {
        echo "$(nproc) 1"
        awk '/^MemAvailable:/ { print $2, 2000000 }' /proc/meminfo
        for folder in "${folders[@]}"; do
            sed 's/$/ 2000000000/' "$folder"/memory.{max,limit_in_bytes} || true
            cat "$folder/cpu.max" || paste -d ' ' "$folder"/cpu.cfs_{quota,period}_us || true
        done 2>/dev/null
    } | awk '/^[0-9]/ { n = int($1 / $2); if (NR == 1 || n < jobs) jobs = n } END { print (jobs > 1 ? jobs : 1) }'
}

build() {
    local key jobs configure=(cmake --preset release "-DLIBTORCH=${LIBTORCH:-}")
    # CMake's cache keeps paths, so another LibTorch or a moved checkout starts a new cache.
    # Object files stay: Ninja compiles only changed sources.
    key="$root"$'\n'"${LIBTORCH:-$(cd "$venv" && echo "$PWD"/lib/python3.*)}"
    if [[ -e build/CMakeCache.txt && (! -e build/.setup-key || $(<build/.setup-key) != "$key") ]]; then
        rm -rf build/CMakeCache.txt build/CMakeFiles build/.setup-key
    fi
    # A build with tests stays configured with tests; `bench` builds only a part of it.
    [[ $tests == OFF && -e build/CMakeCache.txt ]] || configure+=("-DBUILD_TESTING=$tests")
    logged "${configure[@]}" || die 1 "cmake could not configure the build (its reason stands above)"
    printf '%s\n' "$key" >build/.setup-key

    jobs=$(find_jobs)
    export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}
    say "Build: $CMAKE_BUILD_PARALLEL_LEVEL compilers, some minutes the first time; tail -f build/setup.log shows how far it is"
    logged cmake --build --preset release --target "$target" ||
        die 1 "the build failed (its reason stands above)"
}

exec 9<"$root"
lock 9 "Waiting for another setup in this checkout"

if [[ -n ${LIBTORCH:-} ]]; then
    given=$LIBTORCH
    [[ $given == /* ]] || LIBTORCH=$caller_dir/$given
    [[ -e $LIBTORCH/lib/libtorch_cpu.so && -d $LIBTORCH/include/torch ]] ||
        die 2 "LIBTORCH=$given is no LibTorch: expected a folder with include/torch and lib/libtorch_cpu.so"
fi

mkdir -p build
: >"$log"
install_packages
if [[ -n ${LIBTORCH:-} ]]; then
    say "LibTorch: $LIBTORCH, no .venv is made"
else
    install_venv
    [[ -z ${LIBTORCH_VERSION:-} ]] || LIBTORCH=$(echo "$venv"/lib/python3.*/site-packages/torch)
fi
build
say "Set up in $SECONDS s"
