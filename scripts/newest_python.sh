#!/usr/bin/env bash
# Runs tests of the asyncio parts with the newest Python that this machine has: loops that are right in one
# version may never end in the next. Everything else is tested with .venv's Python, the oldest supported one.
set -euo pipefail
cd "$(dirname "$0")/.."

newest() {
    local version found
    for version in 3.14 3.13 3.12; do
        for found in "$(command -v "python$version" || true)" "$HOME"/.pyenv/versions/"$version".*/bin/python; do
            # pyenv puts commands into the PATH that only say which version is there.
            [ -x "$found" ] && "$found" --version >/dev/null 2>&1 && echo "$found" && return
        done
    done
    return 0
}

python=$(newest)
if [ -z "$python" ]; then
    echo "note: not tested. No Python 3.12 or newer is here, neither in PATH nor of pyenv."
    exit 0
fi
venv=.newest-python
want=$(cat pyproject.toml constraints.txt | sha256sum; pwd; "$python" --version)
if [ "$(cat $venv/.installed 2>/dev/null || true)" != "$want" ]; then
    rm -rf $venv
    "$python" -m venv $venv
    bash scripts/packages.sh $venv/bin/python -c constraints.txt -e '.[cli]' numpy uvloop prometheus-client zstandard \
        pytest pytest-timeout pytest-xdist hypothesis
    echo "$want" >$venv/.installed
fi
$venv/bin/python --version
PYTHONPATH=$PWD/src BRAID_ENGINE=redis-8.10 $venv/bin/python -m pytest -q -n 1 "$@"
