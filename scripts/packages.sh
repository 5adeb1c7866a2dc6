#!/usr/bin/env bash
# Installs packages into an environment: packages.sh PYTHON ARGUMENTS OF pip install ...
#
# By uv if .venv has it: it fetches and unpacks in parallel and compiles nothing that nobody imports. If it fails,
# by pip. Both use the indexes, folders and certificates that pip is configured with on this machine.
set -euo pipefail
project=$(cd "$(dirname "$0")/.." && pwd)
python=$1
shift

# Isolated builds (pyspark, this project) take pinned tools too, and do not compress a wheel that is unpacked at once.
export PIP_CONSTRAINT=$project/constraints.txt PIP_BUILD_CONSTRAINT=$project/constraints.txt
export UV_BUILD_CONSTRAINT=$project/constraints.txt
DIST_EXTRA_CONFIG=$(mktemp)
export DIST_EXTRA_CONFIG
trap 'rm -f "$DIST_EXTRA_CONFIG"' EXIT
printf '[bdist_wheel]\ncompression = stored\n' >"$DIST_EXTRA_CONFIG"

pip() { "$project/.venv/bin/python" -m pip "$@"; }

# One of pip's; its environment comes before its files.
setting() { sed -n -E "s/^(:env:|global|install)\.$1='(.*)'$/\2/p" <<<"$configured" | head -1 | sed 's/\\n/ /g' | xargs; }

by_uv() {
    local configured index extra folders cert
    configured=$(pip config list)
    index=$(setting index-url) extra=$(setting extra-index-url) folders=$(setting find-links) cert=$(setting cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
    [ -z "$extra" ] || export UV_INDEX=$extra
    [ -z "$folders" ] || export UV_FIND_LINKS=${folders// /,}
    [ -z "$cert" ] || export SSL_CERT_FILE=$cert
    # As pip does: the best version of all indexes.
    "$project/.venv/bin/uv" pip install --quiet --index-strategy unsafe-best-match --python "$python" "$@"
}

if [ -x "$project/.venv/bin/uv" ]; then
    by_uv "$@" && exit
    echo "setup: note: uv failed. pip tries the same, which takes minutes." >&2
fi
pip --python "$python" install --quiet --disable-pip-version-check --root-user-action=ignore "$@"
