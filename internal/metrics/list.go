package metrics

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"pollux/internal/natlog"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rings"
	"pollux/rtcache"
)

// list is every metric of the dataplane, in the order of the documentation.
var list = slices.Concat(portMetrics, workerMetrics, linkMetrics, poolMetrics, routeMetrics, logMetrics)

var (
	byPort   = []string{"port"}
	byWorker = []string{"worker"}
)

// perPort makes a reader of one number a port.
func perPort(value func(p *pmd.PortSample) uint64) func(*reading, *emitter) {
	return func(s *reading, e *emitter) {
		for i := range s.Ports {
			e.count(value(&s.Ports[i]), s.Ports[i].Name)
		}
	}
}

var portMetrics = []metric{
	{"port_info", gauge, []string{"port", "role", "mode", "xdp"}, "A port, its role and how it is bound; always 1.",
		func(s *reading, e *emitter) {
			for i := range s.Ports {
				p := &s.Ports[i]
				e.emit(1, p.Name, p.Role, p.Mode, p.XDP)
			}
		}},
	{"port_up", gauge, byPort, "Whether the port is up and has carrier.", perPort(func(p *pmd.PortSample) uint64 {
		if p.Up {
			return 1
		}
		return 0
	})},
	{"port_mtu_bytes", gauge, byPort, "MTU of the port.", perPort(func(p *pmd.PortSample) uint64 { return uint64(p.MTU) })},
	{"port_receive_packets_total", counter, byPort, "Packets that workers took from the port.", perPort(func(p *pmd.PortSample) uint64 { return p.RX })},
	{"port_receive_bytes_total", counter, byPort, "Their bytes, Ethernet headers included.", perPort(func(p *pmd.PortSample) uint64 { return p.RXBytes })},
	{"port_transmit_packets_total", counter, byPort, "Packets that the port has sent.", perPort(func(p *pmd.PortSample) uint64 { return p.TX })},
	{"port_transmit_bytes_total", counter, byPort, "Bytes of the packets queued for sending, Ethernet headers included.", perPort(func(p *pmd.PortSample) uint64 { return p.TXBytes })},
	{"port_rx_ring_full_total", counter, byPort, "Packets lost because no worker emptied the receive ring in time: an overrun.", perPort(func(p *pmd.PortSample) uint64 { return p.RXFull })},
	{"port_fill_ring_empty_total", counter, byPort, "Times that the kernel found no buffer for a packet.", perPort(func(p *pmd.PortSample) uint64 { return p.FillEmpty })},
	{"port_receive_dropped_total", counter, byPort, "Packets that the kernel could not put into a buffer.", perPort(func(p *pmd.PortSample) uint64 { return p.RXDropped })},
	{"port_transmit_invalid_total", counter, byPort, "Descriptors that the kernel refused to send.", perPort(func(p *pmd.PortSample) uint64 { return p.TXInvalid })},
	{"port_passed_to_kernel_total", counter, byPort, "Packets that the XDP program left to the kernel: the sum of the decisions pass-*.", perPort(func(p *pmd.PortSample) uint64 { return p.Passed })},
	{"port_xdp_decisions_total", counter, []string{"port", "decision"}, "What the XDP program did with the packets that came in.",
		func(s *reading, e *emitter) {
			for i := range s.Ports {
				for c, n := range s.Ports[i].XDPDecisions {
					e.count(n, s.Ports[i].Name, rings.Cause(c).String())
				}
			}
		}},
}

// perWorker makes a reader of one number a worker.
func perWorker(value func(w *pmd.WorkerSample) uint64) func(*reading, *emitter) {
	return func(s *reading, e *emitter) {
		for i := range s.Workers {
			e.count(value(&s.Workers[i]), strconv.Itoa(s.Workers[i].Worker))
		}
	}
}

// eachWorker calls read with every worker and its label.
func eachWorker(read func(w *pmd.WorkerSample, label string, e *emitter)) func(*reading, *emitter) {
	return func(s *reading, e *emitter) {
		for i := range s.Workers {
			read(&s.Workers[i], strconv.Itoa(s.Workers[i].Worker), e)
		}
	}
}

