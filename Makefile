# make run   builds Ashlar, makes a pool in ./ashlar-data if none is there, and mounts it at ./ashlar-mnt until Ctrl-C
# make test  runs every check

POOL  ?= ./ashlar-data
MOUNT ?= ./ashlar-mnt

ASHLAR := $(or $(CARGO_TARGET_DIR),./target)/release/ashlar
# Mounting and installing need root.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

# Where rustup or the distribution put cargo.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: run test compiler lints tools fuse

run: compiler fuse
	cargo build --release --locked -p ashlar
	$(SUDO) $(ASHLAR) up --pool $(POOL) --mount $(MOUNT)

test: compiler lints tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# A C compiler builds zstd; everything else comes with Rust.
compiler:
	@command -v cargo >/dev/null || { echo "Rust is missing: install it as https://rustup.rs says, then run make again" >&2; exit 1; }
	@command -v cc >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends gcc libc6-dev; }

lints:
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt

# File systems that tests compare with, and what mounts for users. A test whose tools are missing says so and is passed over.
TOOLS := mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs fusermount3:fuse3

tools:
	@PATH="$$PATH:/usr/sbin:/sbin"; need=; for tool in $(TOOLS); do command -v $${tool%:*} >/dev/null || need="$$need $${tool#*:}"; done; \
	[ -z "$$need" ] || { $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends $$need; } || \
		echo "not installed:$$need; tests that need them are passed over" >&2

fuse:
	@test -c /dev/fuse || $(SUDO) modprobe fuse 2>/dev/null || true
	@test -c /dev/fuse || { \
		echo "/dev/fuse is missing, so nothing can be mounted:" >&2; \
		echo "  on a machine of your own:  sudo modprobe fuse  (the module comes with the kernel)" >&2; \
		echo "  in a container:            start it with --device /dev/fuse --cap-add SYS_ADMIN" >&2; \
		exit 1; }
