#!/usr/bin/env bash
# The first run: a node on a file-backed drive, a vDisk, and the four corners measured on it beside a raw file.
# DEMO_SIZE (1G) is how much is measured, DEMO_RUNTIME (10) the seconds of each measurement.
# Stopping it leaves nothing running; the data stays in .weft-demo, and the next run is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

size="${DEMO_SIZE:-1G}"
runtime="${DEMO_RUNTIME:-10}"
dir="$PWD/.weft-demo"
weft="${CARGO_TARGET_DIR:-target}/release/weft"

bytes="$(numfmt --from=iec "$size" 2>/dev/null)" || {
    echo "demo: DEMO_SIZE=$size is no size; write it like 512M or 2G" >&2
    exit 2
}
if ! [[ "$runtime" =~ ^[1-9][0-9]*$ ]]; then
    echo "demo: DEMO_RUNTIME=$runtime is no number of seconds" >&2
    exit 2
fi
# Room for the data twice (old and new versions), and the log.
drive_bytes=$((bytes * 5 / 2 + (1 << 30)))

scripts/ensure-tools.sh demo
. scripts/cargo-path.sh

echo "== building (release)"
cargo build --release -p weft

mkdir -p "$dir"
if [ ! -e "$dir/node/config.redb" ]; then
    free="$(df --output=avail -B1 "$dir" | tail -n 1)"
    if [ "$free" -lt $((drive_bytes + bytes)) ]; then
        echo "demo: $dir has $((free >> 20)) MiB free and needs $(((drive_bytes + bytes) >> 20)): free some, or use a smaller DEMO_SIZE" >&2
        exit 1
    fi
fi

node=""
lab=""
finish() {
    trap - EXIT INT TERM
    if [ -n "$lab" ] && kill -0 "$lab" 2>/dev/null; then
        kill -INT "$lab" 2>/dev/null || true
        wait "$lab" 2>/dev/null || true
    fi
    if [ -n "$node" ] && kill -0 "$node" 2>/dev/null; then
        echo "== stopping the node"
        kill -TERM "$node" 2>/dev/null || true
        wait "$node" 2>/dev/null || true
    fi
}
trap finish EXIT
trap 'finish; exit 130' INT TERM

echo "== starting a node in $dir/node"
# Looked at below, perhaps before the node's own shell has made them.
: >"$dir/node.out"
: >"$dir/node.log"
"$weft" up --dir "$dir/node" --drive-size "$drive_bytes" --api 127.0.0.1:0 >"$dir/node.out" 2>"$dir/node.log" </dev/null &
node=$!
shown=0
until grep -q ready "$dir/node.out" 2>/dev/null; do
    if ! kill -0 "$node" 2>/dev/null; then
        echo "demo: the node did not start:" >&2
        tail -n 5 "$dir/node.log" >&2
        exit 1
    fi
    # Its log tells about the drive being made: show what is new.
    lines="$(wc -l <"$dir/node.log")"
    if [ "$lines" -gt "$shown" ]; then
        sed -n "$((shown + 1)),${lines}p" "$dir/node.log"
        shown="$lines"
    fi
    sleep 0.2
done
cat "$dir/node.out"

socket="$dir/demo.sock"
if ! "$weft" vdisk show demo --dir "$dir/node" >/dev/null 2>&1; then
    echo "== creating the vDisk demo, $size"
    "$weft" vdisk create demo --size "$bytes" --dir "$dir/node"
fi
# One of an earlier run is as large as was asked for then, and so is the drive below it.
has="$("$weft" vdisk ls --json --dir "$dir/node" | tr -d ' \n' | sed -n 's/.*"name":"demo"[^}]*"size":\([0-9]*\).*/\1/p')"
if [ -n "$has" ] && [ "$has" -lt "$bytes" ]; then
    echo "demo: $dir has a vDisk of $has bytes from an earlier run, and $size are asked for: ask for as much as then (DEMO_SIZE=$has)," >&2
    echo "      or remove it (rm -r $dir) and begin anew" >&2
    exit 2
fi
# A unix socket's path is short; the one in this directory may be too long for it.
if [ "${#socket}" -gt 100 ]; then
    socket="/tmp/weft-demo-$(id -u).sock"
fi
if ! "$weft" vdisk show demo --json --dir "$dir/node" | grep -qF "\"unix:$socket\""; then
    "$weft" vdisk export demo --nbd "unix:$socket" --dir "$dir/node"
fi

echo "== measuring four corners: $size, $runtime s each; first a raw file of the same file system, then the vDisk"
"$weft" lab run four-corners --dir "$dir/node" --out "$dir/report" --size "$bytes" --runtime "$runtime" \
    --prefill if-needed --target "raw file=file:$dir/raw.img" --target "weft=weft:demo" &
lab=$!
result=0
wait "$lab" || result=$?
lab=""
finish

cat <<END

The report with charts: $dir/report/report.html

How to go on:
  # run the node again (Ctrl-C stops it); the others are for another terminal
  $weft up --dir $dir/node
  # list vDisks
  $weft vdisk ls --dir $dir/node
  # make it a block device of this machine
  $weft vdisk attach demo --dir $dir/node
  # give it to a virtual machine
  qemu-system-x86_64 -m 2G -drive file='nbd+unix:///demo?socket=$socket',format=raw,if=virtio
  # delete the vDisk; delete everything of the demo
  $weft vdisk rm demo --force --dir $dir/node
  rm -r $dir
END
exit "$result"
