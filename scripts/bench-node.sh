# For benchmarks of one node: builds, starts it, speaks to it, and leaves nothing behind. To be sourced by bash from a script that
# has set `me` (its name) and `size` (bytes of a vDisk, like 2G); takes BENCH_DIR and BENCH_WEFT. Gives `dir`, `bytes`, `sockets`, `weft`,
# `node_pid`. Whoever compares pairs sets `runtime` and `repeats` too.

. scripts/bench-processes.sh

say() { echo "$me: $1" >&2; }

for program in fio jq numfmt; do
    command -v $program >/dev/null || fail "$program is missing: apt-get install fio jq coreutils"
done
bytes=$(numfmt --from=iec "$size") || fail "BENCH_SIZE wants a size like 2G"
node_pid=''

# What a script has to end before the node does; it may have its own.
before_the_end() { :; }

clean_up() {
    trap - EXIT INT TERM
    before_the_end
    [ -z "$node_pid" ] || kill "$node_pid" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$sockets" "$dir/$me-node"
}

build_weft
take_place

# BYTES-OF-THE-DRIVE ARGUMENTS...: a node of its own, ready.
start_node() {
    local drive=$1
    shift
    rm -rf "$dir/$me-node"
    "$weft" up --dir "$dir/$me-node" --drive-size "$drive" --api 127.0.0.1:0 "$@" </dev/null >"$dir/$me-node.txt" 2>&1 &
    node_pid=$!
    wait_for "the node" "$node_pid" grep -q ready "$dir/$me-node.txt"
}

run() { "$weft" "$@" --dir "$dir/$me-node"; }

# NAME SIZE ARGUMENTS...: a vDisk, exported.
make_vdisk() {
    local name=$1 size=$2
    shift 2
    run vdisk create "$name" --size "$size" "$@" >&2
    run vdisk export "$name" --nbd "unix:$sockets/$name" >&2
}

uri() { echo "nbd+unix:///$1?socket=$sockets/$1"; }

# NAME JOB-OPTIONS...: fio's JSON. A size given later counts.
load() {
    local name=$1
    shift
    fio --name=load --thread --ioengine=nbd --uri="$(uri "$name")" --size="$bytes" --output-format=json --group_reporting "$@" |
        sed -n '/^{/,$p'
}

# For awk programs: the median of values[1] to values[count], which are sorted on the way; of an even count the mean of the two
# in the middle. interval, after it: what holds the median of all possible ones in 19 of 20 runs, whatever their distribution (sign
# test, normal approximation; of fewer than six, simply the smallest and the largest).
awk_median='
    function median(values, count,   at, other, swap) {
        for (at = 1; at <= count; at++) for (other = at + 1; other <= count; other++)
            if (values[other] < values[at]) { swap = values[at]; values[at] = values[other]; values[other] = swap }
        return (values[int((count + 1) / 2)] + values[int((count + 2) / 2)]) / 2
    }
    function interval(values, count,   low) {
        low = int((count - 1.96 * sqrt(count)) / 2)
        if (low < 1) low = 1
        return sprintf("%.3f to %.3f", values[low], values[count + 1 - low])
    }
'

# What is written, as fio's options: a script may have its own.
content=()

# NAME JOB-OPTIONS...: operations per second, mean and 99th percentile of the latency in microseconds.
rates() {
    local name=$1
    shift
    load "$name" --refill_buffers --norandommap --randrepeat=0 ${content[@]+"${content[@]}"} "$@" |
        jq -r '.jobs[0] | (if .read.iops > 0 then .read else .write end) | "\(.iops) \(.clat_ns.mean / 1000) \(.clat_ns.percentile["99.000000"] / 1000)"'
}

# What a script does with a vDisk before each measurement of a pair; it may have its own.
before_each() { :; }

pair_head() {
    echo "| | $1 /s | $2 /s | ratio | 95 % | $1 mean us | $2 mean us | ratio | $1 p99 us | $2 p99 us | $1 CPU us | $2 CPU us | ratio |"
    echo "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
}

# Waits until the node does nothing more about what was written, at most 20 seconds: else one vDisk's leftovers are paid for by the
# next one. What is left after that is a checkpoint, and compaction that clients hardly notice.
settle() {
    local before='' now
    for _ in $(seq 10); do
        now=$(run stats --json | jq -c '[([.vdisks[].engine | .dirty_bytes + .fresh_bytes] | add),
            (.shards[].engine | .egroups_compacted, .egroups_deleted, .checkpoints)]')
        [ "$now" != "$before" ] || [ "${now#\[0,}" = "$now" ] || return 0
        before=$now
        sleep 2
    done
}

# Ticks of CPU that the node has used, and its kernel threads for it.
node_ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$node_pid/stat"; }

# TITLE ONE OTHER JOB-OPTIONS...: a line of the table: two vDisks take turns, `runtime` seconds each, `repeats` times. Medians of the pairs.
# The CPU is that of the node for each operation, with all that it does about them later. Each comes first as often as second.
pair() {
    local title=$1 one=$2 other=$3 ticks rates
    shift 3
    : >"$dir/pairs"
    settle
    for number in $(seq $(((repeats + 1) / 2 * 2))); do
        # Whoever comes second has it neither better nor worse: they take turns in coming first.
        for name in $([ $((number % 2)) = 1 ] && echo "$one $other" || echo "$other $one"); do
            before_each "$name"
            ticks=$(node_ticks)
            rates=$(rates "$name" "$@" --time_based --runtime="$runtime")
            settle
            echo "$number $name $rates $(($(node_ticks) - ticks))" >>"$dir/pairs"
        done
    done
    sort -k1,1n "$dir/pairs" |
        awk -v title="$title" -v one="$one" -v tick="$((1000000 / $(getconf CLK_TCK)))" -v runtime="$runtime" "$awk_median"'
        $2 == one { n++; rate_p[$1] = $3; mean_p[$1] = $4; tail_p[$1] = $5; cpu_p[$1] = $6 * tick / ($3 * runtime) }
        $2 != one { rate_z[$1] = $3; mean_z[$1] = $4; tail_z[$1] = $5; cpu_z[$1] = $6 * tick / ($3 * runtime) }
        END {
            for (at = 1; at <= n; at++) {
                ratio[at] = rate_z[at] / rate_p[at]; waits[at] = mean_z[at] / mean_p[at]; work[at] = cpu_z[at] / cpu_p[at]
            }
            middle = median(ratio, n)
            printf "| %s | %d | %d | %.3f | %s | %d | %d | %.2f | %d | %d | %.1f | %.1f | %.2f |\n", title, median(rate_p, n),
                median(rate_z, n), middle, interval(ratio, n), median(mean_p, n), median(mean_z, n), median(waits, n), median(tail_p, n),
                median(tail_z, n), median(cpu_p, n), median(cpu_z, n), median(work, n)
        }'
}
