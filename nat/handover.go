package nat

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"pollux/internal/offheap"
	"pollux/lport"
)

// Handing a shard to a successor process. The tables are shared memory (Options.Shared): links, ports and timers stay where they
// are. What the shard keeps on the Go heap goes by an image. Frames that it holds (fragments, SYNs) stay held.

// Layout is what must be equal in two processes that hand a shard over.
func Layout() uint64 {
	return offheap.Fingerprint(Shard{}, line{}, cold{}, node{}, treeGroup{}, host{}, datagram{}, piece{}, extent{}, window{}, rule{}) ^ lport.Layout()
}

// Regions returns the shard's tables, in an order that is always the same, and how many of them are its port space's. The error
// says why another process can't have them.
func (s *Shard) Regions() (all []*offheap.Region, ports int, err error) {
	all = append(all, s.memory.regions...)
	p := s.ports.Regions()
	all = append(all, p...)
	for _, r := range all {
		if r.FD() < 0 {
			return nil, 0, errors.New("the tables are in memory of this process alone: the kernel had no huge pages for shared memory at the start; limits.memory: use does without")
		}
	}
	return all, len(p), nil
}

// Taken returns how many bytes of the memory that Counters tells have their pages already.
func (s *Shard) Taken() uint64 { return s.memory.taken }

// ImageBytes is about how large an image is now.
func (s *Shard) ImageBytes() int {
	return int(unsafe.Sizeof(*s)) + len(s.table.list)*int(unsafe.Sizeof(rule{})+unsafe.Sizeof(Local{})) + 8*(len(s.table.in.slots)+len(s.table.out.slots)) +
		len(s.ours.slots)*int(unsafe.Sizeof(ours{})) + 4*len(s.pool) + len(s.freed.ring)*int(unsafe.Sizeof(Released{})) + s.ports.ImageBytes()
}

// Freeze writes an image. The shard must not be used afterwards, unless the successor does not come about.
func (s *Shard) Freeze(e *offheap.Encoder) error {
	if err := e.Write(s); err != nil {
		return err
	}
	left := int64(0)
	if s.share != nil {
		left = s.share.left.Load()
	}
	if err := e.Write(&left); err != nil {
		return err
	}
	return s.ports.Freeze(e)
}

// Heir returns a shard that is nothing yet: Thaw makes it one.
func Heir() *Shard { return new(Shard) }

// Thaw makes an heir the shard of an image: o is as for New of the predecessor, with the rules that it had; regions are those
// that Regions told. Their memory is the shard's own then. Only o.Now may differ.
func (s *Shard) Thaw(o Options, regions []*offheap.Region, ports int, d *offheap.Decoder) error {
	if ports > len(regions) {
		return errors.New("nat: tables are missing")
	}
	plan, err := newPlan(&o.Rules)
	if err != nil {
		return err
	}
	s.rules, s.plan, s.owners, s.sideOf, s.reverse, s.steering = o.Rules, plan, o.Owners, o.SideOf, o.Reverse, o.Steering
	s.memory.shared = true
	own := regions[:len(regions)-ports]
	for _, r := range own {
		s.memory.regions = append(s.memory.regions, r)
		s.memory.bytes += uint64(r.Mapped())
	}
	s.memory.taken = s.memory.bytes
	s.groups.links, s.groups.seed, s.hosts.seed = &s.links, &s.seed, &s.seed
	s.share = o.Share
	s.table = newRules(&s.seed, &s.common)
	s.log.init(o.Events)
	if err := d.Read(s); err != nil {
		return fmt.Errorf("nat: a predecessor's shard: %w", err)
	}
	left := int64(0)
	if err := d.Read(&left); err != nil {
		return err
	}
	if s.share != nil {
		s.share.left.Store(left)
	}
	if s.worker != o.Worker || !reflect.DeepEqual(s.limits, o.Limits) || s.spread != o.FlowSteered {
		return fmt.Errorf("nat: a predecessor's shard is worker %d's with other limits", s.worker)
	}
	s.portOpt = lport.Options{Owners: s.owners, Worker: o.Worker, Workers: o.Workers, Seed: o.Seed, PortsPerHost: o.Limits.PortsPerHost,
		Hosts: o.Limits.Links, Links: o.Limits.Links, Shared: true, InUse: s.inUse, Now: o.Now}
	portOptions(&s.portOpt, &s.rules, plan)
	s.ports, err = lport.Thaw(s.portOpt, regions[len(own):], d)
	return err
}
