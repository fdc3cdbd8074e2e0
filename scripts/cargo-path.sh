# Sourced: puts a Rust toolchain that was installed by rustup on the PATH, also in a shell that was open before.
if [ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ]; then
    case ":$PATH:" in
        *":${CARGO_HOME:-$HOME/.cargo}/bin:"*) ;;
        *) PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH" ;;
    esac
    export PATH
fi
