#!/bin/bash
# Drives the kernel's own packet generator (CONFIG_NET_PKTGEN) on one device, for a second machine that has no pollux.
# Usage: kernel-pktgen.sh -i DEV -m DST_MAC -d DST_IP [-s SRC_IP_FIRST[-LAST]] [-p SPORT_FIRST-LAST] [-P DPORT]
#                         [-z BYTES] [-r PPS] [-f FLOWS] [-t THREADS] [-n PACKETS]
# Prints one line: size rate flows threads sent pps. Sizes include the frame's 4 byte checksum.
set -euo pipefail

usage() { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
refuse() { echo "$(basename "$0"): $*" >&2; exit 2; }

dev='' mac='' dst='' src=10.0.1.0-10.0.1.255 sports=10000-10063 dport=9 size=64 rate=0 flows=1000 threads=1 count=1000000
while getopts 'i:m:d:s:p:P:z:r:f:t:n:' o; do
  case $o in
    i) dev=$OPTARG ;; m) mac=$OPTARG ;; d) dst=$OPTARG ;; s) src=$OPTARG ;; p) sports=$OPTARG ;; P) dport=$OPTARG ;;
    z) size=$OPTARG ;; r) rate=$OPTARG ;; f) flows=$OPTARG ;; t) threads=$OPTARG ;; n) count=$OPTARG ;;
    *) usage ;;
  esac
done
if [ -z "$dev" ] || [ -z "$mac" ] || [ -z "$dst" ]; then usage; fi
for number in "$size" "$rate" "$flows" "$threads" "$count" "$dport"; do
  case $number in '' | *[!0-9]*) refuse "$number is no number" ;; esac
done
[ "$count" -gt 0 ] || refuse "-n 0 would never end"
[ "$threads" -gt 0 ] || refuse "-t 0 would send nothing"
if [ "$size" -lt 64 ] || [ "$size" -gt 9018 ]; then refuse "-z $size: 64 to 9018"; fi
[ "$(id -u)" = 0 ] || refuse "must be run as root"
[ -e "/sys/class/net/$dev" ] || refuse "no network device $dev"

pg=/proc/net/pktgen
[ -e $pg/pgctrl ] || modprobe pktgen 2>/dev/null || true
[ -e $pg/pgctrl ] || refuse "this kernel has no pktgen (CONFIG_NET_PKTGEN; module pktgen): use pollux pktgen instead"
[ "$threads" -le "$(find $pg -name 'kpktgend_*' | wc -l)" ] || refuse "-t $threads: more threads than cores"

write() { # file command...
  local file=$pg/$1
  shift
  echo "$*" >"$file" || refuse "$file does not take: $*"
}
cleanup() { echo reset >$pg/pgctrl 2>/dev/null || true; }
trap cleanup EXIT
trap 'exit 130' INT TERM

write pgctrl reset
for ((i = 0; i < threads; i++)); do
  name=$dev@$i
  write "kpktgend_$i" "add_device $name"
  write "$name" "count $((count / threads))"
  write "$name" "pkt_size $((size - 4))"
  write "$name" "delay 0"
  [ "$rate" = 0 ] || write "$name" "ratep $((rate / threads > 0 ? rate / threads : 1))"
  write "$name" "dst_mac $mac"
  write "$name" "dst_min $dst"
  write "$name" "dst_max $dst"
  write "$name" "src_min ${src%-*}"
  write "$name" "src_max ${src#*-}"
  write "$name" "udp_src_min ${sports%-*}"
  write "$name" "udp_src_max ${sports#*-}"
  write "$name" "udp_dst_min $dport"
  write "$name" "udp_dst_max $dport"
  write "$name" "flag UDPCSUM"
  write "$name" "flag QUEUE_MAP_CPU"
  if [ "$flows" -gt 0 ]; then
    write "$name" "flows $(((flows + threads - 1) / threads))"
    write "$name" "flowlen 1"
    write "$name" "flag FLOW_SEQ"
  fi
done
write pgctrl start

sent=0 pps=0
for ((i = 0; i < threads; i++)); do
  file=$pg/$dev@$i
  grep -q '^Result: OK' "$file" || refuse "$dev@$i: $(grep '^Result:' "$file" || echo 'no result')"
  n=$(sed -n 's/.*pkts-sofar: *\([0-9]*\).*/\1/p' "$file")
  r=$(sed -n 's/^ *\([0-9]*\)pps .*/\1/p' "$file")
  sent=$((sent + n)) pps=$((pps + r))
done
echo "$size $rate $flows $threads $sent $pps"
