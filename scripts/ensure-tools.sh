#!/usr/bin/env bash
# Installs what is missing, and nothing else: ensure-tools.sh build|demo|test|cluster|ceph
# Debian packages by apt-get (as root or through sudo), Rust by rustup. Quick and silent when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cargo-path.sh

purpose="${1:-build}"
minimum_rust=1.95

# Program to look for : Debian package that has it.
needs=(cc:build-essential curl:curl)
case "$purpose" in
    build) ;;
    demo) needs+=(fio:fio) ;;
    cluster) needs+=(fio:fio etcd:etcd-server jq:jq) ;;
    # Only to measure beside it (scripts/bench-cluster).
    ceph) needs+=(ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd ceph:ceph-common rbd:ceph-common jq:jq) ;;
    test)
        needs+=(fio:fio qemu-img:qemu-utils qemu-io:qemu-utils qemu-nbd:qemu-utils
            qemu-storage-daemon:qemu-system-common nbdinfo:libnbd-bin nbdcopy:libnbd-bin nbdkit:nbdkit
            mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mount:mount fstrim:util-linux fuser:psmisc
            initdb:postgresql pg_amcheck:postgresql runuser:util-linux etcd:etcd-server
            ip:iproute2 tc:iproute2 nft:nftables)
        ;;
    *)
        echo "ensure-tools: no such purpose '$purpose'; use build, demo, test, cluster or ceph" >&2
        exit 2
        ;;
esac

have() {
    # Debian keeps the servers' own programs beside the PATH, and mkfs in sbin, which some users have not.
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ||
        compgen -G "/usr/lib/postgresql/*/bin/$1" >/dev/null
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

missing=()
for need in "${needs[@]}"; do
    if ! have "${need%%:*}"; then
        missing+=("${need#*:}")
    fi
done
if ! [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    missing+=(ca-certificates)
fi

if [ "${#missing[@]}" -gt 0 ]; then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "ensure-tools: missing: ${missing[*]} (names of Debian packages), and this is no Debian: install them by hand" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "ensure-tools: missing: ${missing[*]}, and there is neither root nor sudo: run as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "== installing Debian packages: ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null || true
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null; then
        echo "ensure-tools: apt-get could not install ${missing[*]}: see above; install them by hand and run again" >&2
        exit 1
    fi
    # Only the program is wanted: tests start their own. One that was there before is somebody's, and left alone.
    if [[ " ${missing[*]} " == *" etcd-server "* ]] && [ -d /run/systemd/system ]; then
        as_root systemctl disable --now etcd.service >/dev/null 2>&1 || true
    fi
    if [[ " ${missing[*]} " == *" postgresql "* ]] && [ -d /run/systemd/system ]; then
        as_root systemctl disable --now postgresql.service >/dev/null 2>&1 || true
        # Each database that Debian makes with the package is a unit of its own, begun by that one.
        as_root systemctl stop 'postgresql@*.service' >/dev/null 2>&1 || true
    fi
fi

# True if the cargo on the PATH is new enough.
cargo_is_new() {
    local version
    version="$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\.[0-9]*\).*/\1/p')"
    [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$minimum_rust" "$version" | sort -V | head -n 1)" = "$minimum_rust" ]
}

if ! cargo_is_new; then
    echo "== installing Rust with rustup (no cargo of at least $minimum_rust is here)"
    # In a directory of its own: a name that others can guess in /tmp, they can put there before, and it is run.
    rustup=$(mktemp -d)
    trap 'rm -rf "$rustup"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    if ! curl --proto '=https' --tlsv1.2 --silent --show-error --fail --retry 3 https://sh.rustup.rs -o "$rustup/init.sh"; then
        echo "ensure-tools: rustup cannot be fetched: install Rust $minimum_rust or newer from https://rustup.rs and run again" >&2
        exit 1
    fi
    sh "$rustup/init.sh" -y --no-modify-path --profile minimal --component rustfmt --component clippy </dev/null
    # An older cargo of the system must not hide the new one.
    if ! PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH" cargo_is_new; then
        echo "ensure-tools: Rust was installed, but cargo is still older than $minimum_rust: run \`rustup update stable\`" >&2
        exit 1
    fi
fi
