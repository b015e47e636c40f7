#!/usr/bin/env bash
# Fetches the oldest opencode that the tests run against into
#   ${BERTH_CACHE:-$HOME/.cache/berth}/opencode/<version>/node_modules/opencode-linux-x64/bin/opencode
# in one rename, and prints that path on standard output. Does nothing when it is there already. Only tests use it, so
# it needs no configuration directory of its own.
set -euo pipefail

version=1.15.4
package=opencode-linux-x64
# SHA-512 of the package as the registry serves it.
checksum=d9cdb46a574a2df36483a37a9c006fbcad5fb9a0b060ba3f1cd78bf2291e96590531e19a9421838642ff550f11f0a3d5de8855649b59c06d27905880f0c7870a
parent=${BERTH_CACHE:-$HOME/.cache/berth}/opencode
target=$parent/$version
binary=$target/node_modules/$package/bin/opencode

say() { printf 'opencode: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

if [[ -x $binary ]]; then
  printf '%s\n' "$binary"
  exit 0
fi
[[ $(uname -s)-$(uname -m) == Linux-x86_64 ]] || fail "the package $package is for Linux on x86_64, and this is \
$(uname -s) on $(uname -m)"
command -v npm >/dev/null || fail "npm is needed to fetch opencode $version: install Node.js 20 or later"

mkdir -p "$parent"
new=$(mktemp -d "$parent/.new-$version.XXXXXX")
trap 'rm -rf "$new"' EXIT
say "fetching $version (52 MB, once)"
npm pack "$package@$version" --pack-destination "$new" --silent >/dev/null || fail "npm could not fetch $package@$version"
archive=$new/$package-$version.tgz
printf '%s  %s\n' "$checksum" "$archive" | sha512sum --check --status ||
  fail "$package@$version has another checksum than it should"
mkdir -p "$new/node_modules/$package"
tar -xzf "$archive" -C "$new/node_modules/$package" --strip-components 1 package/bin/opencode package/package.json
rm "$archive"
chmod 0755 "$new"
# When another fetch won the race meanwhile, its result is as good.
mv -T "$new" "$target" 2>/dev/null || [[ -x $binary ]] || fail "could not move the new files to $target"
say "fetched $version"
printf '%s\n' "$binary"
