package pmd

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc64"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/nat"
)

// snapshotOf writes the file of some records as WriteSnapshot would.
func snapshotOf(taken time.Time, records ...nat.Record) []byte {
	put := binary.LittleEndian
	b := append([]byte(nil), snapshotMagic...)
	b = put.AppendUint32(b, recordBytes)
	b = put.AppendUint32(b, 0)
	b = put.AppendUint64(b, uint64(taken.UnixMilli()))
	for i := range records {
		b = appendRecord(b, &records[i])
	}
	b = put.AppendUint64(b, uint64(len(records)))
	return put.AppendUint64(b, crc64.Checksum(b, snapshotTable))
}

var snapshotRecords = []nat.Record{
	{Local: nat.Local{Addr: host1, Port: 4000}, Alias: nat.Alias{Addr: alias1, Port: 4001}, Remote: nat.Remote{Addr: server, Port: 53}, Proto: packet.ProtoUDP, Flags: 1, Idle: 77},
	{Local: nat.Local{Addr: host2, Port: 1}, Alias: nat.Alias{Addr: alias1, Port: 65535}, Remote: nat.Remote{Addr: server}, Proto: packet.ProtoICMP, Flags: 1, Request: true},
	{Local: nat.Local{Addr: host2, Port: 9}, Alias: nat.Alias{Addr: alias1, Port: 9}, Remote: nat.Remote{Addr: server, Port: 80}, Proto: packet.ProtoTCP, State: nat.Established, TCP: 15, Flags: 3},
}

func TestSnapshotFile(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	file := snapshotOf(now, snapshotRecords...)
	var got []nat.Record
	taken, count, err := parseSnapshot(file, func(r nat.Record) { got = append(got, r) })
	if err != nil || count != len(snapshotRecords) || !taken.Equal(now) {
		t.Fatal(taken, count, err)
	}
	for i := range got {
		if got[i] != snapshotRecords[i] {
			t.Errorf("%+v, want %+v", got[i], snapshotRecords[i])
		}
	}
	for at := range file { // whatever byte is wrong, and wherever it ends
		bad := append([]byte(nil), file...)
		bad[at] ^= 0x10
		for _, b := range [][]byte{bad, file[:at]} {
			if _, _, err := parseSnapshot(b, func(nat.Record) { t.Fatal("a record of a broken file") }); err == nil {
				t.Fatalf("byte %d of %d", at, len(file))
			}
		}
	}
}

// What is at the path and is no snapshot is never replaced by one.
func TestSnapshotLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"own": snapshotMagic + "...", "older": "plxsnap0...", "empty": "", "foreign": "ports: []\n", "short": "x"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(at("directory"), 0o700), syscall.Mkfifo(at("pipe"), 0o600), os.Symlink(at("foreign"), at("link"))); err != nil {
		t.Fatal(err)
	}
	for name, may := range map[string]bool{"none": true, "own": true, "older": true, "empty": true, "foreign": false, "short": false, "directory": false, "pipe": false, "link": false} {
		if err := replaceable(at(name)); (err == nil) != may {
			t.Errorf("%s: %v", name, err)
		}
		if may {
			continue
		}
		if _, err := new(Gateway).WriteSnapshot(at(name)); err == nil { // there is no worker whose links it could hold
			t.Errorf("%s was written over", name)
		}
	}
	one, other := &os.PathError{Op: "open", Path: "a.new-1", Err: syscall.ENOSPC}, &os.PathError{Op: "open", Path: "a.new-2", Err: syscall.ENOSPC}
	if causeOf(one) != causeOf(other) || causeOf(one) == causeOf(errors.New("x")) {
		t.Error("the same cause is told again and again")
	}
}

// FuzzSnapshot: no file makes the reader fail, and one that it takes holds what it says.
func FuzzSnapshot(f *testing.F) {
	f.Add(snapshotOf(time.Now(), snapshotRecords...), true)
	f.Add([]byte(snapshotMagic), false)
	f.Fuzz(func(t *testing.T, file []byte, seal bool) {
		if seal && len(file) > 8 { // a right checksum, so that the rest is looked at
			binary.LittleEndian.PutUint64(file[len(file)-8:], crc64.Checksum(file[:len(file)-8], snapshotTable))
		}
		seen := 0
		_, count, err := parseSnapshot(file, func(nat.Record) { seen++ })
		if err == nil && (seen != count || len(file) != headerBytes+count*recordBytes+trailerBytes) || err != nil && seen != 0 {
			t.Fatalf("%d records seen, %d told, %d bytes: %v", seen, count, len(file), err)
		}
	})
}

// A gateway that was killed has its links again when it starts, at the same ports; a broken file is left alone.
func TestSnapshot(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	o := labOptions()
	o.SnapshotFile, o.SnapshotEvery = filepath.Join(t.TempDir(), "links"), time.Hour
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	echo, err := lab.ServeUDPEcho(out.Namespace, netip.AddrPortFrom(out.Addr, 9000).String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if f, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 100, Timeout: time.Second}); err != nil || f.Answered != 100 {
		t.Fatal(f, err)
	}
	links := func(g *Gateway) map[nat.Record]bool {
		all := map[nat.Record]bool{}
		w := g.workers[0]
		w.loop.Do(func(now clock.Tick) bool {
			w.shard.Records(0, 1<<20, func(r nat.Record) { r.Idle = 0; all[r] = true })
			return true
		})
		return all
	}
	before := links(g)
	if n, err := g.WriteSnapshot(o.SnapshotFile); err != nil || n != len(before) || n < 100 {
		t.Fatalf("%d of %d links written: %v", n, len(before), err)
	}
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	g, err = startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	after := links(g)
	for r := range before {
		if !after[r] {
			t.Errorf("%+v is lost", r)
		}
	}
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}

	o.Rules.Timeouts.UDP = time.Millisecond // all have expired by now
	if g, err = startIn(t, l, o); err != nil {
		t.Fatal(err)
	}
	if n := len(links(g)); n != 0 {
		t.Errorf("%d expired links restored", n)
	}
	g.Stop()
	o.Rules.Timeouts.UDP = time.Hour
	file, err := os.ReadFile(o.SnapshotFile)
	if err != nil {
		t.Fatal(err)
	}
	file[len(file)/2] ^= 1
	if err := os.WriteFile(o.SnapshotFile, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if g, err = startIn(t, l, o); err != nil {
		t.Fatal("a broken snapshot stops the start: ", err)
	}
	if n := len(links(g)); n != 0 {
		t.Errorf("%d links of a broken snapshot", n)
	}
	if _, _, err := g.ReadSnapshot(o.SnapshotFile); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Error(err)
	}
	// The goroutine that writes them does, and replaces the broken one.
	o.SnapshotEvery = 10 * time.Millisecond
	g.Stop()
	if _, err = startIn(t, l, o); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if file, err = os.ReadFile(o.SnapshotFile); err == nil {
			if _, _, err = parseSnapshot(file, func(nat.Record) {}); err == nil {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(o.SnapshotFile + ".new-*"); len(left) > 1 {
		t.Errorf("files left: %v", left)
	}
}
