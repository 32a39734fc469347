#!/bin/sh
# Installs what the tests on a real runtime and a real Prometheus need, where that is possible: as root on Debian. Says what it does.
set -eu
packages="containerd runc busybox-static prometheus"
missing=
for package in $packages; do
    case $package in
    busybox-static) command -v busybox >/dev/null 2>&1 || missing="$missing $package" ;;
    *) command -v "$package" >/dev/null 2>&1 || missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "note: the tests on a real runtime or Prometheus will be skipped: not here:$missing (needs root on Debian to install)"
    exit 0
fi
echo "installing for the tests on a real runtime and Prometheus:$missing"
# RUNLEVEL: without it, the packages would start services of their own; the tests bring theirs.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
# Another apt may hold the lock, for example at the start of a new machine.
wait="-o DPkg::Lock::Timeout=300"
if ! { apt-get $wait update -qq && apt-get $wait install -y -qq --no-install-recommends $missing; } >/tmp/crrd-apt.log 2>&1; then
    echo "note: the tests on a real runtime or Prometheus will be skipped: installing failed, see /tmp/crrd-apt.log"
fi
