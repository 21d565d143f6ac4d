#!/bin/bash
# Sweeps rates, packet sizes and flow counts with kernel-pktgen.sh and prints a table for a spreadsheet or plot.
# Usage: RATES="0 100000" SIZES="64 594 1518" FLOWS="1 1000 50000" sweep.sh -i DEV -m DST_MAC -d DST_IP [its other flags]
# A rate of 0 is as fast as can be. Every run is bounded by -n packets (default 1000000).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -gt 0 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
read -r -a rates <<<"${RATES:-0}"
read -r -a sizes <<<"${SIZES:-64 594 1518}"
read -r -a flow_counts <<<"${FLOWS:-1 1000 50000}"

echo "size rate flows threads sent pps"
for size in "${sizes[@]}"; do
  for flows in "${flow_counts[@]}"; do
    for rate in "${rates[@]}"; do
      "$here/kernel-pktgen.sh" "$@" -z "$size" -f "$flows" -r "$rate"
    done
  done
done
