// Package lab measures pollux beside what else could stand in its place, on one machine: each peer is the gateway of an
// equal set of network namespaces, and all get the same packets from the same generator into the same sink, in turn,
// several rounds long.
//
//	core 0: generator, end hosts                    core 1: everything of the gateway
//	┌─────────────┐ veth  ┌──────────────────────────────────────────┐ veth  ┌──────────────┐
//	│ inside host ├───────┤ eth1   pollux | l2fwd | kernel | nft |   ├───────┤ outside host │
//	│ generator   │       │        iptables                     eth0 │       │ sink         │
//	└─────────────┘       └──────────────────────────────────────────┘       └──────────────┘
//
// Sequential runs on a shared machine say nothing: the same peer varies by a factor of two within minutes. Ratios to
// another peer in the same round vary by a few percent, and are what to read.
//
// NAPI of the gateway's devices runs in kernel threads on the gateway's core at FIFO 10, workers of AF_XDP peers there as
// well at FIFO 11, asleep while there is nothing to do. So a peer has one core for all that it does, the kernel's share
// included. The end hosts finish checksums and cut segments themselves: the same frames go through every peer.
package lab
