#!/usr/bin/env bash
# Installs the program, its units for systemd, its configuration and its documents; with --undo it takes them away again.
# DESTDIR is put before every path. WEFT_PROGRAM is the program to install; without it one is built.
# A configuration that is there is left alone, and what nodes have stored as well.
set -euo pipefail
cd "$(dirname "$0")/.."

root="${DESTDIR:-}"
program="$root/usr/bin/weft"
units="$root/lib/systemd/system"
documents="$root/usr/share/doc/weft"
config="$root/etc/weft"

case "${1:-}" in
'' | --undo) ;;
*)
    echo "install: nobody knows \`$1\`; give nothing, or --undo" >&2
    exit 2
    ;;
esac

# Of this machine, not of a tree for a package.
tell_systemd() {
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
}

if [ "${1:-}" = --undo ]; then
    if [ -z "$root" ] && [ -d /run/systemd/system ] && systemctl --quiet is-active 'weft*.service'; then
        echo "install: a node of this machine runs: stop it first (systemctl disable --now weft)" >&2
        exit 1
    fi
    rm -f "$program" "$units/weft.service" "$units/weft@.service"
    rm -rf "$documents"
    tell_systemd
    echo "removed $program, its units and documents; $config and what nodes have stored stay"
    exit 0
fi

if [ -z "${WEFT_PROGRAM:-}" ]; then
    scripts/ensure-tools.sh build
    . scripts/cargo-path.sh
    cargo build --release --locked -p weft
    WEFT_PROGRAM="${CARGO_TARGET_DIR:-target}/release/weft"
fi

install -d "$(dirname "$program")" "$units" "$documents/docs/decisions" "$config"
install -m 755 "$WEFT_PROGRAM" "$program"
install -m 644 packaging/weft.service packaging/weft@.service "$units"
install -m 644 README.md ARCHITECTURE.md LICENSE* "$documents"
# As they lie in the source, so that links between them hold.
install -m 644 docs/*.* "$documents/docs"
install -m 644 docs/decisions/*.md "$documents/docs/decisions"
if [ -e "$config/weft.toml" ]; then
    echo "$config/weft.toml is there, and left as it is"
else
    install -m 644 packaging/weft.toml "$config/weft.toml"
fi
tell_systemd
echo "installed $program; \`systemctl enable --now weft\` starts a node in /var/lib/weft, as $config/weft.toml says"