var workerMetrics = []metric{
	{"worker_info", gauge, []string{"worker", "core", "queue"}, "A worker, its core and the queue that it polls; always 1.",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) {
			e.emit(1, label, strconv.Itoa(w.Core), strconv.Itoa(w.Queue))
		})},
	{"worker_received_packets_total", counter, byWorker, "Packets that came in by the worker's queues.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Received })},
	{"worker_translated_packets_total", counter, byWorker, "Packets that belong to a link.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Translated })},
	{"worker_forwarded_packets_total", counter, byWorker, "Packets sent on, translated or not.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Forwarded })},
	{"worker_own_packets_total", counter, byWorker, "Packets of the gateway's own that were sent: ICMP errors, fragments, ARP.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Made })},
	{"worker_answered_packets_total", counter, byWorker, "Dropped packets that an ICMP error went back for.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Answered })},
	{"worker_arp_replies_total", counter, byWorker, "ARP requests for pool addresses that the worker answered.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.ARP })},
	{"worker_bursts_total", counter, byWorker, "Bursts of packets taken from ports.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Bursts })},
	{"worker_run_seconds_total", counter, byWorker, "Time since the worker began.", eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) { e.seconds(w.RunNS, label) })},
	{"worker_busy_seconds_total", counter, byWorker, "Time in poll rounds that found work: its rate is the worker's occupancy.", eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) { e.seconds(w.BusyNS, label) })},
	{"worker_sleep_seconds_total", counter, byWorker, "Time asleep (idle: adaptive).", eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) { e.seconds(w.SleptNS, label) })},
	{"worker_sleeps_total", counter, byWorker, "Times that the worker went to sleep.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.Sleeps })},
	{"worker_poll_gap_seconds", histogram, byWorker, "Time from one poll of the ports to the next, sleep apart. Long gaps overrun rings.",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) {
			e.distribution(w.Gaps[:], pmd.GapBound, float64(w.RunNS-w.SleptNS)/1e9, label)
		})},
	{"worker_handed_over_packets_total", counter, []string{"worker", "why"}, "Packets of other workers that came in by this worker's queues, by what said whose they are.",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) {
			for _, why := range slices.Sorted(maps.Keys(w.HandedWhy)) {
				e.count(w.HandedWhy[why], label, why)
			}
		})},
	{"worker_chosen_ports_total", counter, []string{"worker", "answers"}, "Alias ports chosen by the outside card's RSS settings: answers come in by the worker's own queue (near) or by another (far).",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) {
			e.count(w.PortsNear, label, "near")
			e.count(w.PortsFar, label, "far")
		})},
	{"worker_handed_in_packets_total", counter, byWorker, "Packets of this worker that others received.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.HandedIn })},
	{"worker_frames", gauge, []string{"worker", "place"}, "Packet buffers by where they are.",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) {
			for _, place := range slices.Sorted(maps.Keys(w.Frames)) {
				e.count(w.Frames[place], label, place)
			}
		})},
	{"worker_frames_leaked", gauge, byWorker, "Packet buffers that are nowhere to be found. Anything but 0 is a bug.",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) { e.emit(float64(w.Leaked), label) })},
	{"ring_frames", gauge, []string{"worker", "port", "ring"}, "How full a socket's rings are: fill is what the kernel may still receive into, rx what waits for the worker, tx what waits to be sent.",
		func(s *reading, e *emitter) {
			for i := range s.Workers {
				w := &s.Workers[i]
				for p, r := range w.Rings {
					worker, port := strconv.Itoa(w.Worker), s.Ports[p].Name
					e.count(r.Fill, worker, port, "fill")
					e.count(r.RX, worker, port, "rx")
					e.count(r.TX, worker, port, "tx")
				}
			}
		}},
	{"ring_size_frames", gauge, nil, "Descriptors in each of these rings (rings.size).", func(s *reading, e *emitter) { e.emit(float64(s.RingSize)) }},
	{"dropped_packets_total", counter, []string{"reason"}, "Packets that were not sent on, by reason (pollux show drops says what each means).",
		func(s *reading, e *emitter) {
			for _, d := range s.Drops {
				if d.Reason != reason.Punted && d.Reason != reason.Held {
					e.count(d.Count, d.Name)
				}
			}
		}},
	{"punted_packets_total", counter, nil, "Packets that a worker handed to the gateway's own stack.", dropCount(reason.Punted)},
	{"held_packets", gauge, nil, "Packets that wait: for a neighbour's address, for more fragments, unsolicited SYNs.", dropCount(reason.Held)},
}

