package pmd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
)

// A snapshot is a file of all links, written every so often while the gateway runs, from which a start after a crash makes them
// again. All numbers are little endian:
//
//	header   magic 8, record bytes 4, 0 4, time of the snapshot in Unix milliseconds 8
//	records  see appendRecord
//	trailer  number of records 8, CRC-64 (ECMA) of everything before it 8
//
// It is written beside its name and then renamed: the file is always a whole snapshot, or none.

const (
	snapshotMagic   = "plxsnap1" // its last byte is the version
	headerBytes     = 24
	recordBytes     = 28
	trailerBytes    = 16
	snapshotSlice   = 256 // links that a worker copies, or makes, between two bursts
	snapshotAgeMax  = 20 * 24 * time.Hour
	snapshotFileMax = headerBytes + trailerBytes + recordBytes*nat.LinksMax
)

var snapshotTable = crc64.MakeTable(crc64.ECMA)

func appendRecord(b []byte, r *nat.Record) []byte {
	put := binary.LittleEndian
	b = put.AppendUint32(b, uint32(r.Local.Addr))
	b = put.AppendUint32(b, uint32(r.Alias.Addr))
	b = put.AppendUint32(b, uint32(r.Remote.Addr))
	b = put.AppendUint16(b, r.Local.Port)
	b = put.AppendUint16(b, r.Alias.Port)
	b = put.AppendUint16(b, r.Remote.Port)
	request := byte(0)
	if r.Request {
		request = 1
	}
	b = append(b, r.Proto, byte(r.State), r.TCP, r.Flags, request, 0)
	return put.AppendUint32(b, r.Idle)
}

func recordOf(b []byte) nat.Record {
	get := binary.LittleEndian
	addr := func(i int) packet.Addr { return packet.Addr(get.Uint32(b[i:])) }
	return nat.Record{
		Local:  nat.Local{Addr: addr(0), Port: get.Uint16(b[12:])},
		Alias:  nat.Alias{Addr: addr(4), Port: get.Uint16(b[14:])},
		Remote: nat.Remote{Addr: addr(8), Port: get.Uint16(b[16:])},
		Proto:  b[18], State: nat.State(b[19]), TCP: b[20], Flags: b[21], Request: b[22] != 0, Idle: get.Uint32(b[24:]),
	}
}

// parseSnapshot checks a whole file and then calls visit for its records. Of a file that is not right no record is visited.
func parseSnapshot(file []byte, visit func(nat.Record)) (taken time.Time, count int, err error) {
	get := binary.LittleEndian
	if len(file) < headerBytes+trailerBytes || string(file[:8]) != snapshotMagic {
		return taken, 0, errors.New("it is no snapshot of this version")
	}
	if n := get.Uint32(file[8:]); n != recordBytes {
		return taken, 0, fmt.Errorf("its records have %d bytes, this version's %d", n, recordBytes)
	}
	body, trailer := file[:len(file)-8], file[len(file)-trailerBytes:]
	if get.Uint64(trailer[8:]) != crc64.Checksum(body, snapshotTable) {
		return taken, 0, errors.New("its checksum is wrong: it is damaged or cut off")
	}
	records := file[headerBytes : len(file)-trailerBytes]
	if n := get.Uint64(trailer); len(records)%recordBytes != 0 || n != uint64(len(records)/recordBytes) {
		return taken, 0, fmt.Errorf("it says that it holds %d links, and holds %d bytes of them", n, len(records))
	}
	for i := 0; i < len(records); i += recordBytes {
		visit(recordOf(records[i:]))
	}
	return time.UnixMilli(int64(get.Uint64(file[16:]))), len(records) / recordBytes, nil
}

// WriteSnapshot writes all links to a file, by slices between bursts.
func (g *Gateway) WriteSnapshot(path string) (count int, err error) {
	if err := replaceable(path); err != nil {
		return 0, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-") // for its owner only
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) // unless it was renamed
	defer f.Close()
	sum := crc64.New(snapshotTable)
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 256<<10)
	b := make([]byte, 0, snapshotSlice*recordBytes)
	put := binary.LittleEndian
	b = append(b, snapshotMagic...)
	b = put.AppendUint32(b, recordBytes)
	b = put.AppendUint32(b, 0)
	b = put.AppendUint64(b, uint64(time.Now().UnixMilli()))
	if _, err := w.Write(b); err != nil {
		return 0, err
	}
	for _, k := range g.workers {
		for cursor := uint32(0); ; {
			b = b[:0]
			if err := k.loop.Do(func(clock.Tick) bool {
				cursor = k.shard.Records(cursor, snapshotSlice, func(r nat.Record) { b = appendRecord(b, &r) })
				return true
			}); err != nil {
				return 0, err
			}
			count += len(b) / recordBytes
			if _, err := w.Write(b); err != nil {
				return 0, err
			}
			if cursor == 0 {
				break
			}
		}
	}
	if _, err := w.Write(put.AppendUint64(b[:0], uint64(count))); err != nil {
		return 0, err
	}
	if err := w.Flush(); err != nil {
		return 0, err
	}
	if _, err := f.Write(put.AppendUint64(b[:0], sum.Sum64())); err != nil {
		return 0, err
	}
	return count, errors.Join(f.Sync(), f.Close(), os.Rename(f.Name(), path))
}

