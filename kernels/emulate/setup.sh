#!/usr/bin/env bash
# Makes the emulated machine in build/emulate: a patched Bochs, a Linux kernel, a first process.
# Takes about three minutes on two cores, and nothing if it has been made before.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=$here/../../build/emulate
suite=trixie # has Bochs 3.0

for tool in apt-get dpkg-deb g++ gcc make patch xorriso; do
    command -v "$tool" > /dev/null || { echo "setup.sh: install $tool first" >&2; exit 1; }
done
mkdir -p "$folder"
cd "$folder"
gcc -O2 -Wall -Wextra -static -o init "$here/init.c"
stamp=$(cat "$here/bochs.patch" "$here/setup.sh" | sha256sum)
[ "$(cat stamp 2> /dev/null)" != "$stamp" ] || exit 0

# apt with separate lists: the system's packages stay unchanged.
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" { print $2; exit }')
[ -n "$mirror" ] || { echo "setup.sh: apt knows no Debian mirror: apt-get update" >&2; exit 1; }
mkdir -p apt/lists/partial apt/archives/partial apt/empty
touch apt/status
for kind in deb deb-src; do
    echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done > apt/sources.list
cat > apt/apt.conf << END
Dir::Etc::sourcelist "$PWD/apt/sources.list";
Dir::Etc::sourceparts "$PWD/apt/empty";
Dir::State::lists "$PWD/apt/lists";
Dir::State::status "$PWD/apt/status";
Dir::Cache "$PWD/apt";
APT::Sandbox::User "";
END
export APT_CONFIG=$PWD/apt/apt.conf
apt-get -qq update
rm -rf packages root && mkdir packages root
kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2 }')
(cd packages && apt-get -qq download "$kernel" isolinux syslinux-common bochsbios vgabios)
for package in packages/*.deb; do dpkg-deb --extract "$package" root; done
cp root/boot/vmlinuz-* vmlinuz

rm -rf bochs && mkdir bochs
(cd bochs && apt-get -qq --tar-only source bochs)
tar --extract --strip-components=1 --directory bochs --file bochs/*.orig.tar.xz
patch --quiet --strip=1 --directory bochs < "$here/bochs.patch"
(
    cd bochs
    ./configure --with-nogui --disable-plugins --disable-docbook --enable-cpu-level=6 \
        --enable-x86-64 --enable-fpu --enable-avx --enable-evex --enable-amx --enable-pci \
        --enable-cdrom --enable-all-optimizations CFLAGS=-O2 CXXFLAGS=-O2
    make -j"$(nproc)"
) > bochs.log 2>&1 || { tail bochs.log >&2; exit 1; }

echo "$stamp" > stamp
