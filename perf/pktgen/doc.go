// Package pktgen makes test traffic and judges what arrives. A generator sends packets that bear a stamp (stream, sequence
// number, time) and have right checksums; a sink counts loss, reordering and duplicates, and records latency.
//
// Both come twice:
//
//   - AFXDP runs on the very rings of the gateway, with a thread for each queue, on any netdev.
//   - Kernel writes and redirects packets inside the kernel (live frames of BPF_PROG_TEST_RUN) and counts at tc ingress. It
//     costs a fraction of AF_XDP in copy mode, so that one core can outrun a gateway on another. It needs Linux 6.6 and a
//     device that takes redirected frames; for a veth that means GRO or an XDP program at its other end.
//
// Times are CLOCK_MONOTONIC in nanoseconds, so latency means something on one machine only. Sizes are those of Ethernet
// frames with their checksum (64 to 1518), as in RFC 2544; throughput counts them the same way.
package pktgen
