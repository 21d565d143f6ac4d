package perf

import (
	"encoding/binary"
	"errors"
	"io"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
)

// LibaliasOptions are the parameters of libalias's own performance test.
type LibaliasOptions struct {
	MaxSeconds float64 // no round begins or goes on after so long
	BatchSize  int     // valid flows opened in each round
	RandomSize int     // random incoming packets in each round
	AttackSize int     // how often one random incoming packet is repeated in each round
	RedirSize  int     // port redirects
}

// LibaliasDefaults are those of the original.
func LibaliasDefaults() LibaliasOptions {
	return LibaliasOptions{MaxSeconds: 10, BatchSize: 2000, RandomSize: 1000, AttackSize: 1000, RedirSize: 2000}
}

// Libalias is the performance test of libalias (second and fourth seed), phase by phase: flows pile up from round to round,
// and every figure is the time for each packet, the making of it included. It is processor time, which on a machine with
// nothing else to do is the time that passes.
type Libalias struct {
	Report
	Parameters LibaliasOptions `json:"parameters"`
	Rounds     []LibaliasRound `json:"rounds"`
	Totals     LibaliasTotals  `json:"totals"`
	Packets    uint64          `json:"packets"`
	Links      uint64          `json:"links"` // at the end
	Aliases    int             `json:"alias_addresses"`
	Mapping    string          `json:"mapping"`
	Ended      float64         `json:"ended_seconds"`
	CPUSeconds float64         `json:"cpu_seconds"` // processor time of all rounds
}

// LibaliasRound is a line of the table, in microseconds per packet.
type LibaliasRound struct {
	Round  int     `json:"round"`
	Second float64 `json:"second"`
	NewNAT float64 `json:"new_nat_us"`
	Random float64 `json:"random_us"`
	Attack float64 `json:"attack_us"`
	UseNAT float64 `json:"use_nat_us"`
}

// LibaliasTotals count packets by phase and by whether they were translated.
type LibaliasTotals struct {
	NewNATOK   uint64 `json:"new_nat_ok"`
	NewNATFail uint64 `json:"new_nat_fail"`
	UseOutOK   uint64 `json:"use_nat_out_ok"`
	UseOutFail uint64 `json:"use_nat_out_fail"`
	UseInOK    uint64 `json:"use_nat_in_ok"`
	UseInFail  uint64 `json:"use_nat_in_fail"`
	RandomOK   uint64 `json:"random_ok"`
	RandomFail uint64 `json:"random_fail"`
	AttackOK   uint64 `json:"attack_ok"`
	AttackFail uint64 `json:"attack_fail"`
}

func (t *LibaliasTotals) total() uint64 {
	return t.NewNATOK + t.NewNATFail + t.UseOutOK + t.UseOutFail + t.UseInOK + t.UseInFail + t.RandomOK + t.RandomFail + t.AttackOK + t.AttackFail
}

const (
	lowPort, highPort = 1000, 60000 // of flows, [low, high)
	useWindow         = 25          // flows that take turns in useNAT
)

// libalias is a run.
type libalias struct {
	LibaliasOptions
	*Libalias
	w       *world
	random  random
	flows   []libaliasFlow // of this round
	order   []uint32       // which flow a packet of the burst belongs to
	n       int            // packets in the burst
	begin   time.Time
	base    clock.Tick
	timeout bool
}

type libaliasFlow struct {
	local, remote endpoint
	alias         uint16
}

// MeasureLibalias runs the scenario. Timeouts are libalias's for UDP, 60 s.
func MeasureLibalias(o LibaliasOptions) (*Libalias, error) {
	const most = 1 << 20
	if err := errors.Join(between("batch-size", o.BatchSize, 1, most), between("random-size", o.RandomSize, 0, most),
		between("attack-size", o.AttackSize, 0, most), between("redir-size", o.RedirSize, 0, most)); err != nil {
		return nil, err
	}
	if !(o.MaxSeconds > 0 && o.MaxSeconds <= 3600) {
		return nil, &OptionError{"max-seconds", o.MaxSeconds, "a number of seconds up to 3600"}
	}
	r := &Libalias{Report: NewReport(), Parameters: o, Aliases: 1, Mapping: "endpoint-dependent"}
	l := &libalias{LibaliasOptions: o, Libalias: r, random: newRandom(), flows: make([]libaliasFlow, o.BatchSize), order: make([]uint32, pmd.BurstFrames)}
	return r, onThread(l.run)
}

