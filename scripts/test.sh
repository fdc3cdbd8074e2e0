#!/usr/bin/env bash
# All tests, or the parts that are named: scripts/test.sh [format] [lint] [build] [unit] [sim] [canaries] [process] [postgres]
# Goes on after a failure, tells at the end what passed, and exits with 1 if anything failed.
# SIM_SEEDS (30): simulator seeds of each plan. WEFT_KILLS (6): kills of the kill tests. WEFT_CLUSTER_ROUNDS (1): how often
# the tests of clusters have their troubles.
set -uo pipefail
cd "$(dirname "$0")/.."

all_parts=(format lint build unit sim canaries process postgres)
case "${1:-}" in
    -h | --help)
        sed -n '2,5s/^# //p' "$0"
        exit 0
        ;;
esac
parts=("$@")
if [ "${#parts[@]}" = 0 ]; then
    parts=("${all_parts[@]}")
fi
for part in "${parts[@]}"; do
    if [[ " ${all_parts[*]} " != *" $part "* ]]; then
        echo "test: no part '$part'; there are: ${all_parts[*]}" >&2
        exit 2
    fi
done

if [ -n "${CI:-}" ]; then
    export CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never
fi
export SIM_SEEDS="${SIM_SEEDS:-30}"
# mkfs and fsck are in sbin, which is not on everybody's PATH.
export PATH="$PATH:/usr/sbin:/sbin"

if ! scripts/ensure-tools.sh test </dev/null; then
    echo "test: the tools that the tests need are not all here: see above" >&2
    exit 1
fi
. scripts/cargo-path.sh

passed=()
failed=()
begun_all="$SECONDS"

# run NAME SECONDS COMMAND...: one step, with a limit so that nothing can hang the whole.
run() {
    local name="$1" limit="$2" begun="$SECONDS" status=0
    shift 2
    echo "== $name: $*"
    timeout --kill-after=20 "$limit" "$@" </dev/null || status=$?
    if [ "$status" = 0 ]; then
        passed+=("$name")
        echo "== $name: passed in $((SECONDS - begun)) s"
    else
        failed+=("$name")
        if [ "$status" = 124 ] || [ "$status" = 137 ]; then
            echo "== $name: FAILED: not done within $limit s"
        else
            echo "== $name: FAILED with $status after $((SECONDS - begun)) s"
        fi
    fi
}

for part in "${parts[@]}"; do
    case "$part" in
        format) run format 120 cargo fmt --all --check ;;
        lint) run lint 900 cargo clippy --release --workspace --all-targets --locked -- -D warnings ;;
        build) run build 900 cargo build --release --workspace --locked ;;
        unit)
            run unit 900 cargo test --release --workspace --exclude weft --exclude weft-sim --locked
            run unit-weft 600 cargo test --release --locked -p weft --bins
            run unit-sim 600 cargo test --release --locked -p weft-sim --lib --bins
            ;;
        sim) run sim 600 cargo test --release --locked -p weft-sim --test seeds -- --nocapture ;;
        canaries)
            run canaries 600 cargo test --release --locked -p weft-sim --features sabotage --test canaries
            # Those that only the engine's own stories see.
            run canaries-engine 600 cargo test --release --locked -p weft-engine --features sabotage --lib --test bad_copies -- \
                planted forgetting
            ;;
        process)
            # One after the other, and most of them one test at a time: each runs whole nodes with their own drives.
            for file in crates/weft/tests/*.rs; do
                name="$(basename "$file" .rs)"
                threads=1
                # These mostly wait for space to come back.
                [ "$name" != attach ] || threads=4
                run "process-$name" 600 cargo test --release --locked -p weft --test "$name" -- "--test-threads=$threads"
            done
            ;;
        postgres) run postgres 300 scripts/postgres-test.sh ;;
    esac
done

echo
for name in "${failed[@]}"; do
    echo "FAILED: $name"
done
echo "All of it took $((SECONDS - begun_all)) s."
echo "test: ${#passed[@]} passed, ${#failed[@]} failed"
[ "${#failed[@]}" = 0 ]
