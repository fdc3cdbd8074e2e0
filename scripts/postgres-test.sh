#!/usr/bin/env bash
# PostgreSQL on ext4 on an attached vDisk, and a kill -9 of the node in the middle of pgbench: after a restart the file
# system is clean, PostgreSQL recovers, no checksum is bad and every index fits its table.
# WEFT_BINARY: this program instead of building one.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo-path.sh
export PATH="$PATH:/usr/sbin:/sbin"

if [ ! -e /dev/fuse ] || [ ! -e /dev/loop-control ]; then
    echo "postgres-test: /dev/fuse or /dev/loop-control is not here: a vDisk cannot be attached, nothing to try"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "postgres-test: attaching and mounting need root: run it as root" >&2
    exit 1
fi

if [ -z "${WEFT_BINARY:-}" ]; then
    cargo build --release --locked -p weft --quiet
fi
weft="${WEFT_BINARY:-${CARGO_TARGET_DIR:-target}/release/weft}"
bin="$(dirname "$(find /usr/lib/postgresql -path '*/bin/initdb' | sort -V | tail -n 1)")"
# As Debian installs it; made here when only the programs were unpacked.
id postgres >/dev/null 2>&1 || useradd --system --user-group --home-dir /nonexistent --shell /bin/sh postgres

work="$(mktemp -d "${TMPDIR:-/var/tmp}/weft-postgres.XXXXXX")"
chmod 755 "$work"
mount="$work/mnt"
mkdir "$mount"
node=""
load=""

# as_postgres_for SECONDS COMMAND...
as_postgres_for() {
    (cd / && exec timeout --kill-after=5 "$1" runuser -u postgres -- "${@:2}")
}
as_postgres() {
    as_postgres_for 120 "$@"
}

