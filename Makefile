# `make demo` and `make test` are the two commands to know; `make help` lists the rest.

CARGO ?= cargo
export URBD_BIN ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/urbd

# What is installed.
PROGRAMS = -p urbd -p urbd-watch -p urbd-lab

.PHONY: help build install deb rpm static release demo test test-rust test-python long bench bench-resync sim fuzz nemesis guests package-test newcomer doc packages wrong-rules

help:
	@echo 'make demo    build, then mirror a disk between two nodes, kill one, check every file (about a minute)'
	@echo 'make demo NODES=3   three replicas: kill one, replace its disk, cut off the primary, which freezes and goes on'
	@echo 'make test    install what is missing (Debian packages by name), then run every test'
	@echo 'make build   optimised program: target/release/urbd'
	@echo 'make install build, then install the programs, the service unit and shell completion; DESTDIR=/somewhere'
	@echo 'make deb     build, then Debian packages: target/deb/*.deb'
	@echo 'make rpm     an RPM package with the static program: target/rpm/*.rpm'
	@echo 'make static  programs that need no libraries and no Rust; the last line says where they are'
	@echo 'make release all that is published of a version, in target/published; KEY=… signs it (docs/release.md)'
	@echo 'make bench   measure urbd and its alternatives side by side; renews docs/performance.md'
	@echo 'make bench-resync   measure resync: idle, at a rate, beside applications, thin link, slow disk; ARGS=--quick'
	@echo 'make sim     simulate whole clusters; SEED=n replays one, SEEDS=n runs that many, HOURS=n goes on so long'
	@echo 'make fuzz    feed damaged bytes to every parser; SECONDS=n per target'
	@echo 'make nemesis kill, freeze, cut off, starve and break two real nodes (NODES=3: three) under a checked load; ROUNDS=n SEED=s'
	@echo 'make long    proofs that take long and go on where they were: PART=kills, restarts, postgres, versions, release …; ROUNDS=n'
	@echo 'make guests  what takes udev, device mapper or an old kernel, in a QEMU guest; SUITE=trixie, ROUNDS=n'
	@echo 'make package-test   the Debian packages on Debian 13 (SUITE=bookworm: 12): installed, upgraded under load, removed'
	@echo 'make newcomer   what README.md tells a newcomer, on two empty Debian roots, timed; SUITE=trixie'
	@echo 'make doc     reference documentation: target/doc'
	@echo 'test parts:  make test-rust; make test-python [ARGS="-k failover"]'

build:
	$(CARGO) build --release --locked $(PROGRAMS)

