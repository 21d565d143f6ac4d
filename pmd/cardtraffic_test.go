package pmd

import (
	"testing"

	"pollux/internal/packet"
	"pollux/nat"
)

// TestCardsMakeHandOversRare drives flows through four workers whose queues get what two cards with different keys would put
// there. By itself the translator hands over three of four packets; with steer: flow and what the cards tell, none; with
// steer: host, which no card knows, none of the answers.
func TestCardsMakeHandOversRare(t *testing.T) {
	const workers, flows = 4, 300
	in, out := cardState(workers, 128), cardState(workers, 512)
	in.Key = append([]byte(nil), testKey...)
	for i := range in.Key {
		in.Key[i] ^= byte(31*i + 7)
	}
	queues := []int{0, 1, 2, 3}
	for _, c := range []struct {
		name        string
		flow, cards bool
		request     [2]int // packets handed over, from and to
		answer      [2]int
	}{
		{"flow", true, true, [2]int{0, 0}, [2]int{0, 0}},
		{"flow, cards that do not tell", true, false, [2]int{flows / 2, flows}, [2]int{flows / 2, flows}},
		{"host", false, true, [2]int{flows / 2, flows}, [2]int{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMeshRig(t, meshOptions{workers: workers, flow: c.flow, rules: func(r *nat.Rules) { r.SamePorts = false }})
			if c.cards {
				card, err := newCardSteering(&in, in.TCP4, queues)
				if err != nil {
					t.Fatal(err)
				}
				m.steering.cards[0] = card
				for k, w := range m.w {
					tcp, udp, _ := affinities(&out, queues[k])
					if err := setAffinities(w.nat, tcp, udp); err != nil {
						t.Fatal(err)
					}
				}
			}
			handed := func() (n int) {
				for _, w := range m.w {
					n += int(w.c.handedOut)
				}
				return n
			}
			var hosts [workers]bool
			requests, answers := 0, 0
			for i := range flows {
				b := fromInside(host1+packet.Addr(i%50), uint16(2000+7*i))
				before := handed()
				m.push(queueOf(&in, nat.Remote{Addr: b.Src, Port: b.SrcPort}, nat.Alias{Addr: b.Dst, Port: b.DstPort}), inPort, syn(b))
				m.settle()
				requests += handed() - before
				_, h := m.one(outPort)
				back := fromOutside(h.Src, h.SrcPort)
				back.Src, back.SrcPort = h.Dst, h.DstPort
				back.Flags = packet.TCPSyn | packet.TCPAck
				before = handed()
				queue := queueOf(&out, nat.Remote{Addr: h.Dst, Port: h.DstPort}, nat.Alias{Addr: h.Src, Port: h.SrcPort})
				m.push(queue, outPort, back.TCP(nil))
				m.settle()
				answers += handed() - before
				if f, h := m.one(inPort); h.Dst != b.Src || h.DstPort != b.SrcPort {
					t.Fatalf("the answer went to %v:%d", h.Dst, h.DstPort)
				} else {
					hosts[f.worker] = true
				}
			}
			if requests < c.request[0] || requests > c.request[1] || answers < c.answer[0] || answers > c.answer[1] {
				t.Errorf("%d of %d requests and %d answers were handed over, want %v and %v", requests, flows, answers, c.request, c.answer)
			}
			if hosts != [workers]bool{true, true, true, true} {
				t.Errorf("not every worker had a flow: %v", hosts)
			}
			if m.links() != flows {
				t.Errorf("%d links", m.links())
			}
		})
	}
}

// Benchmark/owner-of-flow: who owns an outbound packet with steer: flow, by the seed or as a card picks.
func BenchmarkOwnerOfFlow(b *testing.B) {
	in := cardState(4, 512)
	card, err := newCardSteering(&in, in.TCP4, []int{0, 1, 2, 3})
	if err != nil {
		b.Fatal(err)
	}
	m := newMeshRig(b, meshOptions{workers: 4, flow: true})
	var burst [32]nat.Packet
	for i := range burst {
		burst[i].Data, burst[i].Side = syn(fromInside(host1+packet.Addr(i*7), uint16(3000+i*13))), nat.Inside
		packet.Parse(burst[i].Data, &burst[i].H)
	}
	for _, c := range []struct {
		name string
		card *cardSteering
	}{{"seed", nil}, {"card", card}} {
		b.Run(c.name, func(b *testing.B) {
			m.steering.cards[0] = c.card
			var sum uint32
			for i := 0; i < b.N; i += len(burst) {
				for k := range burst {
					to, _ := m.steering.owner(&burst[k])
					sum += to
				}
			}
			sink = sum
		})
	}
}
