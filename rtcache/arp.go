package rtcache

import (
	"encoding/binary"

	"pollux/internal/packet"
)

// AnnouncementLen is the length of an ARP frame without padding.
const AnnouncementLen = 42

// Announcement writes an ARP announcement (RFC 5227 2.3: a broadcast request whose sender and target are the address
// announced) into frame, which has room for AnnouncementLen bytes, and returns its length. Send one per pool address
// that OnLinkPort finds, at start and when the port's MAC changes: neighbours may hold an older owner's.
func Announcement(frame []byte, mac [6]byte, a packet.Addr) int {
	b := (*[AnnouncementLen]byte)(frame)
	copy(b[0:], "\xff\xff\xff\xff\xff\xff")
	copy(b[6:], mac[:])
	copy(b[12:], "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01") // ARP; Ethernet, IPv4, lengths 6 and 4; request
	copy(b[22:], mac[:])
	binary.BigEndian.PutUint32(b[28:], uint32(a))
	copy(b[32:], "\x00\x00\x00\x00\x00\x00")
	binary.BigEndian.PutUint32(b[38:], uint32(a))
	return AnnouncementLen
}
