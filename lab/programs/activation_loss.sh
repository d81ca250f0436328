#!/usr/bin/env bash
# Measures the cost of int8 activations of quantized rows: perplexity of packs of each encoding and of their dequantized
# references, which hold the same weights as float32 and compute with float activations. Prints a Markdown table.
# usage: activation_loss.sh MODEL_DIR TEXT [TOKENS]   (built programs: build/release; about 30 s an encoding)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
model="$1" text="$2" tokens="${3:-51200}"
bin="$root/build/release/bin"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export SLUICE_RUNTIME_DIR="$work/runtime"

ppl() {
  "$bin/sluice" perplexity --pack "$1" --text "$text" --max-tokens "$tokens" --kv f32 --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["ppl"])'
}

echo "| expert weights | int8 activations | float activations | loss % |"
echo "|---|---|---|---|"
for bits in q8 q4 q3 q2; do
  "$bin/sluice" pack "$model" --out "$work/$bits" --bits "$bits" --dense-bits bf16 --json > "$work/log"
  "$root/build/release/bench/float_reference" "$model" "$work/$bits" "$work/reference"
  "$bin/sluice" pack "$work/reference" --out "$work/float" --recipe "$root/lab/docs/quality/f32.toml" --json > "$work/log"
  python3 - "$bits" "$(ppl "$work/$bits")" "$(ppl "$work/float")" << 'PRINT'
import sys
bits, ours, reference = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
print(f"| {bits} g64 | {ours:.5f} | {reference:.5f} | {100 * (ours / reference - 1):+.4f} |")
PRINT
  rm -rf "$work/$bits" "$work/reference" "$work/float"
done
