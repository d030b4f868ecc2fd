#!/usr/bin/env bash
# Fetches what programs for aarch64 need to run under emulation: Debian's Python 3.11, its libraries, and the headers that
# build_python.sh compiles another Python with. Nothing is installed on this machine; apt and dpkg, Debian's or Ubuntu's,
# and the package debian-archive-keyring must be there. Usage: tests/package/aarch64_root.sh FOLDER
set -euo pipefail
root=$(realpath -m "${1:?usage: tests/package/aarch64_root.sh FOLDER}")
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f "$keys" ] || { echo "$keys is missing: apt-get install debian-archive-keyring" && exit 1; }
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
touch "$apt/status"
echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm main" >"$apt/sources.list"
# As if on a machine of its own, which has nothing installed: so the packages' dependencies come too.
cat >"$apt/conf" <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
EOF
export APT_CONFIG=$apt/conf
apt-get --quiet --quiet update
apt-get --quiet --quiet --yes --no-install-recommends --download-only install python3.11 zlib1g-dev libffi-dev
mkdir -p "$root"
for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
# Where it is looked for if it is there.
[ -e "$root/lib/ld-linux-aarch64.so.1" ] || { echo "$root has no aarch64 libc: the packages hold something else" && exit 1; }
