#!/usr/bin/env bash
# The first run on a machine with GPUs, of a build that was made elsewhere (docs/gpus.md):
#
#   tests/gpu.sh pack FOLDER [BUILD]    collects in FOLDER what must travel there
#   tests/gpu.sh [OPTIONS]              runs all checks and the benchmark there; --help says more
set -euo pipefail

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
limit_mib=64

die() {
    printf 'gpu.sh: %s\n' "$*" >&2
    exit 2
}

# The shared libraries that FILE itself names, but for LibTorch's and glibc's: "name path" a line.
libraries_of() {
    local name
    while read -r name; do
        case $name in
            libtorch* | libc10* | libc.so* | libm.so* | ld-linux* | libdl.so* | librt.so* | libpthread.so*) ;;
            *) ldd "$1" | awk -v name="$name" '$1 == name { print name, $3 }' ;;
        esac
    done < <(objdump --private-headers "$1" | awk '$1 == "NEEDED" { print $2 }')
}

pack() {
    local to=$1 build=${2:-$root/build} file name path mib
    [[ ! -e $to || -d $to && -z $(ls -A "$to") ]] || die "pack: $to is there, expected a new or an empty folder"
    mkdir -p "$to"/{tests,bench,build/{bin,lib/system,lib/compiler,share,tests}}
    to=$(cd -P -- "$to" && pwd)
    cd "$build"
    local files=(bin/0[1-5]_* bin/bench bin/bench_micro bin/peer_c10d bin/ddp-env lib/libddp_cuda.so tests/parity_test
                 bin/peer_libtorch tests/libtorch_data_parallel)
    for file in "${files[@]}"; do
        [[ -e $file ]] || die "pack: found no $file in $build, expected it built: ninja benchmark ddp_cuda parity_test libtorch_data_parallel"
        ! objdump --private-headers "$file" | grep -qw RPATH || die "pack: $file has an RPATH, expected a RUNPATH: it may not hide LD_LIBRARY_PATH"
        strip -o "$to/build/$file" "$file"
        while read -r name path; do
            # The compiler's own are used only where the machine's are older.
            case $name in libstdc++* | libgcc*) name=compiler/$name ;; *) name=system/$name ;; esac
            cp -L "$path" "$to/build/lib/$name"
        done < <(libraries_of "$file")
    done
    cd "$root"
    cp data/digits.csv.gz "$to/build/share"
    cp -r data "$to"
    cp tests/gpu.* "$to/tests"
    cp -r bench/peers "$to/bench"
    mib=$(du -sm "$to" | cut -f1)
    ((mib <= limit_mib)) || die "pack: $to has $mib MiB, expected at most $limit_mib"
    printf '%s: %d MiB; there: tests/gpu.sh\n' "$to" "$mib"
}

if [[ ${1:-} == pack ]]; then
    (($# == 2 || $# == 3)) || die "pack: got $(($# - 1)) arguments, expected the folder to make and perhaps that of the build"
    pack "${@:2}"
else
    # torch and Python are those of the environment.
    [[ -n ${LIBTORCH:-} ]] || PATH=$root/.venv/bin:$PATH
    command -v python3 >/dev/null || die "found no python3 in PATH, expected 3.8 or newer"
    exec python3 -B "$root/tests/gpu.py" "$@"
fi
