#!/bin/sh
# The tests that need Node or a browser: fetches Node packages by their lock files, then runs them.
set -eu
cd "$(dirname "$0")/.."
if ! command -v npm >/dev/null 2>&1; then
    echo "test-e2e: npm was not found. Install Node 18 or newer (Debian: nodejs npm)." >&2
    exit 1
fi
installing=
for lock in $(find tests -name package-lock.json -not -path '*/node_modules/*'); do
    folder=$(dirname "$lock")
    if ! cmp -s "$lock" "$folder/node_modules/.installed" 2>/dev/null; then
        (cd "$folder" && npm ci --no-audit --no-fund && cp package-lock.json node_modules/.installed) &
        installing="$installing $!"
    fi
done
# The generator of Python clients wants an older typer than we have: an environment of its own.
lock=tests/clients/requirements.lock venv=build/clients-venv
if ! cmp -s $lock $venv/.installed 2>/dev/null; then
    rm -rf $venv
    .venv/bin/python -m venv $venv
    $venv/bin/pip install --quiet --require-hashes -r $lock
    cp $lock $venv/.installed
fi
for process in $installing; do
    wait "$process"
done
if ! command -v chromium >/dev/null 2>&1; then
    echo "test-e2e: chromium was not found; the tests of the dashboard are skipped (Debian: chromium)." >&2
fi
status=0
# shellcheck disable=SC2046  # no path of a test has a space
.venv/bin/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder -m "node and not waku" $(grep -rlE --include='test_*.py' 'mark\.node\b' tests) || status=$?
# 5: no test selected, which is right as long as no test needs Node.
[ "$status" -eq 5 ] || exit "$status"
