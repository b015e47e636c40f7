#!/bin/sh
# Kills every process with the environment entry $1 once standard input ends.
#
# Standard input is a pipe that the supervisor holds open and never writes to: it ends when the supervisor does,
# however that ends. Two passes in a row must find nothing, because a process that is being started just then shows its
# environment a moment after its hold on the pipe is gone. About six seconds at most.

trap '' HUP INT TERM
command -v grep >/dev/null || exit 1
read -r _
clean=0
pass=0
while [ "$clean" -lt 2 ] && [ "$pass" -lt 100 ]; do
  pass=$((pass + 1))
  clean=$((clean + 1))
  found=$(grep -lsF -e "$1" /proc/[0-9]*/environ)
  for file in $found; do
    clean=0
    pid=${file#/proc/}
    kill -KILL "${pid%/environ}"
  done
  sleep 0.05
done
