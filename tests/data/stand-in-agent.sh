#!/bin/sh
# Keeps the agent's contract without balancing anything: for tests of the test kit.
verb=$1
while [ $# -gt 1 ]; do
    [ "$1" = --pin-path ] && pins=$2
    [ "$1" = --manifests ] && manifests=$2
    shift
done
case $verb in
run)
    mkdir -p "$pins"
    [ -e "$pins/m" ] || bpftool map create "$pins/m" type hash key 4 value 4 entries 1 name bpvs_m || exit 3
    trap 'exit ${END:-0}' TERM
    echo "attached already" >&2
    cat "$manifests"/* >&2
    [ -z "$BROKEN" ] || { echo "broken on purpose" >&2; exit 4; }
    printf '\033[32m INFO\033[0m bpvs: ready\n' >&2
    while :; do sleep 0.05; done ;;
list) echo "net $(readlink /proc/self/ns/net)" ;;
cleanup) rm -f "$pins/m"; rmdir "$pins" ;;
*) echo "no such command" >&2; exit 2 ;;
esac