# The real tools' names work too: ln -s urbd $(SBIN)/drbdadm
SBIN ?= /usr/sbin
SHARE = $(DESTDIR)/usr/share
UNITS = $(DESTDIR)/usr/lib/systemd/system
BUILT = $(abspath $(or $(CARGO_TARGET_DIR),target))/release
install: build
	install -D -m 755 $(BUILT)/urbd $(DESTDIR)$(SBIN)/urbd
	install -D -m 755 -t $(DESTDIR)/usr/libexec/urbd $(BUILT)/urbd-watch $(BUILT)/urbd-lab
	install -D -m 644 -t $(UNITS) dist/urbd@.service dist/urbd-keeper@.service
	install -D -m 644 -t $(DESTDIR)/usr/lib/udev/rules.d dist/65-urbd.rules
	install -D -m 644 -t $(SHARE)/doc/urbd README.md
	install -D -m 644 dist/completion/urbd.bash $(SHARE)/bash-completion/completions/urbd
	install -D -m 644 dist/completion/urbd.zsh $(SHARE)/zsh/vendor-completions/_urbd
	install -D -m 644 dist/completion/urbd.fish $(SHARE)/fish/vendor_completions.d/urbd.fish
	rm -rf target/manual && mkdir -p target/manual && $(BUILT)/urbd-lab manual target/manual
	install -D -m 644 -t $(SHARE)/man/man8 target/manual/*.8
	install -D -m 644 -t $(SHARE)/man/man5 target/manual/*.5
	install -D -m 755 dist/ocf/drbd $(DESTDIR)/usr/lib/ocf/resource.d/urbd/drbd
	install -D -m 755 dist/ocf/crm-fence-peer $(DESTDIR)/usr/lib/urbd/crm-fence-peer
	ln -sf crm-fence-peer $(DESTDIR)/usr/lib/urbd/crm-unfence-peer
	install -D -m 644 -t $(SHARE)/doc/urbd/examples/prometheus dist/prometheus/urbd.rules.yml dist/prometheus/urbd.rules.test.yml
	install -D -m 644 -t $(SHARE)/doc/urbd/examples/grafana dist/grafana/urbd.json

deb: build
	dist/deb/build --binaries $(BUILT) --output target/deb

# From the Debian package of the static program: it runs on any distribution.
rpm:
	rm -rf target/rpm && mkdir -p target/rpm/binaries
	built=$$(dist/release/static) && cp $$built/urbd $$built/urbd-watch target/rpm/binaries/
	dist/release/remapped $(CARGO) build --release --locked -p urbd-lab
	cp $(BUILT)/urbd-lab target/rpm/binaries/
	dist/deb/build --binaries target/rpm/binaries --output target/rpm/deb
	dist/rpm/build --from $$(ls target/rpm/deb/urbd_*.deb) --output target/rpm

static:
	dist/release/static

# All that is published of a version (docs/release.md).
release:
	tests/install release
	dist/release/remapped $(CARGO) build --release --locked $(PROGRAMS)
	static=$$(dist/release/static) && dist/release/build --binaries $(BUILT) --static $$static $(if $(KEY),--key $(KEY))

demo:
	tests/install demo
	$(CARGO) build --release --locked -p urbd
	URBD_BIN=$(abspath $(or $(CARGO_TARGET_DIR),target))/release/urbd demo/$(if $(filter 3,$(NODES)),three,run)

test:
	tests/run all

test-rust:
	tests/run rust

test-python:
	tests/run python $(ARGS)

# All rules that are broken on purpose in a copy (wrong-rules/README.md); `make test` tries some of them.
wrong-rules:
	wrong-rules/run test all

packages:
	tests/install test

bench:
	$(CARGO) build --release --locked -p urbd -p urbd-lab
	tests/install bench
	mkdir -p target/bench
	$(abspath $(or $(CARGO_TARGET_DIR),target))/release/urbd bench all --full --json docs/performance.json \
	  --html target/bench/bench.html --markdown docs/performance.md

bench-resync:
	$(CARGO) build --release --locked -p urbd
	URBD_BIN=$(abspath $(or $(CARGO_TARGET_DIR),target))/release/urbd tests/bench-resync $(ARGS)

sim:
	$(CARGO) run --profile sim --locked -p urbd-sim --features rows -- $(if $(HOURS),--hours $(HOURS) --ledger target/sim/ledger.txt,\
	  $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),2000)))

fuzz:
	fuzz/run $(or $(SECONDS),60)

nemesis:
	tests/install test
	$(CARGO) build --locked -p urbd
	/usr/bin/python3 tests/$(if $(NODES),nemesis_mesh.py --nodes $(NODES),nemesis.py) --rounds $(or $(ROUNDS),10) --seed $(or $(SEED),1)

long:
	tests/install test
	$(CARGO) build --locked -p urbd
	unshare --mount --propagation private /usr/bin/python3 tests/long.py --part $(or $(PART),kills) $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

guests:
	tests/install test
	tests/install guests
	$(CARGO) build --locked -p urbd
	/usr/bin/python3 -m pytest -q -rA --tb=short tests/guests.py $(ARGS)

# Another system than this machine's own, from Debian's archive.
package-test:
	tests/install test
	$(CARGO) build --locked $(PROGRAMS)
	rm -rf target/$(or $(SUITE),trixie)
	mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,udev,dbus,iproute2,procps,e2fsprogs \
	  $(or $(SUITE),trixie) target/$(or $(SUITE),trixie)
	URBD_PACKAGE_SYSTEMS=$(abspath target/$(or $(SUITE),trixie)) /usr/bin/python3 -m pytest -q tests/test_package.py

newcomer:
	tests/install test
	$(CARGO) build --locked -p urbd
	/usr/bin/python3 tests/newcomer.py $(SUITE)

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --locked
