# make run   builds Ashlar, makes a pool in ./ashlar-data if none is there, and mounts it at ./ashlar-mnt
# make test  runs every check

POOL  ?= ashlar-data
MOUNT ?= ashlar-mnt

# Where rustup or the distribution put cargo.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: run test tools fuse

run: tools fuse
	cargo build --release --locked -p ashlar
	./target/release/ashlar up --pool $(POOL) --mount $(MOUNT)

test: tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# A C compiler builds zstd; everything else comes with Rust.
tools:
	@command -v cargo >/dev/null || { echo "Rust is missing: see https://rustup.rs" >&2; exit 1; }
	@command -v cc >/dev/null || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt

fuse:
	@test -e /dev/fuse || modprobe fuse || { echo "/dev/fuse is missing: load the module fuse, or pass the device into the container (--device /dev/fuse --cap-add SYS_ADMIN)" >&2; exit 1; }