finish() {
    status=$?
    trap - EXIT INT TERM
    [ -z "$load" ] || kill -9 "$load" 2>/dev/null || true
    if [ -f "$mount/data/postmaster.pid" ]; then
        as_postgres "$bin/pg_ctl" -D "$mount/data" -m immediate stop >/dev/null 2>&1 || true
    fi
    umount "$mount" 2>/dev/null || umount -l "$mount" 2>/dev/null || true
    if [ -n "$node" ]; then
        kill -TERM "$node" 2>/dev/null || true
        for _ in $(seq 200); do
            kill -0 "$node" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$node" 2>/dev/null || true
        wait "$node" 2>/dev/null || true
    fi
    if [ "$status" != 0 ]; then
        echo "postgres-test: failed; the node's log ends with:" >&2
        tail -n 20 "$work/node.log" >&2 || true
        [ ! -f "$work/postgres.log" ] || tail -n 20 "$work/postgres.log" >&2
    fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

start_node() {
    : >"$work/node.out"
    "$weft" up --dir "$work/node" --drive-size 2G --api 127.0.0.1:0 >"$work/node.out" 2>>"$work/node.log" </dev/null &
    node=$!
    for _ in $(seq 600); do
        ! grep -q ready "$work/node.out" || return 0
        kill -0 "$node" 2>/dev/null || break
        sleep 0.1
    done
    echo "postgres-test: the node did not start" >&2
    return 1
}

start_postgres() {
    as_postgres "$bin/pg_ctl" -D "$mount/data" -w -t 90 -l "$work/postgres.log" \
        -o "-c listen_addresses='' -c unix_socket_directories=$work/socket -c shared_buffers=64MB" start >/dev/null
}

query() {
    as_postgres psql -h "$work/socket" -d bench -v ON_ERROR_STOP=1 -Atc "$1"
}

mkdir "$work/socket"
touch "$work/postgres.log"
chown postgres: "$work/socket" "$work/postgres.log"

echo "-- a node, a vDisk, a file system, a database"
start_node
"$weft" vdisk create pg --size 1G --dir "$work/node"
device="$("$weft" vdisk attach pg --dir "$work/node")"
mkfs.ext4 -q -F "$device"
mount "$device" "$mount"
mkdir "$mount/data"
chown postgres: "$mount/data"
chmod 700 "$mount/data"
as_postgres "$bin/initdb" -D "$mount/data" --data-checksums --auth=trust >/dev/null
start_postgres
as_postgres "$bin/createdb" -h "$work/socket" bench
server="$(head -n 1 "$mount/data/postmaster.pid")"
query "create extension amcheck; create table acknowledged (number bigint primary key)" >/dev/null
as_postgres "$bin/pgbench" -h "$work/socket" -i -q -s 10 bench 2>/dev/null

echo "-- pgbench, and a kill -9 of the node in the middle"
as_postgres_for 1800 "$bin/pgbench" -h "$work/socket" -c 4 -j 2 -T 3600 bench >"$work/pgbench.out" 2>&1 &
load=$!
# Our own transactions beside it: a number counts once its commit was acknowledged.
last=0
for number in $(seq 1 400); do
    if ! query "insert into acknowledged values ($number)" >/dev/null 2>"$work/insert.err"; then
        echo "postgres-test: a transaction failed before the node was killed: $(head -n 1 "$work/insert.err")" >&2
        exit 1
    fi
    last="$number"
done
if ! kill -0 "$load" 2>/dev/null; then
    echo "postgres-test: pgbench ended before the node was killed: $(tail -n 3 "$work/pgbench.out")" >&2
    exit 1
fi
kill -9 "$node"
wait "$node" 2>/dev/null || true
node=""
# The load must end with errors, not hang.
for _ in $(seq 900); do
    kill -0 "$load" 2>/dev/null || break
    sleep 0.1
done
if kill -0 "$load" 2>/dev/null; then
    echo "postgres-test: pgbench hangs on a dead node" >&2
    exit 1
fi
wait "$load" 2>/dev/null || true
load=""
as_postgres "$bin/pg_ctl" -D "$mount/data" -m immediate stop >/dev/null 2>&1 || true
# Whatever is left of PostgreSQL has the dead file system open.
if [ -n "$(fuser -m "$mount" 2>/dev/null || true)" ]; then
    fuser -k -9 -m "$mount" >/dev/null 2>&1 || true
fi
kill -9 "$server" 2>/dev/null || true
for _ in $(seq 300); do
    umount "$mount" 2>/dev/null && break
    sleep 0.1
done
if mountpoint -q "$mount"; then
    echo "postgres-test: the file system of the dead node cannot be unmounted" >&2
    exit 1
fi

echo "-- restart, attach, journal replay, fsck, recovery ($last transactions were acknowledged)"
start_node
device="$("$weft" vdisk attach pg --dir "$work/node")"
mount "$device" "$mount"
umount "$mount"
fsck.ext4 -fn "$device"
mount "$device" "$mount"
# The former server is gone. But its process number may still be taken, by what nobody has waited for yet, and then
# PostgreSQL would not start beside its lock files.
rm -f "$mount/data/postmaster.pid" "$work/socket/".s.PGSQL.*
start_postgres
kept="$(query "select count(*) from acknowledged where number <= $last")"
if [ "$kept" != "$last" ]; then
    echo "postgres-test: $last transactions were acknowledged and $kept are there" >&2
    exit 1
fi
as_postgres "$bin/pg_amcheck" -h "$work/socket" --heapallindexed bench
as_postgres "$bin/pgbench" -h "$work/socket" -c 4 -j 2 -T 3 bench >/dev/null
as_postgres "$bin/pg_ctl" -D "$mount/data" -w -m fast stop >/dev/null
as_postgres "$bin/pg_checksums" --check -D "$mount/data"
umount "$mount"
fsck.ext4 -fn "$device"
"$weft" vdisk detach pg --dir "$work/node"
"$weft" down --dir "$work/node"
wait "$node"
node=""
"$weft" check "$work/node"
echo "postgres-test: nothing was lost"
