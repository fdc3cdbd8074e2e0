# For benchmarks of one node: builds, starts it, speaks to it, and leaves nothing behind. To be sourced by bash from a script that
# has set `me` (its name) and `size` (bytes of a vDisk, like 2G); takes BENCH_DIR and BENCH_WEFT. Gives `dir`, `bytes`, `sockets`, `weft`,
# `node_pid`.

fail() {
    echo "$me: $1" >&2
    exit 1
}

say() { echo "$me: $1" >&2; }

for program in fio jq numfmt; do
    command -v $program >/dev/null || fail "$program is missing: apt-get install fio jq coreutils"
done
bytes=$(numfmt --from=iec "$size") || fail "BENCH_SIZE wants a size like 2G"
mkdir -p "${BENCH_DIR:-./bench-out}"
dir=$(realpath "${BENCH_DIR:-./bench-out}")
weft=${BENCH_WEFT:-}
# A socket's path may be 107 bytes long at most, and BENCH_DIR may be deep.
sockets=$(mktemp -d)
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
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -z "$weft" ]; then
    [ ! -f scripts/cargo-path.sh ] || . scripts/cargo-path.sh
    cargo build --release --quiet -p weft
    weft=${CARGO_TARGET_DIR:-target}/release/weft
fi

# BYTES-OF-THE-DRIVE ARGUMENTS...: a node of its own, ready.
start_node() {
    local drive=$1
    shift
    rm -rf "$dir/$me-node"
    "$weft" up --dir "$dir/$me-node" --drive-size "$drive" --api 127.0.0.1:0 "$@" </dev/null >"$dir/$me-node.txt" 2>&1 &
    node_pid=$!
    for _ in $(seq 1200); do
        grep -q ready "$dir/$me-node.txt" && return
        kill -0 "$node_pid" 2>/dev/null || fail "the node ended at once; its words are in $dir/$me-node.txt"
        sleep 0.1
    done
    fail "the node did not serve within two minutes; its words are in $dir/$me-node.txt"
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

median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
