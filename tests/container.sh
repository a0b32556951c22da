#!/usr/bin/env bash
# Builds container/Dockerfile with Debian's buildah, on a base image made by debootstrap from this machine's mirror, and runs a stage
# and the bench inside. Takes half an hour and 15 GB, so CTest does not run it.
#
# usage: tests/container.sh [FOLDER]     as root, with buildah and debootstrap; FOLDER is for the images (default /var/tmp/ddp-container)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-/var/tmp/ddp-container}
image=ddp-container-test
for program in buildah debootstrap; do
  command -v "$program" >/dev/null || { echo "container.sh: error: found no $program, expected Debian's package" >&2; exit 2; }
done
[[ $EUID == 0 ]] || { echo "container.sh: error: user id $EUID, expected 0" >&2; exit 2; }
mkdir -p "$folder"
# Without overlay mounts and namespaces, which a container that runs this script may not have.
buildah=(buildah --root "$folder/images" --runroot "$folder/run" --storage-driver vfs)

if ! "${buildah[@]}" inspect --type image debian:bookworm-slim >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=ca-certificates bookworm "$folder/debian" http://deb.debian.org/debian
  # How this machine reaches its mirrors.
  for file in /etc/apt/apt.conf.d/99* /etc/pip.conf; do
    [[ ! -f $file ]] || cp "$file" "$folder/debian$file"
  done
  cp /etc/ssl/certs/ca-certificates.crt "$folder/debian/etc/ssl/certs/"
  base=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add --quiet "$base" "$folder/debian" /
  "${buildah[@]}" commit --rm --quiet "$base" docker.io/library/debian:bookworm-slim
fi
"${buildah[@]}" build --pull-never --isolation chroot --network host --file container/Dockerfile --tag "$image" .
# Container tools write the name into /etc/hosts. buildah run does not, and torchrun waits for ever for a name that nobody knows.
container=$("${buildah[@]}" from --pull-never "$image")
trap '"${buildah[@]}" rm "$container" >/dev/null' EXIT
"${buildah[@]}" run --isolation chroot --hostname localhost "$container" 01_single_gpu 50 10
"${buildah[@]}" run --isolation chroot --hostname localhost "$container" bench --quick
echo "container.sh: passed"
