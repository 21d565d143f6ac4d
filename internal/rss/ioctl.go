package rss

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ask makes one ethtool ioctl: req is a struct that begins with its command.
func ask(fd int, name string, req unsafe.Pointer) error {
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // struct ifreq's union is larger than a pointer
	}
	if len(name) >= len(ifr.name) {
		return unix.ENAMETOOLONG
	}
	copy(ifr.name[:], name)
	ifr.data = req
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return errno
	}
	return nil
}

// rxfhHeader is the size of struct ethtool_rxfh of linux/ethtool.h before its table and key: command, context, table size, key
// size (all 32 bits), hash function, transform, two unused bytes, four more.
const rxfhHeader = 24

// rxfhMax bounds table and key together, in bytes.
const rxfhMax = 4*TableMax + 256

// older asks by ETHTOOL_GRSSH, which kernels before 6.2 have, too. ErrNotTold: the driver has no answer.
func older(name string) (State, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return State{}, err
	}
	defer unix.Close(fd)
	b := make([]byte, rxfhHeader+rxfhMax)
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GRSSH)
	err = ask(fd, name, unsafe.Pointer(&b[0])) // sizes of 0: it tells what they are
	if err == nil {
		table, key := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
		if uint64(table)*4+uint64(key) > rxfhMax {
			return State{}, fmt.Errorf("%s: an indirection table of %d entries and a key of %d bytes are more than pollux knows", name, table, key)
		}
		binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GRSSH)
		err = ask(fd, name, unsafe.Pointer(&b[0]))
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return State{}, ErrNotTold
	case err != nil:
		return State{}, fmt.Errorf("%s: RSS settings: %w", name, err)
	}
	return parseOlder(b)
}

// parseOlder reads struct ethtool_rxfh.
func parseOlder(b []byte) (s State, err error) {
	if len(b) < rxfhHeader {
		return s, errors.New("struct ethtool_rxfh is cut off")
	}
	table, key := uint64(binary.NativeEndian.Uint32(b[8:])), uint64(binary.NativeEndian.Uint32(b[12:]))
	rest := b[rxfhHeader:]
	switch {
	case table*4+key > uint64(len(rest)):
		return s, fmt.Errorf("struct ethtool_rxfh holds no %d entries and %d bytes of key", table, key)
	case table == 0 && key == 0:
		return s, ErrNotTold
	}
	s.HashFunc, s.Transform = HashFunc(b[16]), Transform(b[17])
	s.Table = make([]uint32, table)
	for i := range s.Table {
		s.Table[i] = binary.NativeEndian.Uint32(rest[4*i:])
	}
	s.Key = append([]byte(nil), rest[4*table:][:key]...)
	return s, nil
}
