package natlog

import (
	"context"
	"io"
	"net"
	"testing"

	"pollux/nat"
)

// BenchmarkSend is what a record costs the sender by each way: encoding, and the system calls of a socket on this machine
// whose receiver takes all (TCP) or nothing (UDP).
func BenchmarkSend(b *testing.B) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer tcp.Close()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go io.Copy(io.Discard, c)
		}
	}()
	e := encoderOf(b)
	for name, c := range map[string]*collector{
		"syslog-udp": {target: Target{"udp", udp.LocalAddr().String()}, encoder: &syslogDatagrams{syslogEncoder: e}},
		"syslog-tcp": {target: Target{"tcp", tcp.Addr().String()}, encoder: &syslogStream{syslogEncoder: e}},
		"ipfix-udp":  {target: Target{"udp", udp.LocalAddr().String()}, encoder: newIPFIXEncoder(1)},
	} {
		b.Run(name, func(b *testing.B) {
			c.queue, c.end = newQueue(1), context.Background()
			stop := make(chan struct{})
			if !c.connect(stop) {
				b.Fatal("no connection")
			}
			defer c.close()
			list := make([]record, batchRecords)
			for i := range list {
				list[i] = dns(nat.EventSessionDelete)
			}
			b.ResetTimer()
			for i := 0; i < b.N; i += len(list) {
				if left := c.send(list, stop); left > 0 {
					b.Fatalf("%d records not sent", left)
				}
			}
		})
	}
}
