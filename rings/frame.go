package rings

// Frame names a piece of UMEM that holds a packet. Its layout is that of the kernel's struct xdp_desc.
type Frame struct {
	Addr    uint64 // offset of the first byte of the packet in the UMEM
	Len     uint32 // length of the packet in bytes
	Options uint32 // XDP_PKT_CONTD and friends
}