func dropCount(r reason.Reason) func(*reading, *emitter) {
	return func(s *reading, e *emitter) {
		for _, d := range s.Drops {
			if d.Reason == r {
				e.count(d.Count)
			}
		}
	}
}

// allShards makes a reader of one number that is summed over the workers.
func allShards(value func(w *pmd.WorkerSample) uint64) func(*reading, *emitter) {
	return func(s *reading, e *emitter) { e.count(sum(s, value)) }
}

func sum(s *reading, value func(w *pmd.WorkerSample) uint64) (n uint64) {
	for i := range s.Workers {
		n += value(&s.Workers[i])
	}
	return n
}

var linkMetrics = []metric{
	{"links", gauge, []string{"protocol", "state"}, "Links in the table.",
		func(s *reading, e *emitter) {
			for _, state := range []nat.State{nat.Opening, nat.Established, nat.Closing} {
				e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return w.NAT.State[state] }), "tcp", state.String())
			}
			for i, protocol := range []string{"udp", "icmp", "other"} {
				e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return w.NAT.Proto[i+1] }), protocol, nat.Active.String())
			}
		}},
	{"links_limit", gauge, nil, "Links that there may be (limits.links).", func(s *reading, e *emitter) { e.emit(float64(s.LinksMax)) }},
	{"worker_links", gauge, byWorker, "Links of each worker.", perWorker(func(w *pmd.WorkerSample) uint64 { return w.NAT.Links })},
	{"draining", gauge, nil, "Whether new flows are turned away (pollux drain).", func(s *reading, e *emitter) { e.flag(s.Draining) }},
	{"links_created_total", counter, nil, "Links made.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Created })},
	{"links_expired_total", counter, nil, "Links that were idle for longer than their timeout.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Expired })},
	{"links_recycled_total", counter, nil, "Closing links given up early because the table or the ports were full.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Recycled })},
	{"links_deleted_total", counter, nil, "Links ended by command, or because their rule went.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Deleted })},
	{"links_reopened_total", counter, nil, "Closing TCP links that a new SYN opened again.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Reopened })},
	{"hosts", gauge, nil, "Inside hosts that are kept account of.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Hosts })},
	{"link_hits_total", counter, nil, "Packets of established links that took the short way.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Hits })},
	{"link_misses_total", counter, nil, "Packets that took the long way: rules, limits, new links, ICMP errors, fragments.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Misses })},
	{"untranslated_packets_total", counter, nil, "Packets forwarded without translation.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Untouched })},
	{"held_syns_total", counter, nil, "Unsolicited inbound SYNs that were held back (RFC 5382).", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.HeldSYN })},
	{"table_memory_bytes", gauge, nil, "Memory mapped for the tables of links; it is touched as they fill.", allShards(func(w *pmd.WorkerSample) uint64 { return w.NAT.Memory })},
}

// aliasesMax is how many alias addresses have series of their own; the rest is added up as otherAliases.
const (
	aliasesMax   = 256
	otherAliases = "others"
)

var byAlias = []string{"alias", "protocol"}

// perAlias makes a reader of one number for each alias address and protocol.
func perAlias(value func(p *pmd.PoolSample) int) func(*reading, *emitter) {
	return func(s *reading, e *emitter) {
		var others [lport.Rows]int
		rows := int(lport.RowOther) // the pool lists the rows before it
		for i := range s.Pool {
			p := &s.Pool[i]
			if i/rows < aliasesMax {
				e.emit(float64(value(p)), p.Alias.String(), rowName(p.Row))
			} else {
				others[p.Row] += value(p)
			}
		}
		if len(s.Pool)/rows > aliasesMax {
			for row := range lport.RowOther {
				e.emit(float64(others[row]), otherAliases, rowName(row))
			}
		}
	}
}

func rowName(r lport.Row) string {
	return [lport.Rows]string{"tcp", "udp", "icmp", "other"}[r]
}

var poolMetrics = []metric{
	{"pool_ports", gauge, byAlias, "Ports (ICMP: ids) of an alias address that links may have.", perAlias(func(p *pmd.PoolSample) int { return p.Ports })},
	{"pool_ports_used", gauge, byAlias, "Of these, in use by links.", perAlias(func(p *pmd.PoolSample) int { return p.Used })},
	{"pool_ports_free", gauge, byAlias, "Of these, nobody's. What is neither used nor free is kept by a worker for its next links.", perAlias(func(p *pmd.PoolSample) int { return p.Free })},
	{"worker_ports_owned", gauge, []string{"worker", "protocol"}, "Alias ports that the worker owns, in use or kept, on all addresses.",
		eachWorker(func(w *pmd.WorkerSample, label string, e *emitter) {
			for row, n := range w.Owned {
				e.emit(float64(n), label, rowName(lport.Row(row)))
			}
		})},
	{"pool_choices_total", counter, []string{"result"}, "Requests for an alias port: given, or refused.",
		func(s *reading, e *emitter) {
			e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return w.Space.Given }), "given")
			e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return w.Space.Refused }), "refused")
		}},
	{"pool_card_choices_total", counter, []string{"result"}, "Ports given where the card's RSS key is known: near, when the card brings the answers to the same worker, else far.",
		func(s *reading, e *emitter) {
			e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return w.Space.Near }), "near")
			e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return w.Space.Far }), "far")
		}},
	{"pool_choice_steps", histogram, nil, "Words of bitsets looked at and ports tried for one alias port.",
		func(s *reading, e *emitter) {
			var steps [lport.StepBuckets]uint64
			for i := range s.Workers {
				for b, n := range s.Workers[i].Space.Steps {
					steps[b] += n
				}
			}
			all := sum(s, func(w *pmd.WorkerSample) uint64 { return w.Space.StepsSum })
			e.distribution(steps[:], func(i int) float64 { return math.Ldexp(1, i) - 1 }, float64(all))
		}},
	{"pool_caches", gauge, nil, "Caches of ports in use toward one peer.", allShards(func(w *pmd.WorkerSample) uint64 { return uint64(w.Space.Caches) })},
	{"pool_caches_merged_total", counter, nil, "Pairs of caches that became one.", allShards(func(w *pmd.WorkerSample) uint64 { return w.Space.CachesMerged })},
	{"pool_caches_stolen_total", counter, nil, "Caches taken from a peer for one that needed it more.", allShards(func(w *pmd.WorkerSample) uint64 { return w.Space.CachesStolen })},
	{"pool_blocks", gauge, []string{"state"}, "Port blocks: held by a host, or resting before another host may have them.",
		func(s *reading, e *emitter) {
			e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return uint64(w.Space.BlocksHeld) }), "held")
			e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return uint64(w.Space.BlocksResting) }), "resting")
		}},
}

