# For benchmarks that start several processes: where they work, what ends them, waits for them, and readies a node's drives. To be sourced by
# bash from a script that has set `me` (its name) and has a function `clean_up`; takes BENCH_DIR and BENCH_WEFT.

fail() {
    echo "$me: $1" >&2
    exit 1
}

weft=${BENCH_WEFT:-}

# Takes the directory in which all lies (BENCH_DIR, or one below ./bench-out) for this script alone, and from now on cleans up at the end.
# It must be a new one, an empty one, or one that a benchmark has made: what is removed there by name is then nobody's but a
# benchmark's. Gives `dir` and `sockets`. To be called when all that was asked for has been looked at.
take_place() {
    local lock
    mkdir -p "${BENCH_DIR:-./bench-out/$me}"
    dir=$(realpath "${BENCH_DIR:-./bench-out/$me}")
    [ -e "$dir/.weft-bench" ] || [ -z "$(ls -A "$dir")" ] ||
        fail "$dir holds something that no benchmark has made, and is left alone: name a directory of its own, like BENCH_DIR=$dir/$me"
    exec {lock}>>"$dir/.weft-bench"
    flock --nonblock "$lock" || fail "another benchmark is at work in $dir, or something that it has started still runs"
    # A socket's path may be 107 bytes long at most, and BENCH_DIR may be deep.
    sockets=$(mktemp -d)
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# Builds weft, unless the script was given a binary.
build_weft() {
    [ -z "$weft" ] || return 0
    . scripts/cargo-path.sh
    cargo build --release --quiet -p weft
    weft=${CARGO_TARGET_DIR:-target}/release/weft
}

# stop PID...: asks all of them to end, and makes those that have not after half a minute. Empty words are no process.
stop() {
    local pid
    for pid in "$@"; do
        [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    done
    for pid in "$@"; do
        [ -n "$pid" ] || continue
        for _ in $(seq 300); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
}

# wait_for WHAT PID COMMAND...: until the command succeeds; fails when the process ends before.
wait_for() {
    local what=$1 pid=$2
    shift 2
    for _ in $(seq 1200); do
        "$@" >/dev/null 2>&1 && return 0
        kill -0 "$pid" 2>/dev/null || fail "$what ended at once; its words are in $dir"
        sleep 0.1
    done
    fail "$what did not serve within two minutes; its words are in $dir"
}

# The least that a drive of the cluster has free, as the node in directory $1 tells.
least_free() { "$weft" stats --json --dir "$1" | jq '[.drives[].free_bytes] | min'; }

has_free() { [ "$(least_free "$1")" -ge "$2" ]; }

# write_once NODE-DIRECTORY PROCESS BYTES OPTIONS...: the node's drives, as far as a vDisk of this size goes. What a file holds for the first time
# costs its file system more than ever after, and the files that a node is compared with are written whole before anything is measured.
write_once() {
    local node=$1 pid=$2 first=$3 before
    shift 3
    echo "$me: writing the drives of $(basename "$node") once" >&2
    before=$(least_free "$node")
    wait_for "a vDisk" "$pid" "$weft" vdisk create first --size "$first" "$@" --dir "$node"
    wait_for "its export" "$pid" "$weft" vdisk export first --nbd "unix:$sockets/first" --dir "$node"
    # In the background, so that a signal to the script alone is acted upon at once.
    timeout -k 5 $((600 + (first >> 30) * 200)) fio --name=first --ioengine=nbd --uri="nbd+unix:///first?socket=$sockets/first" --rw=write --bs=1m \
        --iodepth=8 --refill_buffers --output="$dir/first.txt" </dev/null >&2 &
    fio_pid=$!
    wait "$fio_pid" || fail "the drives cannot be written: see $dir/first.txt"
    fio_pid=''
    "$weft" vdisk rm first --force --dir "$node" >&2
    wait_for "the space of what was written" "$pid" has_free "$node" $((before / 20 * 19))
}
