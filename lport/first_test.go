package lport

import (
	"math/rand/v2"
	"testing"

	"pollux/internal/packet"
)

// The first try gives what the whole search gives: two spaces of one seed, of which one always searches, agree on every port from
// the first to the last, at ranges whose ends lie anywhere in a word.
func TestFirstTry(t *testing.T) {
	peer := Peer{remote, 443}
	for _, span := range [][2]uint16{{1024, 65535}, {1000, 1003}, {60001, 60200}, {4095, 8193}, {0, 65535}, {63, 64}, {1000, 1100}, {1023, 1024}} {
		for _, shared := range []bool{false, true} {
			var spaces [2]*Space
			var used [2][65536]bool
			for i := range spaces {
				spaces[i] = newSpace(t, nil, func(o *Options) {
					o.Low, o.High, o.SamePorts = span[0], span[1], true
					o.InUse = func(_ packet.Addr, _ Row, port uint16, p Peer) bool { return p == peer && used[i][port] }
				})
			}
			spaces[1].simple = false
			rng := rand.New(rand.NewPCG(uint64(span[0]), uint64(span[1])))
			var list []uint16
			ports := int(span[1]) - int(span[0]) + 1
			side := ports // when those on the wanted one's side of 1024 are used up, the two draw differently
			if span[0] < wellKnown && span[1] >= wellKnown {
				side = int(span[1]) - wellKnown + 1
			}
			for step := range 4 * ports {
				if side < ports && len(list) == side {
					break
				}
				if len(list) > 0 && step >= 2*ports && rng.IntN(2) == 0 {
					k := rng.IntN(len(list))
					port := list[k]
					list[k] = list[len(list)-1]
					list = list[:len(list)-1]
					for i, s := range spaces {
						s.Release(alias1, RowTCP, port, host1, peer, 0)
						used[i][port] = false
					}
					continue
				}
				var got [2]uint16
				var err [2]error
				seed := [32]byte{byte(step), byte(step >> 8), byte(step >> 16)}
				for i, s := range spaces { // always the same number is wanted: only that makes a conflict, which costs first its turn
					s.rng.Seed(seed) // a try in vain draws once more
					s.half = 0
					r := &Request{Alias: alias1, Row: RowTCP, Host: host1, Want: span[1]}
					if shared {
						got[i], err[i] = s.Toward(r, peer)
					} else {
						got[i], err[i] = s.Exclusive(r)
					}
				}
				if got[0] != got[1] || err[0] != err[1] {
					t.Fatalf("%v shared %v, step %d: %d %v, by the whole search %d %v", span, shared, step, got[0], err[0], got[1], err[1])
				}
				if full := len(list) == ports; full != (err[0] != nil) {
					t.Fatalf("%v shared %v: %d of %d ports in use: %v", span, shared, len(list), ports, err[0])
				}
				if err[0] == nil {
					list = append(list, got[0])
					used[0][got[0]], used[1][got[0]] = true, true
				}
			}
			a, b := spaces[0].Stats(), spaces[1].Stats()
			if a.Given != b.Given || a.Refused != b.Refused || a.Caches != b.Caches || len(a.Rows) != len(b.Rows) || a.Rows[0] != b.Rows[0] {
				t.Fatalf("%v shared %v: %+v, by the whole search %+v", span, shared, a, b)
			}
		}
	}
}
