#!/bin/sh
# What `make fuzz` does: drives the targets of crates/weft-fuzz by coverage, with libFuzzer, on the stable compiler. The time is
# shared out evenly. Says for each target how much coverage it began and ended with. What breaks a target is put
# into its corpus under the name of what it is, and the exit is 1.
#
# usage: scripts/fuzz.sh [--minutes N] [--keep] [TARGET...]
#   --minutes N  for all targets together; 10 if not given
#   --keep       afterwards put what reaches something new into the corpus, the shortest inputs first, 6 KiB a target
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
minutes=10 keep=no targets=''
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=${2:-}; shift; [ $# -eq 0 ] || shift ;;
    --keep) keep=yes; shift ;;
    -*) echo "usage: scripts/fuzz.sh [--minutes N] [--keep] [TARGET...]" >&2; exit 2 ;;
    *) targets="$targets $1"; shift ;;
  esac
done
case $minutes in
  '' | *[!0-9]*) echo "error: '$minutes' is no number of minutes" >&2; exit 2 ;;
esac
if [ -z "$targets" ]; then
  targets=$(sed -n 's/^ *Target::new("\([a-z-]*\)".*/\1/p' crates/weft-fuzz/src/target.rs)
fi
scripts/setup.sh --for fuzz

# The counters of LLVM's coverage pass, which is part of every compiler: no nightly is needed. With a target named,
# build scripts and macros are built without them. Overflow and broken assumptions are to be noticed.
triple=$(scripts/with-cargo.sh -vV | sed -n 's/^host: //p')
work=${CARGO_TARGET_DIR:-$top/target}/fuzz
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
# Libraries are built only if they change; what is optimised runs ten times as many inputs.
CARGO_TARGET_DIR="$work/build" RUSTFLAGS="$flags" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 \
  scripts/with-cargo.sh build --release --locked --target "$triple" -p weft-fuzz --features engine
engine="$work/build/$triple/release/weft-fuzz-engine"

count=$(echo "$targets" | wc -w)
seconds=$((minutes * 60 / count))
[ "$seconds" -ge 1 ] || seconds=1
broken=0
printf '%-18s %9s %9s %9s %10s\n' TARGET COVERAGE 'AT END' INPUTS RUNS
for target in $targets; do
  corpus="crates/weft-fuzz/corpus/$target" found="$work/corpus/$target" breaks="$work/breaks/$target" log="$work/$target.log"
  mkdir -p "$corpus" "$found" "$breaks"
  rm -f "$breaks"/*
  WEFT_FUZZ_TARGET="$target" WEFT_FUZZ_SEEDS="$found" "$engine" -max_total_time="$seconds" -max_len=4096 -timeout=30 \
    -report_slow_units=1000 -rss_limit_mb=4096 -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$breaks/" \
    "$found" "$corpus" >"$log" 2>&1 || true
  covers() { sed -n 's/^#[0-9]*[[:space:]]*[A-Z].* cov: \([0-9]*\) .*/\1/p' "$log" | "$1" -n 1; }
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%-18s %9s %9s %9s %10s\n' "$target" "$(covers head)" "$(covers tail)" \
    "$(find "$found" -type f | wc -l)" "${runs:-?}"
  for input in "$breaks"/*; do
    [ -f "$input" ] || continue
    kept="$corpus/$(basename "$input" | cut -c 1-18)"
    cp "$input" "$kept"
    echo "  does not stand $kept; see $log" >&2
    broken=1
  done
  if [ "$keep" = yes ] && [ "$broken" = 0 ]; then
    merged="$work/merged/$target"
    rm -rf "$merged"; mkdir -p "$merged"
    WEFT_FUZZ_TARGET="$target" "$engine" -merge=1 -max_len=2048 "$merged" "$corpus" "$found" >"$log.merge" 2>&1
    find "$corpus" -type f ! -name '*-*' -delete
    total=0
    for input in $(find "$merged" -type f -printf '%s %p\n' | sort -n | cut -d ' ' -f 2); do
      total=$((total + $(wc -c <"$input")))
      [ "$total" -le 6144 ] || break
      cp "$input" "$corpus/$(basename "$input" | cut -c 1-12)"
    done
  fi
  rmdir "$corpus" 2>/dev/null || true
done
exit "$broken"
