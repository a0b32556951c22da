#!/usr/bin/env bash
# The first run on a machine with GPUs, of a build that was made elsewhere (docs/guides/build.md):
#
#   tests/gpu.sh pack FOLDER [BUILD]    collects the necessary files in FOLDER, to copy it there
#   tests/gpu.sh [OPTIONS]              runs all checks there; see --help
set -euo pipefail
unset CDPATH

root=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    printf 'gpu.sh: %s\n' "$*" >&2
    exit 2
}

# Prints the shared libraries that FILE itself names, without LibTorch's and glibc's: "name path" per line.
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
    local to=$1 build=${2:-$root/build} file name path
    [[ ! -e $to || -d $to && -z $(ls -A "$to") ]] || die "pack: $to is there, expected a new or an empty folder"
    mkdir -p "$to"/build/{bin,lib/system,lib/compiler,share/ddp_cpp,tests/outside/build}
    to=$(cd -P -- "$to" && pwd)
    cd "$build"
    local files=(bin/0[1-5]_* lib/libddp_cuda.so)
    [[ ! -e tests/outside/build/your_model ]] || files+=(tests/outside/build/your_model)
    for file in "${files[@]}"; do
        [[ -e $file ]] || die "pack: found no $file in $build, expected it built: ninja benchmark ddp_cuda"
        strip -o "$to/build/$file" "$file"
        while read -r name path; do
            # The compiler's libraries are used only if the machine has older libraries.
            case $name in libstdc++* | libgcc*) name=compiler/$name ;; *) name=system/$name ;; esac
            cp -L "$path" "$to/build/lib/$name"
        done < <(libraries_of "$file")
    done
    cp "$root/data/digits.safetensors" "$to/build/share/ddp_cpp"
    (cd "$root" && cp --parents tests/gpu.sh tests/device/gpu.py tools/{compile_step,command_line.py} bench/peers/ddp_peers/training.py "$to")
    printf '%s: %d MiB; there: tests/gpu.sh\n' "$to" "$(du -sm "$to" | cut -f1)"
}

if [[ ${1:-} == pack ]]; then
    (($# == 2 || $# == 3)) || die "pack: got $(($# - 1)) arguments, expected the folder to make and perhaps that of the build"
    pack "${@:2}"
else
    # torch and Python from the environment.
    if [[ -z ${LIBTORCH:-} && -d $root/.venv ]]; then
        unset PYTHONPATH PYTHONHOME
        PATH=$root/.venv/bin:$PATH
    fi
    exec python3 -B "$root/tests/device/gpu.py" "$@"
fi
