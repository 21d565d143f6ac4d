package replay

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/nat"
)

// pcapngMagic is the block type of a section header, the same in either byte order.
const pcapngMagic = 0x0a0d0d0a

// input is one capture file, read packet by packet. An input without a file has no packets.
type input struct {
	side   nat.Side
	name   string
	file   *os.File
	source gopacket.PacketDataSource
	nano   bool
	warn   func(string)

	index int // of the packet in data, 0-based in its file; -1 before the first
	data  []byte
	at    time.Time // never runs backwards
	more  bool      // data holds a packet
}

// openInput opens a capture and reads its first packet. warn is told when a timestamp runs backwards.
func openInput(side nat.Side, name string, warn func(string)) (*input, error) {
	in := &input{side: side, name: name, index: -1, warn: warn}
	if name == "" {
		return in, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err // says what and which file
	}
	in.file = file
	if err := in.begin(); err != nil {
		file.Close()
		return nil, fmt.Errorf("%s is no capture that can be read: %w", name, err)
	}
	if err := in.next(); err != nil {
		file.Close()
		return nil, err
	}
	return in, nil
}

// begin reads the file's header: pcap with micro- or nanoseconds, or pcapng.
func (in *input) begin() error {
	r := bufio.NewReaderSize(in.file, 1<<18)
	magic, err := r.Peek(4)
	if err != nil {
		return errors.New("it is shorter than a header")
	}
	var link layers.LinkType
	if binary.LittleEndian.Uint32(magic) == pcapngMagic {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true})
		if err == io.EOF { // a section without an interface: nothing was captured
			in.source = empty{}
			return nil
		}
		if err != nil {
			return err
		}
		in.source, link = ng, ng.LinkType()
		in.nano = finerThanMicro(ng.Resolution())
	} else {
		pcap, err := pcapgo.NewReader(r)
		if err != nil {
			return err
		}
		in.source, link = pcap, pcap.LinkType()
		in.nano = finerThanMicro(pcap.Resolution())
	}
	if link != layers.LinkTypeEthernet {
		return fmt.Errorf("its link type is %v, Ethernet is needed", link)
	}
	return nil
}

// empty is a capture without packets.
type empty struct{}

func (empty) ReadPacketData() ([]byte, gopacket.CaptureInfo, error) {
	return nil, gopacket.CaptureInfo{}, io.EOF
}

// finerThanMicro reports whether timestamps would lose something in a microsecond file.
func finerThanMicro(r gopacket.TimestampResolution) bool {
	if r.Base == 2 {
		return r.Exponent < 0 // binary fractions are no whole microseconds
	}
	return r.Exponent < -6
}

// next reads the next packet. At the end of the file more is false.
func (in *input) next() error {
	data, info, err := in.source.ReadPacketData()
	if errors.Is(err, io.EOF) {
		in.more = false
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: packet %d can't be read: %w", in.name, in.index+1, err)
	}
	at := info.Timestamp
	if in.more && at.Before(in.at) {
		in.warn(fmt.Sprintf("%s: the timestamp of packet %d runs backwards: it and later ones count as the latest seen", in.name, in.index+1))
		at = in.at
	}
	in.index++
	in.data, in.at, in.more = data, at, true
	return nil
}

func (in *input) close() {
	if in.file != nil {
		in.file.Close()
	}
}

// output writes one capture: pcap with microseconds, or with nanoseconds when an input has them. An output without a file
// writes nothing.
type output struct {
	file   *os.File
	buffer *bufio.Writer
	pcap   *pcapgo.Writer
	err    error
}

const snapLength = 262144

func createOutput(name string, nano bool) (*output, error) {
	if name == "" {
		return &output{}, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	o := &output{file: file, buffer: bufio.NewWriterSize(file, 1<<18)}
	if nano {
		o.pcap = pcapgo.NewWriterNanos(o.buffer)
	} else {
		o.pcap = pcapgo.NewWriter(o.buffer)
	}
	o.err = o.pcap.WriteFileHeader(snapLength, layers.LinkTypeEthernet)
	return o, nil
}

// write adds a packet; an error shows at close.
func (o *output) write(at time.Time, frame []byte) {
	if o.pcap == nil || o.err != nil {
		return
	}
	o.err = o.pcap.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)}, frame)
}

func (o *output) close() error {
	if o == nil || o.file == nil {
		return nil
	}
	if err := o.buffer.Flush(); o.err == nil {
		o.err = err
	}
	if err := o.file.Close(); o.err == nil {
		o.err = err
	}
	return o.err
}
