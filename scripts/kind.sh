#!/usr/bin/env bash
# Runs Berth's end-to-end tests on kind, for who has Docker:
#
#   scripts/kind.sh up      makes the cluster, unless it is there, builds the images with Docker and loads them
#   scripts/kind.sh test    runs the tests on it
#   scripts/kind.sh logs DIRECTORY
#                           writes the logs of its node and pods there
#   scripts/kind.sh down    deletes it
#
# BERTH_KUBERNETES picks the version of Kubernetes, one of those in tests/cluster/kind/images.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'kind: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

name=berth
version=${BERTH_KUBERNETES:-1.36.4}
cache=${BERTH_CACHE:-$HOME/.cache/berth}
kubeconfig=$cache/kind/kubeconfig
directory=$PWD/tests/cluster/kind

# kind itself is a Go module of the version that go.mod names.
kind() { go -C "$directory" tool kind "$@"; }

is_there() { kind get clusters 2>/dev/null | grep --quiet --line-regexp "$name"; }

up() {
  docker info >/dev/null 2>&1 || fail "Docker does not answer"
  local image
  image=$(sed -n "s/^${version//./\\.} //p" "$directory/images.txt")
  [[ -n $image ]] || fail "no image of Kubernetes $version in tests/cluster/kind/images.txt"
  if is_there; then
    say "the cluster is there; it has the version that it was made with"
  else
    mkdir -p "${kubeconfig%/*}"
    kind create cluster --name "$name" --image "$image" --config "$directory/kind-config.yaml" \
      --kubeconfig "$kubeconfig" --wait 3m
  fi
  local built archives
  built=$(cargo xtask images --quick --docker)
  mapfile -t archives < <(cut -d ' ' -f 2 <<<"$built")
  kind load image-archive --name "$name" "${archives[@]}"
  say "export KUBECONFIG=$kubeconfig"
}

run_tests() {
  [[ -f $kubeconfig ]] || fail "there is no cluster: scripts/kind.sh up"
  command -v kubectl >/dev/null || fail "the tests want kubectl"
  BERTH_E2E_KUBECONFIG=$kubeconfig cargo test --package berth-e2e --test cluster
}

case ${1:-} in
  up) up ;;
  test) run_tests ;;
  logs) kind export logs --name "$name" "$(realpath --canonicalize-missing "${2:?a directory}")" ;;
  down) kind delete cluster --name "$name" --kubeconfig "$kubeconfig" ;;
  *) fail "usage: scripts/kind.sh up|test|logs DIRECTORY|down" ;;
esac
