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

# ended NAME STATUS SECONDS LIMIT: tells and counts what came of a step.
ended() {
    if [ "$2" = 0 ]; then
        passed+=("$1")
        echo "== $1: passed in $3 s"
        return
    fi
    failed+=("$1")
    if [ "$2" = 124 ] || [ "$2" = 137 ]; then
        echo "== $1: FAILED: not done within $4 s"
    else
        echo "== $1: FAILED with $2 after $3 s"
    fi
}

# run NAME SECONDS COMMAND...: one step, with a limit so that nothing can hang the whole.
run() {
    collect
    local name="$1" limit="$2" begun="$SECONDS" status=0
    shift 2
    echo "== $name: $*"
    timeout --kill-after=20 "$limit" "$@" </dev/null || status=$?
    ended "$name" "$status" "$((SECONDS - begun))" "$limit"
}

# Steps that mostly wait, for drives, timers and programs that start, go on side by side. What one says is printed when it has
# ended.
beside_max="$(nproc)"
[ "$beside_max" -le 4 ] || beside_max=4
declare -A beside=()
said="$(mktemp -d)"
trap 'rm -rf "$said"' EXIT
trap 'kill "${!beside[@]}" 2>/dev/null; wait; exit 130' INT TERM

# beside NAME SECONDS COMMAND...: the same as run, beside what else goes on.
beside() {
    [ "${#beside[@]}" -lt "$beside_max" ] || collect_one
    local name="$1" limit="$2"
    shift 2
    echo "-- $name has begun"
    echo "== $name: $*" >"$said/$name"
    timeout --kill-after=20 "$limit" "$@" </dev/null >>"$said/$name" 2>&1 &
    beside[$!]="$name $SECONDS $limit"
}

collect_one() {
    local pid status=0 name begun limit
    wait -n -p pid "${!beside[@]}" || status=$?
    read -r name begun limit <<<"${beside[$pid]}"
    unset "beside[$pid]"
    cat "$said/$name"
    ended "$name" "$status" "$((SECONDS - begun))" "$limit"
}

collect() {
    while [ "${#beside[@]}" != 0 ]; do
        collect_one
    done
}

for part in "${parts[@]}"; do
    case "$part" in
        format) run format 120 cargo fmt --all --check ;;
        lint) run lint 900 cargo clippy --release --workspace --all-targets --locked -- -D warnings ;;
        build) run build 900 cargo build --release --workspace --locked ;;
        unit)
            run unit 900 cargo test --release --locked -p weft-node -p weft-frontends -p weft-lab
            run unit-weft 600 cargo test --release --locked -p weft --bins
            # With the bugs that can be planted, here and below: so they are built once.
            run unit-engine 900 cargo test --release --locked -p weft-engine --features sabotage
            run unit-sim 600 cargo test --release --locked -p weft-sim --features sabotage --lib --bins
            ;;
        sim) run sim 600 cargo test --release --locked -p weft-sim --features sabotage --test seeds -- --nocapture ;;
        canaries) run canaries 900 cargo test --release --locked -p weft-sim --features sabotage --test canaries ;;
        process)
            run process-build 900 cargo test --release --locked -p weft --no-run
            # Each test runs whole nodes with their own drives: of each file one at a time, and the longest files first.
            longest=(containers cluster attach cluster_net lab_scenarios)
            mapfile -t names < <(cd crates/weft/tests && printf '%s\n' "${longest[@]}" *.rs | sed 's/\.rs$//' | awk '!seen[$0]++')
            for name in "${names[@]}"; do
                threads=1
                # These mostly wait for space to come back.
                [ "$name" != attach ] || threads=4
                beside "process-$name" 600 cargo test --release --locked -p weft --test "$name" -- "--test-threads=$threads"
            done
            ;;
        postgres) beside postgres 300 scripts/postgres-test.sh ;;
    esac
done
collect

echo
for name in "${failed[@]}"; do
    echo "FAILED: $name"
done
echo "All of it took $((SECONDS - begun_all)) s."
echo "test: ${#passed[@]} passed, ${#failed[@]} failed"
[ "${#failed[@]}" = 0 ] && [ "${#passed[@]}" != 0 ]