// routing makes a reader of one of the counters of attached next hops.
func routing(value func(c *rtcache.Counters) uint64) func(*reading, *emitter) {
	return allShards(func(w *pmd.WorkerSample) uint64 { return value(&w.Routing) })
}

// missCauses are the counters that are misses, by name.
var missCauses = []struct {
	name  string
	value func(c *rtcache.Counters) uint64
}{
	{"unattached", func(c *rtcache.Counters) uint64 { return c.Unattached }},
	{"no-slot", func(c *rtcache.Counters) uint64 { return c.NoSlot }},
	{"route-changed", func(c *rtcache.Counters) uint64 { return c.RouteChanged }},
	{"ingress-changed", func(c *rtcache.Counters) uint64 { return c.IngressChanged }},
	{"hop-changed", func(c *rtcache.Counters) uint64 { return c.HopChanged }},
	{"mode-changed", func(c *rtcache.Counters) uint64 { return c.ModeChanged }},
	{"cache-off", func(c *rtcache.Counters) uint64 { return c.CacheOff }},
}

// control makes a reader of one of the numbers of the routing's control side.
func control(value func(r *rtcache.Stats) uint64) func(*reading, *emitter) {
	return func(s *reading, e *emitter) { e.count(value(&s.Routes)) }
}

var routeMetrics = []metric{
	{"rtcache_enabled", gauge, nil, "Whether next hops are kept with links (routing.rtcache, pollux rtcache).",
		func(s *reading, e *emitter) { e.flag(s.RTCache) }},
	{"rtcache_hits_total", counter, nil, "Packets whose next hop was the one kept with their flow.", routing(func(c *rtcache.Counters) uint64 { return c.Hits })},
	{"rtcache_misses_total", counter, []string{"cause"}, "Packets whose next hop was looked up, by cause.",
		func(s *reading, e *emitter) {
			for _, c := range missCauses {
				e.count(sum(s, func(w *pmd.WorkerSample) uint64 { return c.value(&w.Routing) }), c.name)
			}
		}},
	{"reverse_path_checks_total", counter, nil, "Reverse-path checks made.", routing(func(c *rtcache.Counters) uint64 { return c.ReverseChecked })},
	{"reverse_path_failures_total", counter, nil, "Reverse-path checks that failed.", routing(func(c *rtcache.Counters) uint64 { return c.ReverseFailed })},
	{"next_hop_requests_total", counter, nil, "Times that a worker asked for a neighbour to be resolved.", routing(func(c *rtcache.Counters) uint64 { return c.Requests })},
	{"next_hop_requests_full_total", counter, nil, "Times that it could not ask at once.", routing(func(c *rtcache.Counters) uint64 { return c.RequestsFull })},
	{"routes", gauge, nil, "Routes of the kernel that are followed, IPv4 and IPv6.", control(func(r *rtcache.Stats) uint64 { return uint64(r.Routes) })},
	{"route_path_sets", gauge, nil, "Different sets of next hops among them.", control(func(r *rtcache.Stats) uint64 { return uint64(r.PathSets) })},
	{"next_hops", gauge, nil, "Next hops in use: gateways and hosts on connected networks.", control(func(r *rtcache.Stats) uint64 { return uint64(r.Hops) })},
	{"next_hops_waiting", gauge, nil, "Of these, not resolved yet.", control(func(r *rtcache.Stats) uint64 { return uint64(r.Waiting) })},
	{"next_hops_failed", gauge, nil, "Of these, that do not answer.", control(func(r *rtcache.Stats) uint64 { return uint64(r.Failed) })},
	{"next_hops_refused_total", counter, nil, "Next hops refused because too many are unresolved or there is no room.", control(func(r *rtcache.Stats) uint64 { return r.HopsRefused })},
	{"neighbour_requests_total", counter, nil, "Requests to the kernel to resolve a neighbour.", control(func(r *rtcache.Stats) uint64 { return r.Asked })},
	{"neighbour_request_errors_total", counter, nil, "Those that the kernel refused.", control(func(r *rtcache.Stats) uint64 { return r.AskErrors })},
	{"route_changes_published_total", counter, nil, "New versions of the routing table that workers were given.", control(func(r *rtcache.Stats) uint64 { return r.Published })},
	{"route_readings_total", counter, nil, "Whole readings of the kernel's routing, the first included.", control(func(r *rtcache.Stats) uint64 { return r.Readings })},
	{"route_message_overruns_total", counter, nil, "Times that the kernel lost routing messages for us; a whole reading follows.", control(func(r *rtcache.Stats) uint64 { return r.Overruns })},
}

