#!/usr/bin/env bash
# Installs the pinned opencode, and a configuration directory that it need not complete by itself, into
#   ${BERTH_CACHE:-$HOME/.cache/berth}/opencode/<version>/
# in one rename, and prints the binary's path on standard output. Does nothing when that is there already, or when
# BERTH_OPENCODE names a binary to use instead.
#
# Why the configuration directory: opencode runs `npm install @opencode-ai/plugin` in the background in each of
# its configuration directories, with no switch to turn it off. Opencode 1.18.33 leaves a directory alone when it
# has node_modules and a package-lock.json whose root names that package, and writes nothing when it has a
# .gitignore too. Point XDG_CONFIG_HOME at <cache>/opencode/<version>/config to use it.
set -euo pipefail

say() { printf 'opencode: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
locked=opencode-linux-x64
version=$(sed -n "s/.*\"$locked\": \"\\([0-9][^\"]*\\)\".*/\\1/p" "$here/package.json")
[[ -n $version ]] || fail "no version of $locked in $here/package.json"
package=$locked
# For images that are released; the tests run on the other.
if [[ $(uname -m) == aarch64 ]]; then package=opencode-linux-arm64; fi
parent=${BERTH_CACHE:-$HOME/.cache/berth}/opencode
target=$parent/$version
binary=$target/node_modules/$package/bin/opencode

if [[ -n ${BERTH_OPENCODE:-} ]]; then
  [[ -x $BERTH_OPENCODE ]] || fail "BERTH_OPENCODE is $BERTH_OPENCODE, which is no program"
  say "using BERTH_OPENCODE; version $version is the one that is tested"
  printf '%s\n' "$BERTH_OPENCODE"
  exit 0
fi
[[ $(uname -s)-$(uname -m) =~ ^Linux-(x86_64|aarch64)$ ]] || fail "the packages are for Linux, and this is \
$(uname -s) on $(uname -m): install opencode $version yourself (npm install -g opencode-ai@$version) and set \
BERTH_OPENCODE to its path"

# The lock files say what belongs in the target, so their checksum tells a complete one from a stale one.
wanted=$(cat "$here"/{,config/opencode/}package{,-lock}.json | sha256sum | cut -d ' ' -f 1)
is_complete() { [[ -x $binary && $(cat "$target/installed.sha256" 2>/dev/null) == "$wanted" ]]; }

if is_complete; then
  printf '%s\n' "$binary"
  exit 0
fi
command -v npm >/dev/null || fail "npm is needed to fetch opencode $version: install Node.js 20 or later"

mkdir -p "$parent"
new=$(mktemp -d "$parent/.new-$version.XXXXXX")
trap 'rm -rf "$new"' EXIT

install_locked() { # FROM INTO
  mkdir -p "$2"
  cp "$1/package.json" "$1/package-lock.json" "$2/"
  npm ci --prefix "$2" --ignore-scripts --no-audit --no-fund --loglevel=error >&2 ||
    fail "npm could not install $1"
}
say "fetching $version (60 MB, once)"
if [[ $package == "$locked" ]]; then
  install_locked "$here" "$new"
else
  # By its version alone: a lock file with packages for several processors would be refused on each of them.
  npm install --prefix "$new" --no-save --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error \
    "$package@$version" >&2 || fail "npm could not install $package@$version"
fi
install_locked "$here/config/opencode" "$new/config/opencode"
printf '%s\n' node_modules package.json package-lock.json bun.lock .gitignore >"$new/config/opencode/.gitignore"

got=$(HOME=$new/probe XDG_CONFIG_HOME=$new/probe XDG_DATA_HOME=$new/probe XDG_STATE_HOME=$new/probe \
  XDG_CACHE_HOME=$new/probe "$new/node_modules/$package/bin/opencode" --version) ||
  fail "$version does not run here (it needs glibc and a processor with AVX2)"
[[ $got == "$version" ]] || fail "the package says $version but the binary says $got"
rm -rf "$new/probe"
printf '%s\n' "$wanted" >"$new/installed.sha256"
chmod 0755 "$new"

# A stale target is moved away first; when another install won the race meanwhile, its result is as good.
if [[ -e $target ]] && ! is_complete; then mv -T "$target" "$new/stale"; fi
mv -T "$new" "$target" 2>/dev/null || is_complete || fail "could not move the new files to $target"
rm -rf "$target/stale"
say "installed $version"
printf '%s\n' "$binary"
