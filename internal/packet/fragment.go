package packet

import "encoding/binary"

// Fragment splits an IPv4 packet without DF into pieces of at most mtu bytes, from the IP header on (RFC 791 3.2); it may
// itself be a fragment. get gives a buffer with a capacity of at least 14 + mtu bytes for each piece, or nil when there is
// none; emit takes it filled and cut to length, in order of offset. The frame stays as it is, and the caller's. The result
// is false, with nothing emitted, for DF, for a malformed packet and for an mtu that can't hold the header and 8 bytes; it
// is also false when buffers ran out, and then the pieces emitted so far are a part only.
func Fragment(frame []byte, h *Headers, mtu int, get func() []byte, emit func([]byte)) bool {
	l3, header, total := int(h.L3), int(h.L4)-int(h.L3), int(h.Len)
	if h.Flags&FlagDF != 0 || h.Kind == KindIPv6 || header < IPv4Len || total < header || l3+total > len(frame) ||
		int(h.FragOff)+total-header > 0xffff || mtu < header+8 {
		return false
	}
	ip := frame[l3 : l3+total]
	var later [60]byte // the header of all pieces but the first: not every option goes along
	laterLen := laterHeader(later[:], ip[:header])
	word := binary.BigEndian.Uint16(ip[6:8])
	head := ip[:header]
	for done := 0; ; head = later[:laterLen] {
		rest := total - header - done
		size, more := rest, word&0x2000
		if len(head)+rest > mtu {
			size, more = (mtu-len(head))&^7, 0x2000
		}
		buf := get()
		n := l3 + len(head) + size
		if cap(buf) < n {
			return false
		}
		buf = buf[:n]
		copy(buf, frame[:l3])
		out := buf[l3:]
		copy(out, head)
		copy(out[len(head):], ip[header+done:header+done+size])
		binary.BigEndian.PutUint16(out[2:4], uint16(len(out)))
		binary.BigEndian.PutUint16(out[6:8], word&^uint16(fragmentBits)|more|(word&offsetBits+uint16(done/8)))
		putSum(out[:len(head)], 10)
		emit(buf)
		if done += size; done == total-header {
			return true
		}
	}
}

// laterHeader writes to dst the header that fragments after the first carry: of the options in head those with the copied
// bit, padded to 4 bytes. It returns its length, never more than that of head.
func laterHeader(dst, head []byte) int {
	n := copy(dst, head[:IPv4Len])
	for i := IPv4Len; i < len(head) && head[i] != 0; {
		if head[i] == 1 {
			i++
			continue
		}
		if i+1 >= len(head) || head[i+1] < 2 || i+int(head[i+1]) > len(head) {
			break
		}
		end := i + int(head[i+1])
		if head[i]&0x80 != 0 {
			n += copy(dst[n:], head[i:end])
		}
		i = end
	}
	for ; n%4 != 0; n++ {
		dst[n] = 0
	}
	dst[0] = 0x40 | byte(n/4)
	return n
}