var byCollector = []string{"collector", "protocol"}

// perCollector makes a reader of one number a collector of the translation log.
func perCollector(value func(c *natlog.CollectorStats) uint64) func(*reading, *emitter) {
	return func(s *reading, e *emitter) {
		for i := range s.log.Collectors {
			c := &s.log.Collectors[i]
			e.count(value(c), c.Collector, c.Protocol)
		}
	}
}

var logMetrics = []metric{
	{"log_events_sent_total", counter, byCollector, "Events of the translation log that a collector was sent.", perCollector(func(c *natlog.CollectorStats) uint64 { return c.Sent })},
	{"log_events_lost_total", counter, byCollector, "Events that a collector was not sent, because a ring or its queue was full or it did not answer.", perCollector(func(c *natlog.CollectorStats) uint64 { return c.Lost })},
	{"log_events_waiting", gauge, byCollector, "Events that wait for a collector.", perCollector(func(c *natlog.CollectorStats) uint64 { return uint64(c.Waiting) })},
	{"log_send_failures_total", counter, byCollector, "Times that sending to a collector failed.", perCollector(func(c *natlog.CollectorStats) uint64 { return c.Failures })},
	{"log_collector_connected", gauge, byCollector, "Whether a collector can be sent to.", perCollector(func(c *natlog.CollectorStats) uint64 {
		if c.Connected {
			return 1
		}
		return 0
	})},
}