// replaceable says why a snapshot must not take the place of what is at its path: a device, a pipe, somebody's file. Snapshots of
// other versions and empty files may go.
func replaceable(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kind := snapshotMagic[:len(snapshotMagic)-1]
	if info.Mode().IsRegular() {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		b := make([]byte, len(kind))
		if n, err := io.ReadFull(f, b); n == 0 && err == io.EOF || string(b) == kind {
			return nil
		}
	}
	return errors.New("what is there is no snapshot, and left alone: remove it, or choose another snapshot.file")
}

// ReadSnapshot makes the links of a file again, as far as rules and limits allow and they have not expired meanwhile.
func (g *Gateway) ReadSnapshot(path string) (restored, count int, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > snapshotFileMax {
		return 0, 0, errors.New("it is no regular file of a snapshot's size")
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	waiting := make([][]nat.Record, len(g.workers))
	var age clock.Tick
	flush := func(k int) error {
		list := waiting[k]
		waiting[k] = list[:0]
		return g.workers[k].loop.Do(func(now clock.Tick) bool {
			for i := range list {
				if r := &list[i]; r.Idle < 1<<31-uint32(age) {
					if r.Idle += uint32(age); g.workers[k].shard.Restore(r, now) {
						restored++
					}
				}
			}
			return true
		})
	}
	// Time first: it is at the head of the file, but nothing of a file that is not whole is believed.
	taken, count, err := parseSnapshot(file, func(nat.Record) {})
	if err != nil {
		return 0, 0, err
	}
	since := time.Since(taken)
	if since < 0 || since > snapshotAgeMax {
		return 0, count, fmt.Errorf("it was taken %v ago by this machine's clock", since.Round(time.Second))
	}
	age = clock.Tick(since / time.Millisecond)
	var failed error
	_, _, _ = parseSnapshot(file, func(r nat.Record) {
		k := 0
		if g.steering != nil {
			k = g.steering.Outbound(r.Proto, r.Local.Addr, r.Local.Port, r.Remote.Addr, r.Remote.Port)
		}
		if waiting[k] = append(waiting[k], r); len(waiting[k]) == snapshotSlice && failed == nil {
			failed = flush(k)
		}
	})
	for k := range waiting {
		if failed == nil {
			failed = flush(k)
		}
	}
	return restored, count, failed
}

// restoreSnapshot is a step of Start: before any packet comes. A file that is not right is told, and the start goes on without.
func (g *Gateway) restoreSnapshot() error {
	if g.o.SnapshotFile == "" {
		return nil
	}
	restored, count, err := g.ReadSnapshot(g.o.SnapshotFile)
	switch {
	case errors.Is(err, ErrEnded):
		return err
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		slog.Warn("the snapshot is not used: the start goes on without links", "file", g.o.SnapshotFile, "error", err)
	default:
		slog.Info("links restored from the snapshot", "file", g.o.SnapshotFile, "restored", restored, "given_up", count-restored)
	}
	return nil
}

// snapshots writes one after the other.
func (g *Gateway) snapshots() {
	if g.o.SnapshotFile == "" {
		return
	}
	said := ""
	for {
		select {
		case <-g.quit:
			return
		case <-time.After(g.o.SnapshotEvery):
		}
		_, err := g.WriteSnapshot(g.o.SnapshotFile)
		switch {
		case errors.Is(err, ErrEnded):
			return
		case err == nil:
			said = ""
		case causeOf(err) != said: // once, until it works again or fails in another way
			said = causeOf(err)
			slog.Error("the snapshot of the links can't be written", "file", g.o.SnapshotFile, "error", err)
		}
	}
}

// causeOf is an error without the temporary file's name, which is another one each time.
func causeOf(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
