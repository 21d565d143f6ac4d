package rings

import (
	"testing"

	"github.com/cilium/ebpf"
)

// What the XDP program costs on a packet whose bytes are in the cache, by the way it decides.
func BenchmarkProgram(b *testing.B) {
	s := newSteering(b, ProgramOptions{Number: 3})
	s.own(shared, 1, 4000, 254)
	s.own(shared, 1, 4001, 1)
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"outbound", toUs(ip(host, remote, 17, 1, 0, l4(1, 2)))},
		{"kernel", toUs(ip(remote, host, 17, 1, 0, l4(1, 2)))},
		{"pool-address", toUs(ip(remote, pool, 17, 1, 0, l4(53, 4000)))},
		{"shared-address-kernel-port", toUs(ip(remote, shared, 17, 1, 0, l4(53, 4000)))},
		{"shared-address-worker-port", toUs(ip(remote, shared, 17, 1, 0, l4(53, 4001)))},
		{"foreign-MAC", ether(theirs, 0x0800, ip(remote, shared, 17, 1, 0, l4(53, 4001)))},
	} {
		b.Run(c.name, func(b *testing.B) {
			if _, err := s.program.Run(&ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, 256), Repeat: uint32(b.N)}); err != nil {
				b.Fatal(err)
			}
		})
	}
}
