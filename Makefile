# One command per job, the same here and in CI. Variables: SECONDS and SEED for `sim`, DEMO_SIZE and DEMO_RUNTIME for
# `demo`, CLUSTER_SIZE and CLUSTER_SECONDS for `cluster`, BENCH_SIZE, BENCH_RUNTIME and BENCH_REPEATS for `bench` and
# `bench-cluster`, `bench-snapshots`, `bench-compression`, `bench-dedup`, `bench-cache` and `bench-disturb`, PARTS for `test` (see scripts/test.sh --help),
# DESTDIR for `install` and `uninstall`.

# make takes SECONDS from the environment only when it was exported; bash's own variable is not.
SECONDS ?= 60

.PHONY: demo cluster test sim bench bench-cluster bench-snapshots bench-compression bench-dedup bench-cache bench-disturb build install uninstall clean

demo:
	@scripts/demo.sh

cluster:
	@scripts/cluster-demo.sh

test:
	@scripts/test.sh $(PARTS)

sim:
	@scripts/ensure-tools.sh build
	@. scripts/cargo-path.sh && cargo run --release --quiet -p weft-sim -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(PLAN),--plan $(PLAN))

bench:
	@scripts/ensure-tools.sh test >&2
	@scripts/bench

bench-cluster:
	@scripts/bench-cluster

bench-snapshots:
	@scripts/bench-snapshots

bench-compression:
	@scripts/bench-compression

bench-dedup:
	@scripts/bench-dedup

bench-cache:
	@scripts/bench-cache

bench-disturb:
	@scripts/ensure-tools.sh test >&2
	@scripts/bench-disturb

build:
	@scripts/ensure-tools.sh build
	@. scripts/cargo-path.sh && cargo build --release

install:
	@scripts/install.sh

uninstall:
	@scripts/install.sh --undo

clean:
	rm -rf target bench-out .weft-demo .weft-cluster