func (l *libalias) run() (err error) {
	links := max(1<<16, int(min(l.MaxSeconds, 60)*500_000)) // more than can be made before they expire
	l.w, err = newWorld(worldOptions{limits: nat.Limits{Links: links}, populate: true, rules: func(n *nat.Rules) {
		n.Timeouts.UDP = 60 * time.Second
		for range l.RedirSize {
			n.RedirectPort = append(n.RedirectPort, nat.RedirectPort{
				Proto:  packet.ProtoUDP,
				Public: nat.Alias{Addr: aliasFirst, Port: uint16(lowPort + l.random.below(1000))},
				Local:  []nat.Local{{Addr: 172<<24 | 16<<16 | packet.Addr(l.random.below(1<<16)), Port: uint16(lowPort + l.random.below(1000))}},
			})
		}
	}})
	if err != nil {
		return err
	}
	defer l.w.close()
	if err := l.warm(); err != nil {
		return err
	}
	l.begin, l.base = time.Now(), l.w.now
	used := cpuTime()
	for round := 1; ; round++ {
		at := l.passed()
		if at >= l.MaxSeconds {
			l.Ended = at
			break
		}
		r := LibaliasRound{Round: round, Second: at}
		r.NewNAT = l.phase(l.newNAT)
		r.Random = l.phase(func() int { return l.incoming(l.RandomSize, 1) })
		r.Attack = l.phase(func() int { return l.incoming(1, l.AttackSize) })
		r.UseNAT = l.phase(l.useNAT)
		if l.timeout { // cut short
			l.Ended = l.passed()
			break
		}
		l.Rounds = append(l.Rounds, r)
	}
	l.CPUSeconds = (cpuTime() - used).Seconds()
	l.Packets = l.Totals.total()
	l.Links = l.w.shard.Counters().Links
	return nil
}

// warm touches the tables once, so that the first round does not pay for the kernel's clearing of their pages: it opens
// flows and lets them expire.
func (l *libalias) warm() error {
	l.begin, l.MaxSeconds = time.Now(), l.MaxSeconds+3600
	for range 1 + 1<<14/len(l.flows) {
		l.newNAT()
	}
	l.MaxSeconds -= 3600
	l.Totals = LibaliasTotals{}
	return l.w.expire()
}

func (l *libalias) passed() float64 { return time.Since(l.begin).Seconds() }

// phase returns how long a packet of it took, in microseconds.
func (l *libalias) phase(f func() int) float64 {
	start := cpuTime()
	n := f()
	if n == 0 {
		return 0
	}
	return float64((cpuTime() - start).Nanoseconds()) / float64(n) / 1000
}

// add puts a packet into the burst.
func (l *libalias) add(side nat.Side, src, dst endpoint, flow uint32) {
	l.w.fill(&l.w.burst[l.n], side, src, dst)
	l.order[l.n] = flow
	l.n++
}

func (l *libalias) full() bool { return l.n == pmd.BurstFrames }

// translate takes the burst through parser and shard, with one look at the clock, and lets timers run.
func (l *libalias) translate() []nat.Packet {
	b := l.w.burst[:l.n]
	l.n = 0
	passed := time.Since(l.begin)
	now := l.base + clock.Tick(passed.Milliseconds())
	parse(b)
	l.w.shard.Touch(b)
	l.w.shard.Translate(b, now)
	if now != l.w.now {
		l.w.shard.Advance(now, 256)
		l.w.now = now
	}
	for i := range b {
		l.w.frames.give(b[i].Frame)
	}
	l.timeout = l.timeout || passed.Seconds() >= l.MaxSeconds
	return b
}

// newNAT opens random flows from inside.
func (l *libalias) newNAT() (n int) {
	port := func() uint16 { return uint16(lowPort + l.random.below(highPort-lowPort)) }
	for i := range l.flows {
		f := &l.flows[i]
		f.local = endpoint{10<<24 | packet.Addr(l.random.below(1<<16)), port()}
		f.remote = endpoint{18<<24 | 52<<16 | packet.Addr(l.random.below(1<<16)), port()}
		l.add(nat.Inside, f.local, f.remote, uint32(i))
		if !l.full() && i < len(l.flows)-1 {
			continue
		}
		for k, p := range l.translate() {
			if p.Verdict == nat.Forward && sourceOf(p.Data).addr == aliasFirst {
				l.flows[l.order[k]].alias = sourceOf(p.Data).port
				l.Totals.NewNATOK++
			} else {
				l.Totals.NewNATFail++
			}
			n++
		}
	}
	return n
}

// incoming lets random packets come in from outside, each so many times.
func (l *libalias) incoming(random, times int) (n int) {
	ok := uint64(0)
	var src, dst endpoint
	for i := range random * times {
		if i%times == 0 {
			src = endpoint{packet.Addr(l.random.next() >> 33), uint16(lowPort + l.random.below(65536-lowPort))}
			src.addr = src.addr%(0x7f000000-0x0b000000) + 0x0b000000 // a unicast address that is not ours
			dst = endpoint{aliasFirst, uint16(lowPort + l.random.below(65536-lowPort))}
		}
		l.add(nat.Outside, src, dst, 0)
		if !l.full() && i < random*times-1 {
			continue
		}
		for _, p := range l.translate() {
			if p.Verdict == nat.Forward {
				ok++
			}
			n++
		}
	}
	if times == 1 {
		l.Totals.RandomOK += ok
		l.Totals.RandomFail += uint64(n) - ok
	} else {
		l.Totals.AttackOK += ok
		l.Totals.AttackFail += uint64(n) - ok
	}
	return n
}

