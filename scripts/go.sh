#!/usr/bin/env bash
# Prints the directory with a `go` that is new enough for tests/cluster/go.mod: the one of the search path, else the one
# that is fetched here, once, as Go itself fetches toolchains: by the module proxy, checked by the checksum database.
# What fetches it may be a Go of any age; where there is none, Debian's is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wanted=$(sed -n 's/^go //p' tests/cluster/go.mod)
fetched=1.26.8

say() { printf 'go: %s\n' "$*" >&2; }

is_enough() {
  local version
  version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [[ $(printf '%s\n%s\n' "$wanted" "${version#go}" | sort --version-sort | head --lines 1) == "$wanted" ]]
}

if command -v go >/dev/null && is_enough go; then
  dirname "$(command -v go)"
  exit
fi
if ! command -v go >/dev/null; then
  say "installing Debian's, to fetch $fetched with it"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  apt-get install -qq -y --no-install-recommends golang-go ca-certificates >&2
fi
module=golang.org/toolchain@v0.0.1-go$fetched.$(go env GOOS)-$(go env GOARCH)
# No module's go.mod has a say in this.
cd /
GO111MODULE=on GOFLAGS=-mod=mod GOTOOLCHAIN=local go mod download "$module"
directory=$(GOTOOLCHAIN=local go env GOMODCACHE)/$module
# A module's files are never programs.
find "$directory/bin" "$directory/pkg/tool" -type f -exec chmod a+x {} +
is_enough "$directory/bin/go" || {
  say "$directory does not work"
  exit 1
}
printf '%s\n' "$directory/bin"
