#!/usr/bin/env bash
# A cluster on this machine: a real etcd, four nodes on the loopback, a vDisk with two copies and a client at work on it.
# The vDisk's node is killed; shown is what the client saw of it, and how the lost copies are made again. Then two nodes for
# storage only come, and what that does is shown. At the end everything is read back and compared.
#
#   CLUSTER_SIZE=512M     of the vDisk; about fifteen times that must be free
#   CLUSTER_SECONDS=6     how long each quiet part of the load takes
#   CLUSTER_STAY=1        leaves the cluster running at the end, until Ctrl-C
#
# Stopping it leaves nothing running. The logs of the nodes stay in .weft-cluster until the next run.
set -euo pipefail
cd "$(dirname "$0")/.."

size="${CLUSTER_SIZE:-512M}"
seconds="${CLUSTER_SECONDS:-6}"
dir="$PWD/.weft-cluster"
weft="${WEFT_BINARY:-${CARGO_TARGET_DIR:-target}/release/weft}"

# Also from within what is asked silently again and again.
exec 3>&2
fail() {
    echo "cluster: $1" >&3
    exit 1
}

bytes="$(numfmt --from=iec "$size" 2>/dev/null)" || fail "CLUSTER_SIZE=$size is no size; write it like 512M or 2G"
[[ "$seconds" =~ ^[1-9][0-9]*$ ]] || fail "CLUSTER_SECONDS=$seconds is no number of seconds"
# Both copies on few nodes, old and new versions, and the log.
drive_bytes=$((bytes * 3 / 2 + (1 << 30)))

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' cyan=$'\e[36m' plain=$'\e[0m' clear=$'\r\e[K'
else
    bold='' dim='' red='' green='' cyan='' plain='' clear=''
fi
chapter() { printf '\n%s%s%s %s%s\n' "$bold" "$cyan" "$1" "$2" "$plain"; }
say() { printf '  %s\n' "$*"; }
good() { printf '  %s✓%s %s\n' "$green" "$plain" "$*"; }
shown() { printf '  %s$ weft %s%s\n' "$dim" "$*" "$plain"; }

scripts/ensure-tools.sh cluster
if [ -z "${WEFT_BINARY:-}" ]; then
    . scripts/cargo-path.sh
    echo "== building (release)"
    cargo build --release --quiet -p weft
fi

etcd_pid='' fio_pid=''
node_pids=()
sockets="$(mktemp -d)"

stop() {
    local pid i
    for pid in "$@"; do
        [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    done
    for pid in "$@"; do
        [ -n "$pid" ] || continue
        for i in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

finish() {
    trap - EXIT INT TERM
    printf '%s' "$clear"
    stop "$fio_pid"
    # All at once: nobody need take over from anybody.
    stop "${node_pids[@]}"
    stop "$etcd_pid"
    rm -rf "$sockets" "$dir"/node*/drive-*
}
trap finish EXIT
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM

rm -rf "$dir"
mkdir -p "$dir"
free="$(df --output=avail -B1 "$dir" | tail -n 1)"
[ "$free" -gt $((drive_bytes * 6)) ] ||
    fail "$dir has $((free >> 20)) MiB free and needs $((drive_bytes * 6 >> 20)): free some, or use a smaller CLUSTER_SIZE"

# wait_for WHAT COMMAND...: until the command succeeds, with what is waited for on the terminal.
wait_for() {
    local what=$1 begun=$SECONDS
    shift
    until "$@" >/dev/null 2>&1; do
        [ $((SECONDS - begun)) -lt 180 ] || fail "waited three minutes in vain: $what; see the logs in $dir"
        [ -z "$clear" ] || printf '%s  %s… %s, %s s%s' "$clear" "$dim" "$what" "$((SECONDS - begun))" "$plain"
        sleep 0.2
    done
    printf '%s' "$clear"
}

# What the cluster says, asked of a node that runs.
asked=0
ask() {
    "$weft" "$@" --dir "$dir/node$asked"
}
status() {
    ask cluster status --json | jq .cluster
}
is_whole() {
    status | jq -e '.groups > 0 and .groups_whole == .groups and .drives_up == .drives and .vdisks == .vdisks_served'
}
owner() {
    ask vdisk show data --json | jq -e 'select(.served != false) | .owner_node'
}

start_node() {
    "$weft" up --dir "$dir/node$1" --drives 1 --drive-size "$drive_bytes" </dev/null >"$dir/node$1.out" 2>"$dir/node$1.log" &
    node_pids[$1]=$!
}
is_ready() {
    kill -0 "${node_pids[$1]}" 2>/dev/null || fail "node $1 ended: $(tail -n 3 "$dir/node$1.log")"
    grep -q ready "$dir/node$1.out"
}

# ---- the client ----

part=0
# load_begins: random durable writes of 4 KiB in the second half of the vDisk, until load_ends.
load_begins() {
    part=$((part + 1))
    fio --name=load --ioengine=nbd "--uri=nbd+unix:///data?socket=$sockets/client" --rw=randwrite --bs=4k --iodepth=8 \
        --offset=50% --size=50% --norandommap --randrepeat=0 --rate_iops="${rate:-0}" --time_based --runtime=600 \
        --eta=always --eta-newline=500ms --eta-interval=500ms --output-format=json --output="$dir/load-$part.json" \
        </dev/null >"$dir/load-$part.txt" 2>&1 &
    fio_pid=$!
    trail=()
    highest=$((${rate:-0} * 5 / 4 + 1))
    local i
    for i in $(seq 50); do
        [ "$(iops_now)" = 0 ] || break
        sleep 0.2
    done
}

bars=(· ▁ ▂ ▃ ▄ ▅ ▆ ▇ █)
iops_now() {
    local last
    last="$(tail -c 400 "$dir/load-$part.txt" | tr '\r' '\n' | grep Jobs: | tail -n 1)"
    [[ "$last" =~ w=([0-9.]+)(k?)\ IOPS ]] || { echo 0; return; }
    awk -v n="${BASH_REMATCH[1]}" -v k="${BASH_REMATCH[2]}" 'BEGIN { print int(n * (k == "k" ? 1000 : 1)) }'
}

# One step of the live line: what the client gets, and what else there is to say.
live() {
    local now level
    kill -0 "$fio_pid" 2>/dev/null || fail "the client ended: $(tail -c 300 "$dir/load-$part.txt")"
    now="$(iops_now)"
    [ "$now" -le "$highest" ] || highest=$now
    level=$((now * 8 / highest))
    [ "$now" = 0 ] || [ "$level" -gt 0 ] || level=1
    trail+=("${bars[$level]}")
    [ "${#trail[@]}" -le 40 ] || trail=("${trail[@]:1}")
    # Padded by hand: printf counts bytes where the locale is plain.
    [ -z "$clear" ] || printf '%s  client %s│%s%*s│%s %6d IOPS  %s' "$clear" "$cyan" "$(printf %s "${trail[@]}")" \
        $((40 - ${#trail[@]})) '' "$plain" "$now" "${1:-}"
    sleep 0.5
}

live_for() {
    local i text=${2:-}
    for i in $(seq $(($1 * 2))); do
        live "$text"
    done
}

# live_until WHAT COMMAND...
live_until() {
    local what=$1 begun=$SECONDS
    shift
    until "$@" >/dev/null 2>&1; do
        [ $((SECONDS - begun)) -lt 240 ] || fail "waited four minutes in vain: $what; see the logs in $dir"
        live "$what $(progress)"
    done
    took=$((SECONDS - begun))
}

progress() {
    status 2>/dev/null | jq -r 'if .repair then "\(.repair.groups_total - .repair.groups_left) of \(.repair.groups_total) groups"
        + (if .repair.seconds_left then ", \(.repair.seconds_left) s left" else "" end) else "" end' 2>/dev/null || true
}

# load_ends NAME: what the client saw.
load_ends() {
    local status=0 line
    kill -INT "$fio_pid" 2>/dev/null || true
    wait "$fio_pid" || status=$?
    fio_pid=''
    printf '%s' "$clear"
    # 128: it was told to end.
    [ "$status" = 0 ] || [ "$status" = 128 ] || fail "the client saw an error: see $dir/load-$part.txt and load-$part.json"
    line="$(sed -n '/^{/,$p' "$dir/load-$part.json" | jq -r '.jobs[0] | [.error, (.write.iops | round),
        (.write.clat_ns.mean / 1e3 | round), (.write.clat_ns.percentile["99.000000"] / 1e3 | round),
        (.write.clat_ns.max / 1e6 | round), .write.total_ios] | @tsv')"
    local error iops mean p99 longest total
    IFS=$'\t' read -r error iops mean p99 longest total <<<"$line"
    [ "$error" = 0 ] || fail "the client saw the error $error: see $dir/load-$part.json"
    good "$(printf '%s acknowledged writes, 0 errors; %s IOPS; mean %s us, p99 %s us, %slongest wait %s ms%s' \
        "$total" "$iops" "$mean" "$p99" "$bold" "$longest" "$plain")"
    summary+=("$(printf '%-44s %10s %9s %10s %13s' "$1" "$iops" "$mean" "$p99" "$longest")")
}
summary=()

# Where the copies are: a line for each drive.
drives() {
    ask drive ls --json | jq -r '.[] | select(.state != "lost") | "  node \(.node)  drive \(.drive)  \(.groups) groups, first of \(.groups_led)  \(.state)"' |
        awk -v c="$cyan" -v p="$plain" '{ bar = ""; for (i = 0; i < $5 && i < 40; i++) bar = bar "▪"; print $0 "  " c bar p }'
}

# ---- the story ----

chapter 1 "etcd and four nodes"
port=$((20000 + $$ % 5000 * 2))
url="http://127.0.0.1:$port"
etcd --name demo --data-dir "$dir/etcd" --log-level error --logger zap --listen-client-urls "$url" --advertise-client-urls "$url" \
    --listen-peer-urls "http://127.0.0.1:$((port + 1))" --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" \
    --initial-cluster "demo=http://127.0.0.1:$((port + 1))" </dev/null >"$dir/etcd.log" 2>&1 &
etcd_pid=$!
wait_for "etcd starts" curl -sf "$url/health"
good "etcd at $url"
shown "cluster init --etcd $url --dir node0"
"$weft" cluster init --etcd "$url" --name main --dir "$dir/node0" --api 127.0.0.1:0 --transport 127.0.0.1:0 >/dev/null
for number in 1 2 3; do
    shown "node join --etcd $url --dir node$number"
    "$weft" node join --etcd "$url" --cluster main --dir "$dir/node$number" --api 127.0.0.1:0 --transport 127.0.0.1:0 >/dev/null
done
for number in 0 1 2 3; do
    start_node "$number"
done
for number in 0 1 2 3; do
    wait_for "node $number starts" is_ready "$number"
done
all_in() {
    status | jq -e '.nodes_alive == 4 and .drives_up == 4'
}
wait_for "all nodes are in" all_in
good "four nodes, each with a drive of $((drive_bytes >> 20)) MiB"

chapter 2 "A vDisk with two copies of everything"
shown "vdisk create data --size $size --rf 2"
ask vdisk create data --size "$bytes" --rf 2 >/dev/null
wait_for "somebody serves it" owner
wait_for "the groups are made" is_whole
served_by="$(owner)"
client=$(((served_by + 1) % 4))
asked=$client
shown "vdisk export data --nbd unix:... --dir node$client"
ask vdisk export data --nbd "unix:$sockets/client" >/dev/null
good "node $served_by serves it; the client connects to node $client, which forwards"
fill() {
    fio --name=fill --ioengine=nbd "--uri=nbd+unix:///data?socket=$sockets/client" --rw=write --bs=256k --iodepth=4 \
        --offset=0 --size=50% --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" </dev/null >"$dir/fill.txt" 2>&1 &
    fio_pid=$!
    wait "$fio_pid" || fail "fio: $(tail -n 5 "$dir/fill.txt")"
    fio_pid=''
}
[ -z "$clear" ] || printf '  %s… writing the first half, with checksums to be compared at the end%s' "$dim" "$plain"
fill --do_verify=0
printf '%s' "$clear"
good "the first half is written, with checksums to be compared at the end"
load_begins
live_for "$seconds"
load_ends "all is well, as fast as it goes"
# Some way below what it can do, so that what follows shows waiting and not just contention for the CPUs.
rate="$(sed -n '/^{/,$p' "$dir/load-$part.json" | jq '.jobs[0].write.iops / 2 | round')"
say "${dim}from here on the client asks for half of that: $rate IOPS$plain"

chapter 3 "kill -9 of node $served_by, which serves the vDisk"
load_begins
live_for 3
printf '%s  %skill -9%s node %s\n' "$clear" "$red" "$plain" "$served_by"
kill -9 "${node_pids[$served_by]}"
wait "${node_pids[$served_by]}" 2>/dev/null || true
node_pids[$served_by]=''
took=0
next_owner() {
    local now
    # While nobody serves it there is none.
    now="$(owner)" && [ "$now" != "$served_by" ]
}
live_until "another node takes it over" next_owner
live_for "$seconds"
load_ends "the vDisk's node was killed"
good "node $(owner) serves it now"
status | jq -r '.lines[]' | sed 's/^/    /'

chapter 4 "The lost copies are made again"
shown "node remove $served_by --force"
load_begins
ask node remove "$served_by" --force >/dev/null
live_until "copying" is_whole
load_ends "copies being made again"
good "every block has two copies again, after $took s"
drives

chapter 5 "Two nodes for storage only join"
load_begins
for number in 4 5; do
    "$weft" node join --etcd "$url" --cluster main --dir "$dir/node$number" --storage-only \
        --api 127.0.0.1:0 --transport 127.0.0.1:0 >/dev/null
    start_node "$number"
done
printf '%s' "$clear"
shown "node join --storage-only --dir node4; node join --storage-only --dir node5"
both_in() {
    status | jq -e '.drives_up == 5' && is_whole
}
begun=$SECONDS
live_until "moving a fair share to them" both_in
# The controller takes turns: whole between two of them is not the end.
live_for 2
live_until "moving a fair share to them" both_in
load_ends "two more nodes get their share"
good "done after $((SECONDS - begun)) s; they hold copies and serve no vDisks"
drives
load_begins
live_for "$seconds"
load_ends "all is well again, with five nodes"

chapter 6 "What is there?"
[ -z "$clear" ] || printf '  %s… reading the first half and comparing it%s' "$dim" "$plain"
fill --verify_only
printf '%s' "$clear"
good "the first half reads back as it was written, on other drives than it was written to"
ask cluster status | sed 's/^/  /'

chapter 7 "What the client saw"
printf '  %s%-44s %10s %9s %10s %13s%s\n' "$bold" "" "IOPS" "mean us" "p99 us" "longest ms" "$plain"
printf '  %s\n' "${summary[@]}"
say "${dim}4 KiB random durable writes at depth 8 through a node that forwards; client, etcd and all nodes share $(nproc) CPUs$plain"

if [ -n "${CLUSTER_STAY:-}" ]; then
    echo
    say "The cluster runs until Ctrl-C. In another terminal:"
    say "  $weft cluster status --dir $dir/node$asked"
    say "  $weft vdisk ls --dir $dir/node$asked"
    while sleep 1; do :; done
fi
