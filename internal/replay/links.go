package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
)

// link is one element of --show-links.
type link struct {
	Proto     string `json:"proto"` // tcp, udp, icmp or a number
	Local     string `json:"local"` // addr:port, ICMP addr:id, other protocols addr
	Alias     string `json:"alias"`
	Remote    string `json:"remote"`
	State     string `json:"state"`
	ExpiresIn uint32 `json:"expires_in"` // seconds, rounded up
	Worker    int    `json:"worker"`
}

// linkSlice is how many links are asked of the shard at a time.
const linkSlice = 1024

func writeLinks(w io.Writer, shards []*nat.Shard) error {
	list := struct {
		Links []link `json:"links"`
	}{Links: []link{}}
	for _, shard := range shards {
		for cursor := uint32(0); ; {
			cursor = shard.Links(cursor, linkSlice, func(l nat.LinkInfo) bool {
				list.Links = append(list.Links, describe(&l))
				return true
			})
			if cursor == 0 {
				break
			}
		}
	}
	return json.NewEncoder(w).Encode(&list)
}

func describe(l *nat.LinkInfo) link {
	return link{
		Proto:     protocol(l.Proto),
		Local:     endpoint(l.Proto, l.Local.Addr, l.Local.Port),
		Alias:     endpoint(l.Proto, l.Alias.Addr, l.Alias.Port),
		Remote:    remote(l),
		State:     l.State.String(),
		ExpiresIn: (l.ExpiresIn + clock.PerSecond - 1) / clock.PerSecond,
		Worker:    l.Worker,
	}
}

func protocol(p uint8) string {
	switch p {
	case packet.ProtoTCP:
		return "tcp"
	case packet.ProtoUDP:
		return "udp"
	case packet.ProtoICMP:
		return "icmp"
	}
	return strconv.Itoa(int(p))
}

func endpoint(proto uint8, a packet.Addr, port uint16) string {
	switch proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP:
		return fmt.Sprintf("%v:%d", a, port)
	}
	return a.String()
}

// remote prints the peer. An ICMP query has one id only: the peer answers to the one that it sees, the alias's.
func remote(l *nat.LinkInfo) string {
	port := l.Remote.Port
	if l.Proto == packet.ProtoICMP && port == 0 {
		port = l.Alias.Port
	}
	return endpoint(l.Proto, l.Remote.Addr, port)
}
