#!/bin/sh
# The tests against running Waku nodes: builds go-waku once into the cache, then runs them.
# `--check` only says whether this machine can: exit code 0, or 1 with the reason.
set -eu
cd "$(dirname "$0")/.."

missing() {
    if ! command -v go >/dev/null 2>&1; then
        echo "Go 1.23 or newer was not found"
    elif ! go env GOVERSION | awk -F'[go.]+' '{ exit !($2 > 1 || ($2 == 1 && $3 >= 23)) }'; then
        echo "Go 1.23 or newer is needed, this is $(go env GOVERSION)"
    elif ! command -v "$(go env CC | cut -d' ' -f1)" >/dev/null 2>&1; then
        echo "a C compiler was not found"
    fi
}

reason=$(missing)
if [ "${1:-}" = --check ]; then
    [ -z "$reason" ] || { echo "$reason"; exit 1; }
    exit 0
fi
[ -z "$reason" ] || { echo "test-node: $reason." >&2; exit 1; }

here=tests/interop
version=$(cat $here/go.mod $here/go.sum | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/reliable-channel/waku
program=$cache/waku-$version
if [ ! -x "$program" ]; then
    echo "Building go-waku into $cache; this takes about four minutes, once."
    mkdir -p "$cache"
    (cd $here && go build -mod=readonly -tags gowaku_no_rln -o "$program.new" github.com/waku-org/go-waku/cmd/waku)
    mv "$program.new" "$program"
fi
if command -v npm >/dev/null 2>&1; then
    if ! cmp -s $here/package-lock.json $here/node_modules/.installed 2>/dev/null; then
        (cd $here && npm ci --no-audit --no-fund && cp package-lock.json node_modules/.installed)
    fi
else
    echo "test-node: npm was not found; the test of the published light node is skipped." >&2
fi
RELIABLE_CHANNEL_WAKU=$program exec .venv/bin/python -m pytest -m waku tests/interop
