#!/usr/bin/env bash
# Runs go test with its arguments through gotestsum. A test that fails runs once
# more by itself, with all its subtests, which may build on one another; if it passes
# then, the run is green, and what failed is told at the end, for it is a bug all the
# same: of the test or of the product. MODULE is the folder of another module than the
# one at the root. Vet is a part of make lint, and does not run again here.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/tools/go.mod
cd "${MODULE:-.}"
packages=./...
if [ -z "${MODULE:-}" ]; then # the longest begin first: otherwise one of them runs alone at the end
  packages="./internal/e2e/traffic ./xds/cache ./xds/envoy ./internal/e2e/consul ./internal/e2e/faults $packages"
fi
again=$(mktemp)
trap 'rm -f "$again"' EXIT
status=0
"${GO:-go}" tool -modfile="$tools" gotestsum --format standard-quiet --packages "$packages" \
  --rerun-fails=1 --rerun-fails-run-root-test --rerun-fails-max-failures=5 --rerun-fails-report="$again" -- -vet=off "$@" || status=$?
if [ -s "$again" ]; then
  printf '\n%s\n' '!!! These tests failed and were run once more. Each is a bug, also where it passed then:'
  sed 's/^/!!!   /' "$again"
fi
exit $status
