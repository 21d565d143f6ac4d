package integration

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v3"

	"pollux/internal/lab"
)

// changeRequest is RFC 5780's CHANGE-REQUEST: the answer is to come from the other address, the other port, or both.
const changeRequest stun.AttrType = 0x0003

const (
	changeAddr = 0x04
	changePort = 0x02
)

// stunServer answers on two addresses and two ports of an outside host.
type stunServer struct {
	addrs [2]netip.Addr
	ports [2]uint16
	conns [2][2]*net.UDPConn // [address][port]
}

func serveSTUN(t *testing.T, h *lab.Host) *stunServer {
	t.Helper()
	s := &stunServer{addrs: [2]netip.Addr{h.Addr, h.Alt}, ports: [2]uint16{3478, 3479}}
	for a := range s.addrs {
		for p := range s.ports {
			c, err := h.ListenPacket("udp4", at(s.addrs[a], s.ports[p]))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			s.conns[a][p] = c.(*net.UDPConn)
		}
	}
	for a := range s.addrs {
		for p := range s.ports {
			go s.serve(a, p)
		}
	}
	return s
}

func (s *stunServer) serve(a, p int) {
	b := make([]byte, 2048)
	for {
		n, from, err := s.conns[a][p].ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		req := &stun.Message{Raw: append([]byte(nil), b[:max(n, 0)]...)}
		if err != nil || req.Decode() != nil {
			continue
		}
		by, port := a, p
		if v, err := req.Get(changeRequest); err == nil && len(v) == 4 {
			if v[3]&changeAddr != 0 {
				by = 1 - by
			}
			if v[3]&changePort != 0 {
				port = 1 - port
			}
		}
		resp, err := stun.Build(req, stun.BindingSuccess,
			&stun.XORMappedAddress{IP: from.Addr().AsSlice(), Port: int(from.Port())},
			&stun.OtherAddress{IP: s.addrs[1-a].AsSlice(), Port: int(s.ports[1-p])})
		if err == nil {
			s.conns[by][port].WriteToUDPAddrPort(resp.Raw, from)
		}
	}
}

// ask sends a binding request and returns the mapped address that the answer tells.
func (s *stunServer) ask(c *net.UDPConn, a, p int, change byte) (netip.AddrPort, error) {
	parts := []stun.Setter{stun.TransactionID, stun.BindingRequest}
	if change != 0 {
		parts = append(parts, stun.RawAttribute{Type: changeRequest, Value: []byte{0, 0, 0, change}})
	}
	req, err := stun.Build(parts...)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if _, err := c.WriteToUDPAddrPort(req.Raw, netip.AddrPortFrom(s.addrs[a], s.ports[p])); err != nil {
		return netip.AddrPort{}, err
	}
	c.SetReadDeadline(time.Now().Add(400 * time.Millisecond))
	b := make([]byte, 2048)
	for {
		n, err := c.Read(b)
		if err != nil {
			return netip.AddrPort{}, err
		}
		resp := &stun.Message{Raw: append([]byte(nil), b[:n]...)}
		if resp.Decode() != nil || resp.TransactionID != req.TransactionID {
			continue
		}
		var mapped stun.XORMappedAddress
		if err := mapped.GetFrom(resp); err != nil {
			return netip.AddrPort{}, err
		}
		ip, _ := netip.AddrFromSlice(mapped.IP)
		return netip.AddrPortFrom(ip.Unmap(), uint16(mapped.Port)), nil
	}
}

// behaviour runs RFC 5780's tests (sections 4.3 and 4.4) and names mapping and filtering as the configuration does.
func (s *stunServer) behaviour(h *lab.Host) (mapping, filtering string, err error) {
	socket := func() (*net.UDPConn, error) {
		c, err := h.ListenPacket("udp4", at(h.Addr, 0))
		if err != nil {
			return nil, err
		}
		return c.(*net.UDPConn), nil
	}
	c, err := socket()
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	first, err := s.ask(c, 0, 0, 0)
	if err != nil {
		return "", "", fmt.Errorf("test I: %w", err)
	}
	if first.Addr() == h.Addr {
		return "", "", fmt.Errorf("test I: not translated: %s", first)
	}
	second, err := s.ask(c, 1, 0, 0)
	if err != nil {
		return "", "", fmt.Errorf("mapping test II: %w", err)
	}
	third, err := s.ask(c, 1, 1, 0)
	if err != nil {
		return "", "", fmt.Errorf("mapping test III: %w", err)
	}
	switch {
	case first == second && second == third:
		mapping = "endpoint-independent"
	case second == third:
		mapping = "address-dependent"
	default:
		mapping = "endpoint-dependent"
	}
	// Filtering is asked from a fresh socket, whose mapping has contacted one endpoint only.
	f, err := socket()
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	if _, err := s.ask(f, 0, 0, 0); err != nil {
		return "", "", fmt.Errorf("filtering test I: %w", err)
	}
	_, both := s.ask(f, 0, 0, changeAddr|changePort)
	_, port := s.ask(f, 0, 0, changePort)
	switch {
	case both == nil:
		filtering = "endpoint-independent"
	case port == nil:
		filtering = "address-dependent"
	default:
		filtering = "address-and-port-dependent"
	}
	return mapping, filtering, nil
}

// A STUN client behind the gateway sees the behaviour that was configured.
func TestSTUNClientSeesTheConfiguredBehaviour(t *testing.T) {
	l := newLab(t, lab.Options{})
	server := serveSTUN(t, l.Outside[0])
	sniff(t, l)
	for _, c := range []struct{ mapping, filtering string }{
		{"endpoint-independent", "endpoint-independent"},
		{"endpoint-independent", "address-dependent"},
		{"endpoint-independent", "address-and-port-dependent"},
		{"address-dependent", "address-and-port-dependent"},
		{"endpoint-dependent", "address-and-port-dependent"},
	} {
		t.Run(c.mapping+"/"+c.filtering, func(t *testing.T) {
			// Kept local ports would make every mapping look endpoint-independent.
			run(t, l, "--nat-mapping-udp", c.mapping, "--nat-filtering-udp", c.filtering, "--nat-same-ports=false")
			mapping, filtering, err := server.behaviour(l.Inside[0])
			if err != nil || mapping != c.mapping || filtering != c.filtering {
				t.Errorf("the client sees mapping %q, filtering %q, %v", mapping, filtering, err)
			}
		})
	}
}
