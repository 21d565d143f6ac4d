// Package rings is pollux's own AF_XDP binding: UMEM, frames, the four rings, sockets, and the XDP program that decides
// whose a packet is. It knows nothing of NAT.
//
// # The life of a frame
//
// A frame (one chunk of the UMEM) is always in exactly one place:
//
//	Pool ──Service──> fill ring ──kernel──> RX ring ──Receive──> worker's burst ──Transmit──> TX ring ──kernel──┐
//	  ^                                                           │ dropped: Pool.Put                         sends
//	  └──────────────────────────────Service──────────────────── completion ring <──────────────────────────────┘
//
// A Socket keeps a set of the chunks it has handed to the kernel and not got back, so that Close can return every one of
// them, and counts them by place (Frames), so that a leak of a single frame shows. A build with the tag framecheck stops
// at the first frame that would be in two places.
//
// # The shared words
//
// Each ring is a page-aligned mapping that the kernel and one worker share: two free-running 32-bit indexes, a word of
// flags, and a power of two of slots. An index is written by one side only. Whoever writes an index has finished with
// the slots before it; whoever reads the index may touch them. Every shared word is read and written with sync/atomic
// (sequentially consistent, which is stronger than the acquire and release the pairs need), once per burst; the worker's
// own index has a plain copy beside the ring, so that it is never read back.
//
//	row  word                 writer  reader  order             pairs with
//	P1   fill.producer        worker  kernel  store-release     kernel's load-acquire before it reads the addresses
//	P2   tx.producer          worker  kernel  store-release     kernel's load-acquire before it reads the descriptors
//	C1   rx.consumer          worker  kernel  store-release     kernel's load before it writes a slot again: we have copied it
//	C2   completion.consumer  worker  kernel  store-release     likewise
//	K1   rx.producer          kernel  worker  load-acquire      kernel's store-release after it wrote descriptor and packet
//	K2   completion.producer  kernel  worker  load-acquire      kernel's store-release after it has done with the packet
//	K3   tx.consumer          kernel  worker  load-acquire      kernel's store-release after it read the descriptors; read
//	                                                            after a kick only, to see whether the ring was drained
//	F1   tx.flags             kernel  worker  load after P2     kernel sets NEED_WAKEUP, then looks at P2 once more: one of
//	                                                            the two sees the other, so no packet waits for ever
//	F2   fill.flags           kernel  worker  load after P1     likewise with P1
//
// fill.consumer is never read: a worker fills no more frames than it has received back (row K1 tells it), and the ring has
// room for all that it gave. For the same reason Transmit needs no tx.consumer: it counts completions.
//
// Between two workers there is no kernel: see SPSC for the two words of its rings.
//
// # Around a socket
//
// ProbeKernel and ProbeDevice say before a start what is missing. A UMEM is made first, a Pool of its frames for each
// worker; ChooseMode, then OpenSocket for each port and queue; Tables for all ports and one Program for each, SetSocket,
// Service (which fills the ring), Attach. Backwards to stop: Program.Close, Socket.Close, Tables.Close, UMEM.Close.
//
// # Who may call what
//
// Receive, Transmit, Service, Pending, Frames and Counters belong to the socket's one worker. FD, Statistics and the
// getters are for any goroutine while the socket is open. OpenSocket and Close are control plane.
package rings
