package rings

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Punt gives frames to the gateway's own stack as if they had just arrived on a netdev: it has the kernel run an XDP
// program that passes everything over them (BPF_PROG_TEST_RUN with live frames, Linux 5.18). One frame takes about 20 us,
// so it belongs to a control goroutine and behind a rate limit.
type Punt struct{ program *ebpf.Program }

// PuntBytesMax is the longest frame that can be punted: one page less what the kernel keeps in front and behind.
const PuntBytesMax = 3400

// NewPunt loads the program.
func NewPunt() (*Punt, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	var obj struct {
		Program *ebpf.Program `ebpf:"punt"`
	}
	if err := spec.LoadAndAssign(&obj, nil); err != nil {
		return nil, explainBPF("punt program", err)
	}
	return &Punt{obj.Program}, nil
}

// Send delivers one frame, Ethernet header first, as received on the netdev with that index in the calling thread's network
// namespace. The netdev must have an XDP program attached. The frame is copied.
func (p *Punt) Send(ifindex int, frame []byte) error {
	if len(frame) > PuntBytesMax {
		return fmt.Errorf("punt: a frame of %d bytes is too long, %d are possible", len(frame), PuntBytesMax)
	}
	var context [24]byte // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
	binary.NativeEndian.PutUint32(context[4:], uint32(len(frame)))
	binary.NativeEndian.PutUint32(context[12:], uint32(ifindex))
	_, err := p.program.Run(&ebpf.RunOptions{Data: frame, Context: context, Repeat: 1, BatchSize: 1, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("punt: interface %d is gone or has no XDP program attached: %w", ifindex, unwrapAll(err))
	}
	if err != nil {
		return explainBPF("punt", err)
	}
	return nil
}

// Close unloads the program.
func (p *Punt) Close() error { return p.program.Close() }
