#!/bin/sh
# Finds a Python that is new enough and hands over to scripts/setup.py. PYTHON=… names one.
set -eu
here=$(dirname "$0")
suitable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, '"$2"')))' 2>/dev/null; }

if [ -n "${PYTHON:-}" ]; then
    if suitable "$PYTHON" 99; then exec "$PYTHON" "$here/setup.py"; fi
    echo "setup: PYTHON=$PYTHON is not Python 3.11 or newer. Name one that is, or unset it." >&2
    exit 1
fi
for candidate in python3 python3.13 python3.12 python3.11; do # the versions that the dependencies have wheels for
    if suitable "$candidate" 14; then exec "$candidate" "$here/setup.py"; fi
done
if suitable python3 99; then exec python3 "$here/setup.py"; fi
echo "setup: No Python 3.11 or newer was found. Install python3.11 with its venv module, or name one: make setup PYTHON=/path/to/python3.11." >&2
exit 1
