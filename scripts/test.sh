#!/usr/bin/env bash
# All tests, or the parts that are named: scripts/test.sh [format] [lint] [build] [unit] [sim] [canaries] [process] [postgres]
# Goes on after a failure, tells at the end what passed, and exits with 1 if anything failed.
# SIM_SEEDS (30): simulator seeds of each plan. WEFT_KILLS (6): kills of the kill tests. WEFT_CLUSTER_ROUNDS (1): how often
# the tests of clusters have their troubles. WEFT_SOAK_SEED (1): the history of the one that lives through whatever happens.
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

if [ "$(id -u)" != 0 ] && [[ " ${parts[*]} " == *" process "* || " ${parts[*]} " == *" postgres "* ]]; then
    echo "test: vDisks are made block devices, and nodes live in networks of their own: that needs root (sudo make test)." >&2
    echo "      Without it: scripts/test.sh format lint build unit sim canaries" >&2
    exit 1
fi
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

# run NAME SECONDS COMMAND...: one step, with a limit so that nothing can hang the whole; far above what slow machines take.
run() {
    collect
    local name="$1" limit="$2" begun="$SECONDS" status=0
    shift 2
    echo "== $name: $*"
    # Not in the foreground: a shell hears of Ctrl-C only when that has ended, and timeout keeps it from its child.
    timeout --kill-after=20 "$limit" "$@" </dev/null &
    step=$!
    wait "$step" || status=$?
    step=""
    ended "$name" "$status" "$((SECONDS - begun))" "$limit"
}

# Steps that mostly wait, for drives, timers and programs that start, go on side by side. What one says is printed when it has
# ended.
beside_max="$(($(nproc) + 1))"
[ "$beside_max" -le 4 ] || beside_max=4
declare -A beside=()
said="$(mktemp -d)"
trap 'rm -rf "$said"' EXIT
step=""
trap 'kill $step "${!beside[@]}" 2>/dev/null; wait; exit 130' INT TERM

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

# What is built together is built once: with other packages or features chosen, what they share is built anew.
node=(cargo test --profile quick --locked -p weft -p weft-node -p weft-frontends -p weft-lab)
# With the bugs that can be planted; the node is built without.
engine=(cargo test --profile quick --locked -p weft-engine -p weft-sim --features "weft-engine/sabotage weft-sim/sabotage")
declare -A built=()

build_once() {
    local -n command="$1"
    [ -n "${built[$1]:-}" ] || run "build-$1-tests" 1800 "${command[@]}" --no-run
    built[$1]=yes
}

# process_tests: one test at a time of each file, and the files that take longest first.
process_tests() {
    local tests names file threads
    local -A seen=()
    mapfile -t tests < <("${node[@]}" --test process -- --list 2>/dev/null | sed -n 's/: test$//p')
    for file in containers cluster attach cluster_net lab_scenarios $(basename -s .rs crates/weft/tests/process/*.rs); do
        if [ "$file" = main ] || [ -n "${seen[$file]:-}" ]; then
            continue
        fi
        seen[$file]=yes
        mapfile -t names < <(printf '%s\n' "${tests[@]}" | grep "^$file::")
        if [ "${#names[@]}" = 0 ]; then
            failed+=("process-$file, of which there is no test")
            continue
        fi
        threads=1
        # These mostly wait for space to come back.
        [ "$file" != attach ] || threads=4
        beside "process-$file" 1800 "${node[@]}" --test process -- --exact "--test-threads=$threads" "${names[@]}"
    done
}

for part in "${parts[@]}"; do
    case "$part" in
        format) run format 120 cargo fmt --all --check ;;
        lint) run lint 1800 cargo clippy --profile quick --workspace --all-targets --locked -- -D warnings ;;
        build)
            build_once engine
            build_once node
            ;;
        unit)
            build_once engine
            build_once node
            beside unit 1200 "${node[@]}" --lib --bins
            beside unit-engine 1800 "${engine[@]}" --lib --bins --test stories
            ;;
        sim)
            build_once engine
            beside sim 1800 "${engine[@]}" --test seeds -- --nocapture
            ;;
        canaries)
            build_once engine
            beside canaries 1800 "${engine[@]}" --test canaries
            ;;
        process)
            build_once node
            process_tests
            beside lab 1200 "${node[@]}" --test four_corners --test interrupt --test scenarios
            beside etcd 1200 "${node[@]}" --test etcd
            ;;
        postgres)
            build_once node
            beside postgres 1200 env WEFT_BINARY="${CARGO_TARGET_DIR:-target}/quick/weft" scripts/postgres-test.sh
            ;;
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
