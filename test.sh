#!/usr/bin/env bash
# Everything that must hold, from formatting to fuzzing. Needs a Rust toolchain (https://rustup.rs); installs the rest.
#   ./test.sh          all of it
#   ./test.sh quick    the tests alone, without the long hunts
set -euo pipefail
cd "$(dirname "$0")"

step() { printf '\n== %s\n' "$*"; }
skip() { printf '\n== NOT RUN: %s\n' "$*" >&2; }

have_component() { cargo "$1" --version >/dev/null 2>&1 || rustup component add "$2"; }
have_tool() { command -v "$1" >/dev/null 2>&1 || cargo install --locked --debug "$1"; }

nightly() { rustup toolchain list 2>/dev/null | grep -o '^nightly[^ ]*' | head -n 1 || true; }

checks() {
    step "format"
    have_component fmt rustfmt
    cargo fmt --all --check
    step "lints"
    have_component clippy clippy
    cargo clippy --locked --workspace --all-targets -- -D warnings
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps
    step "licences of dependencies"
    have_tool cargo-deny
    cargo deny check licenses bans sources
}

# AddressSanitizer and libFuzzer exist only for nightly compilers.
hunts() {
    local toolchain target
    toolchain=$(nightly)
    if [ -z "$toolchain" ]; then
        skip "AddressSanitizer and fuzzing need a nightly toolchain: rustup toolchain install nightly"
        return
    fi
    target=$(rustc -vV | sed -n 's/^host: //p')
    # Those of whole calls: each build of the kernels takes minutes, and unit tests would want one more.
    step "memory errors: the tests under AddressSanitizer"
    RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
        cargo "+$toolchain" test --locked -p qkv -p qkv-io --test '*' --target "$target" --target-dir target/asan
    step "fuzzing, ${FUZZ_SECONDS:=20} seconds for each target"
    have_tool cargo-fuzz
    for fuzz_target in read_npy read_npz read_safetensors forward; do
        cargo "+$toolchain" fuzz run "$fuzz_target" -- -max_total_time="$FUZZ_SECONDS" -malloc_limit_mb=512 -print_final_stats=0
    done
}

tests() {
    step "tests, with debug assertions"
    cargo test --locked --workspace
    step "tests, as released"
    cargo test --locked --workspace --release
}

# Each on a line of its own: in an && list a failure inside a function would not stop the script.
case "${1:-all}" in
    quick)
        tests
        ;;
    all)
        checks
        hunts
        tests
        ;;
    *)
        echo "usage: $0 [quick]" >&2
        exit 2
        ;;
esac