// useNAT lets packets of the round's flows pass, for each flow up to 149 of it and its neighbours, nine of ten inbound.
func (l *libalias) useNAT() (n int) {
	for i := range l.flows {
		for range 1 + l.random.below(149) {
			k := (uint32(i) + l.random.below(useWindow)) % uint32(len(l.flows))
			f := &l.flows[k]
			if l.random.below(100) < 89 {
				l.add(nat.Outside, f.remote, endpoint{aliasFirst, f.alias}, k)
			} else {
				l.add(nat.Inside, f.local, f.remote, k)
			}
			if l.full() {
				n += l.use()
			}
		}
		if l.timeout {
			break
		}
	}
	return n + l.use()
}

func (l *libalias) use() int {
	b := l.translate()
	for k := range b {
		p, f := &b[k], &l.flows[l.order[k]]
		ok := p.Verdict == nat.Forward
		if p.Side == nat.Inside {
			if ok && sourceOf(p.Data) == (endpoint{aliasFirst, f.alias}) {
				l.Totals.UseOutOK++
			} else {
				l.Totals.UseOutFail++
			}
			continue
		}
		if ok && destinationOf(p.Data) == f.local {
			l.Totals.UseInOK++
		} else {
			l.Totals.UseInFail++
		}
	}
	return len(b)
}

// sourceOf and destinationOf read a frame that writer made.
func sourceOf(frame []byte) endpoint {
	return endpoint{packet.Addr(binary.BigEndian.Uint32(frame[26:])), binary.BigEndian.Uint16(frame[34:])}
}

func destinationOf(frame []byte) endpoint {
	return endpoint{packet.Addr(binary.BigEndian.Uint32(frame[30:])), binary.BigEndian.Uint16(frame[36:])}
}

// Print writes the table of the original, with three decimals where it has two.
func (l *Libalias) Print(w io.Writer) error {
	p := l.Parameters
	out := &printer{w: w}
	out.printf("Running performance test with parameters:\n")
	out.printf("  Maximum Runtime (max_seconds) = %v\n", p.MaxSeconds)
	out.printf("  Amount of valid connections (batch_size) = %d\n", p.BatchSize)
	out.printf("  Amount of random, incoming packets (batch_size) = %d\n", p.RandomSize)
	out.printf("  Repeat count of a random, incoming packet (attack_size) = %d\n", p.AttackSize)
	out.printf("  Amount of open port forwardings (redir_size) = %d\n\n", p.RedirSize)
	out.printf("RND SECOND newNAT RANDOM ATTACK useNAT\n")
	for i, r := range l.Rounds {
		if i < 5 || r.Round%100 == 0 || i == len(l.Rounds)-1 {
			out.printf("%3d %6.1f %6.3f %6.3f %6.3f %6.3f\n", r.Round, r.Second, r.NewNAT, r.Random, r.Attack, r.UseNAT)
		}
	}
	out.printf("%3d %6.1f\n", len(l.Rounds)+1, l.Ended)
	t := &l.Totals
	out.printf("\nResults\n   Rounds  : %9d\n", len(l.Rounds))
	for _, row := range []struct {
		name string
		n    uint64
		way  string
	}{
		{"newNAT ok  ", t.NewNATOK, ""}, {"newNAT fail", t.NewNATFail, ""},
		{"useNAT ok  ", t.UseOutOK, " (out)"}, {"useNAT fail", t.UseOutFail, " (out)"},
		{"useNAT ok  ", t.UseInOK, " (in)"}, {"useNAT fail", t.UseInFail, " (in)"},
		{"RANDOM ok  ", t.RandomOK, ""}, {"RANDOM fail", t.RandomFail, ""},
		{"ATTACK ok  ", t.AttackOK, ""}, {"ATTACK fail", t.AttackFail, ""},
	} {
		out.printf("%s: %9d%s\n", row.name, row.n, row.way)
	}
	out.printf("             ---------\n      Total: %9d\n\n", l.Packets)
	out.printf("%d links at the end, %s mapping, %d alias address. Microseconds of processor time per packet (%.1f s in all): making it,\n", l.Links, l.Mapping, l.Aliases, l.CPUSeconds)
	out.printf("parsing it with header checksum, translating it in bursts of %d, timers, and a look at the result. Shown are the first five\n", pmd.BurstFrames)
	out.printf("rounds, every hundredth, and the last.\n")
	return out.err
}
