# make run   builds Ashlar, makes a pool in ./ashlar-data if none is there, and mounts it at ./ashlar-mnt until Ctrl-C
# make test  runs every check
# make install [PREFIX=/usr/local] [DESTDIR=]  puts the program, its manual pages and completions, and the helpers of mount(8) in place

POOL  ?= ./ashlar-data
MOUNT ?= ./ashlar-mnt
PREFIX ?= /usr/local

ASHLAR := $(or $(CARGO_TARGET_DIR),./target)/release/ashlar
# Mounting and installing need root.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

# Where rustup or the distribution put cargo.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: run test install uninstall compiler lints tools fuse

run: compiler fuse
	cargo build --release --locked -p ashlar
	$(SUDO) $(ASHLAR) up --pool $(POOL) --mount $(MOUNT)

test: compiler lints tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Into a directory of one's own nobody need be root.
AS_ROOT := $(if $(DESTDIR),,$(SUDO))
SHARE := $(DESTDIR)$(PREFIX)/share
INSTALLED := $(DESTDIR)$(PREFIX)/bin/ashlar
HELPERS := $(DESTDIR)/sbin/mount.fuse.ashlar $(DESTDIR)/sbin/umount.fuse.ashlar
COMPLETIONS := $(SHARE)/bash-completion/completions/ashlar $(SHARE)/zsh/site-functions/_ashlar \
	$(SHARE)/fish/vendor_completions.d/ashlar.fish

install: compiler
	cargo build --release --locked -p ashlar
	$(AS_ROOT) install -D -m 755 $(ASHLAR) $(INSTALLED)
	$(AS_ROOT) mkdir -p $(SHARE)/man/man1 $(dir $(COMPLETIONS)) $(DESTDIR)/sbin
	$(AS_ROOT) $(ASHLAR) man $(SHARE)/man/man1
	$(ASHLAR) completions bash | $(AS_ROOT) tee $(word 1,$(COMPLETIONS)) >/dev/null
	$(ASHLAR) completions zsh | $(AS_ROOT) tee $(word 2,$(COMPLETIONS)) >/dev/null
	$(ASHLAR) completions fish | $(AS_ROOT) tee $(word 3,$(COMPLETIONS)) >/dev/null
	$(AS_ROOT) ln -sf $(PREFIX)/bin/ashlar $(word 1,$(HELPERS))
	$(AS_ROOT) ln -sf $(PREFIX)/bin/ashlar $(word 2,$(HELPERS))

uninstall:
	$(AS_ROOT) rm -f $(INSTALLED) $(HELPERS) $(COMPLETIONS) $(SHARE)/man/man1/ashlar.1 $(SHARE)/man/man1/ashlar-*.1

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
