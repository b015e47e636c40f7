#!/usr/bin/env bash
# What `make run` shows: local mode with the scripted model, and one prompt whose turn has a thought, text, a
# shell tool, a file and a permission. On a terminal it asks for the permission and stays up until Ctrl-C;
# without one it allows everything and exits. Either way it leaves no process behind.
set -euo pipefail

berth=${1:?usage: demo.sh PATH-OF-BERTH}
demo=${BERTH_CACHE:-$HOME/.cache/berth}/demo
work=$demo/work
export BERTH_DATA=$demo/data
# An address or token file in the environment would lead to another server.
unset BERTH_SERVER BERTH_TOKEN_FILE
up=

say() { printf '\n%s\n' "$*"; }

is_running() { kill -0 "$up" 2>/dev/null; }

# Up to $1 tenths of a second.
wait_for_end() {
  for ((tenths = 0; tenths < $1; tenths++)); do
    is_running || return 0
    sleep 0.1
  done
  return 1
}

# The first signal asks for an orderly end, a second one for an immediate one.
stop() {
  trap - EXIT INT TERM
  [[ -n $up ]] || return 0
  kill -TERM "$up" 2>/dev/null || return 0
  wait_for_end 200 || { kill -TERM "$up" 2>/dev/null && wait_for_end 50; } || kill -KILL "$up" 2>/dev/null || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The process that the data directory's server.json names, if there is one.
server_pid() { sed -n 's/.*"pid": *\([0-9][0-9]*\).*/\1/p' "$BERTH_DATA/server.json" 2>/dev/null || true; }

# The file names our process when the server answers and every sandbox is ready.
wait_until_ready() {
  for ((tenths = 0; tenths < 900; tenths++)); do
    if [[ $(server_pid) == "$up" ]]; then return; fi
    is_running || return 1
    sleep 0.1
  done
  printf 'berth up is not ready after 90 seconds\n' >&2
  return 1
}

# Empty, since the agent's tool for new files does not overwrite one that it has not read. An earlier demo that is
# still up keeps its files, and berth says whose the data directory is.
other=$(server_pid)
if [[ -z $other ]] || ! kill -0 "$other" 2>/dev/null; then rm -rf "$work"; fi
mkdir -p "$work" "$BERTH_DATA"

say "\$ berth up --scripted --port 0 $work"
# A process group of its own, so that Ctrl-C reaches this script alone, which then ends it once and in order.
set -m
"$berth" up --scripted --port 0 "$work" </dev/null &
up=$!
set +m
wait_until_ready

answer=(--allow)
if [[ -t 0 && -t 1 ]]; then answer=(); fi
say "\$ berth run${answer[*]:+ ${answer[*]}} \"scenario: demo\""
"$berth" run "${answer[@]}" "scenario: demo"

say "The agent's files are in $work:"
find "$work" -type f -not -path '*/.git/*' -exec ls -l {} +

if [[ -t 0 && -t 1 ]]; then
  say "Type next, in another terminal:
  export BERTH_DATA=$BERTH_DATA
  $berth run \"hello\"
  $berth chat
Berth stays up until Ctrl-C."
  trap 'exit 0' INT
  wait "$up"
else
  say "Type next:
  $berth up --scripted
and in another terminal:
  $berth run \"hello\"
  $berth chat"
fi
