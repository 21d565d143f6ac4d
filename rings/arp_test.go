package rings

import (
	"bytes"
	"testing"
)

func TestAnswerARPDoesAsTheProgramDoes(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	mac := [6]byte(ours)
	for name, c := range map[string]struct {
		frame []byte
		want  bool
	}{
		"request":       {ether(bcast, 0x0806, arpRequest(remote, pool)), true},
		"padded":        {append(ether(bcast, 0x0806, arpRequest(remote, pool)), make([]byte, 18)...), true},
		"probe":         {ether(bcast, 0x0806, arpRequest(0, pool)), true},
		"announcement":  {ether(bcast, 0x0806, arpRequest(pool, pool)), false},
		"truncated":     {ether(bcast, 0x0806, arpRequest(remote, pool))[:41], false},
		"not ARP":       {ether(bcast, 0x0800, arpRequest(remote, pool)), false},
		"not a request": {ether(bcast, 0x0806, append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, arpRequest(remote, pool)[8:]...)), false},
		"not Ethernet":  {ether(bcast, 0x0806, append([]byte{0, 6, 8, 0, 6, 4, 0, 1}, arpRequest(remote, pool)[8:]...)), false},
		"empty":         {nil, false},
	} {
		got := append([]byte{}, c.frame...)
		if AnswerARP(got, &mac) != c.want {
			t.Errorf("%s: not %v", name, c.want)
		}
		if len(c.frame) == 0 {
			continue
		}
		verdict, _, out := s.ask(c.frame)
		if name != "not ARP" && (verdict == xdpTX) != c.want {
			t.Errorf("%s: the program's verdict is %d", name, verdict)
		}
		if !bytes.Equal(got, out) {
			t.Errorf("%s: the worker makes\n% x, the program\n% x", name, got, out)
		}
	}
	frame := ether(bcast, 0x0806, arpRequest(remote, pool))
	if n := testing.AllocsPerRun(100, func() { AnswerARP(frame, &mac) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
