package doctor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pollux/internal/doctor"
	"pollux/internal/rss"
)

// machine makes a directory that stands for a machine: two NUMA nodes of four cores, 0 and 4 to 7 threads of one, and a card
// eth0 on node 0 with four queues, interrupts 40 to 43, and some that are no queue's.
func machine(t *testing.T, change map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"sys/devices/system/cpu/online":                             "0-7",
		"sys/devices/system/cpu/isolated":                           "1-3",
		"sys/devices/system/node/node0/cpulist":                     "0-3",
		"sys/devices/system/node/node1/cpulist":                     "4-7",
		"sys/devices/system/cpu/cpu4/topology/thread_siblings_list": "4-5",
		"sys/devices/system/cpu/cpu5/topology/thread_siblings_list": "4-5",
		"sys/class/net/eth0/device/numa_node":                       "0",
		"proc/1/comm":                                               "systemd",
		"proc/99/comm":                                              "sshd",
	}
	for irq, action := range map[string]string{
		"40": "eth0-TxRx-0", "41": "eth0-TxRx-1", "42": "eth0-TxRx-2", "43": "eth0-TxRx-3", "44": "eth0-fdir-TxRx-0", "45": "eth0",
	} {
		files["sys/class/net/eth0/device/msi_irqs/"+irq] = "msix"
		files["proc/irq/"+irq+"/"+action+"/x"] = ""
		files["proc/irq/"+irq+"/effective_affinity_list"] = "0"
	}
	for name, text := range change {
		files[name] = text
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if text == "-" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// find returns the one result of a check.
func find(t *testing.T, list []doctor.Result, check string) doctor.Result {
	t.Helper()
	for _, r := range list {
		if r.Check == check {
			if strings.Contains(r.String(), "\n") {
				t.Errorf("more than one line: %q", r)
			}
			return r
		}
	}
	t.Fatalf("no result of %q in %v", check, list)
	return doctor.Result{}
}

// says compares level and remedy whole, and what was found by its words.
func says(t *testing.T, r doctor.Result, level doctor.Level, mend string, words ...string) {
	t.Helper()
	if r.Level != level || r.Mend != mend {
		t.Errorf("%s: %s, mend %q; want %s, %q: %s", r.Check, r.Level, r.Mend, level, mend, r)
	}
	for _, w := range words {
		if !strings.Contains(r.Found, w) {
			t.Errorf("%s: %q lacks %q", r.Check, r.Found, w)
		}
	}
}

func TestInterrupts(t *testing.T) {
	o := doctor.Options{Cores: []int{1, 2}, Queues: []int{0, 1}}
	o.Machine = machine(t, nil)
	says(t, find(t, doctor.Interrupts("eth0", o, nil), "interrupts"), doctor.OK, "", "queue 0: interrupt 40 on 0; queue 1: interrupt 41 on 0")

	// On the core of a worker that spins: to one that has none, near the card.
	o.Machine = machine(t, map[string]string{"proc/irq/40/effective_affinity_list": "1", "proc/irq/41/effective_affinity_list": "2", "proc/77/comm": "irqbalance"})
	list := doctor.Interrupts("eth0", o, nil)
	says(t, find(t, list, "interrupts"), doctor.Warn, "echo 0 > /proc/irq/40/smp_affinity_list; echo 3 > /proc/irq/41/smp_affinity_list", "queue 0: interrupt 40 on core 1, where a worker spins")
	says(t, find(t, list, "irqbalance"), doctor.Warn, "systemctl disable --now irqbalance", "process 77")

	// Workers that sleep may share the core with the interrupt that wakes them.
	o.Adaptive = true
	says(t, find(t, doctor.Interrupts("eth0", o, nil), "interrupts"), doctor.OK, "")

	// On the other node: to the worker's own core if it sleeps, to one without a worker if it spins.
	o.Machine = machine(t, map[string]string{"proc/irq/41/effective_affinity_list": "-", "proc/irq/41/smp_affinity_list": "4-7"})
	says(t, find(t, doctor.Interrupts("eth0", o, nil), "interrupts"), doctor.Warn, "echo 2 > /proc/irq/41/smp_affinity_list", "another NUMA node")
	o.Adaptive = false
	says(t, find(t, doctor.Interrupts("eth0", o, nil), "interrupts"), doctor.Warn, "echo 3 > /proc/irq/41/smp_affinity_list", "another NUMA node")

	// Every core has a worker.
	o.Machine = machine(t, map[string]string{"sys/devices/system/cpu/online": "1-2", "proc/irq/40/effective_affinity_list": "1"})
	says(t, find(t, doctor.Interrupts("eth0", o, nil), "interrupts"), doctor.Warn, "leave a core without a worker, or --idle adaptive")

	// What the kernel tells goes before names, and a card without interrupts is no matter.
	o.Machine = machine(t, map[string]string{"proc/irq/60/effective_affinity_list": "2"})
	says(t, find(t, doctor.Interrupts("eth0", o, map[int]int{1: 60}), "interrupts"), doctor.Warn, "echo 3 > /proc/irq/60/smp_affinity_list", "queue 1: interrupt 60 on core 2")
	o.Machine = machine(t, map[string]string{"sys/class/net/eth5/device/vendor": "0x1af4", "sys/class/net/eth5/msi_irqs/50": "msix", "proc/irq/50/virtio2-input.0/x": "", "proc/irq/50/effective_affinity_list": "0"})
	says(t, find(t, doctor.Interrupts("eth5", o, nil), "interrupts"), doctor.OK, "", "queue 0: interrupt 50 on 0") // virtio
	if list := doctor.Interrupts("eth7", o, nil); list != nil {
		t.Errorf("%v", list)
	}
}

func TestInterruptNames(t *testing.T) {
	for name, want := range map[string]int{
		"eth1-TxRx-3": 3, "i40e-eth1-TxRx-12": 12, "ice-ens1f0-TxRx-0": 0, "eth0-Tx-Rx-5": 5, "eth1-rx-2": 2, "virtio3-input.1": 1,
		"mlx5_comp7@pci:0000:01:00.0": 7, "eth1-4": 4, "iavf-eth1-TxRx-1": 1,
		"virtio3-output.1": -1, "eth1-tx-2": -1, "mlx5_async0@pci:0000:01:00.0": -1, "i40e-0000:01:00.0:misc": -1, "eth1": -1, "ena-mgmnt@pci:0000:00:05.0": -1,
		"eth0-fdir-TxRx-0": -1, "virtio3-config": -1, "17": -1, "": -1,
	} {
		q, receives := doctor.QueueOf("eth1", name)
		if receives != (want >= 0) || receives && q != want {
			t.Errorf("%q: queue %d, %v; want %d", name, q, receives, want)
		}
	}
}

func TestProcessors(t *testing.T) {
	o := doctor.Options{Cores: []int{1, 2, 3}, Machine: machine(t, nil)}
	for _, check := range []string{"isolated cores", "frequency", "hyperthreads"} {
		says(t, find(t, doctor.Cores(o), check), doctor.OK, "")
	}
	o.Cores = []int{3, 4, 5}
	o.Machine = machine(t, map[string]string{
		"sys/devices/system/cpu/cpu3/cpufreq/scaling_governor": "performance", "sys/devices/system/cpu/cpu4/cpufreq/scaling_governor": "schedutil", "sys/devices/system/cpu/cpu5/cpufreq/scaling_governor": "schedutil",
	})
	list := doctor.Cores(o)
	says(t, find(t, list, "isolated cores"), doctor.Warn, "isolcpus=4-5 nohz_full=4-5 rcu_nocbs=4-5 on the kernel's command line, or --idle adaptive", "4-5, where workers spin")
	says(t, find(t, list, "frequency"), doctor.Warn, "cpupower -c 4-5 frequency-set -g performance", "governor of 4-5 is schedutil")
	says(t, find(t, list, "hyperthreads"), doctor.Warn, "--cores: one of each pair (/sys/devices/system/cpu/cpu*/topology/thread_siblings_list)", "cores 4 and 5")
	o.Adaptive = true
	says(t, find(t, doctor.Cores(o), "isolated cores"), doctor.OK, "", "sleep")
}

func TestNUMANode(t *testing.T) {
	o := doctor.Options{Cores: []int{0, 3}, Machine: machine(t, nil)}
	says(t, doctor.Node("eth0", o), doctor.OK, "", "0, and so are the workers")
	o.Cores = []int{3, 4, 6}
	says(t, doctor.Node("eth0", o), doctor.Warn, "--cores from 0-3", "on node 0, core 4,6 is not")
	says(t, doctor.Node("eth7", o), doctor.OK, "", "has none")
	o.Machine = machine(t, map[string]string{"sys/class/net/eth0/device/numa_node": "-1"})
	says(t, doctor.Node("eth0", o), doctor.OK, "", "has none")
}

func spreadOver(entries int, queues ...int) rss.State {
	key := make([]byte, 40)
	for i := range key {
		key[i] = byte(i*i + 7*i + 1)
	}
	s := rss.State{HashFunc: rss.HashToeplitz, Key: key, TCP4: rss.FourTuple, UDP4: rss.FourTuple}
	for i := range entries {
		s.Table = append(s.Table, uint32(queues[i%len(queues)]))
	}
	return s
}

func TestSpreading(t *testing.T) {
	out, in := doctor.Port{Name: "eth0"}, doctor.Port{Name: "eth1", Inside: true}
	second := doctor.Port{Name: "eth2"}
	o := doctor.Options{Ports: []doctor.Port{in, out, second}, Queues: []int{0, 1, 2, 3}, PerPeer: true}
	good := spreadOver(128, 0, 1, 2, 3)
	ask := func(p doctor.Port, o doctor.Options, change func(*rss.State)) []doctor.Result {
		s := spreadOver(128, 0, 1, 2, 3)
		change(&s)
		return doctor.Spreading(p, o, map[string]rss.State{p.Name: s}, nil)
	}
	as := func(*rss.State) {}

	list := ask(out, o, as)
	says(t, find(t, list, "RSS table"), doctor.OK, "", "toeplitz, 128 entries, a key of 40 bytes, transform none; a worker has between 32 and 32 entries")
	says(t, find(t, list, "RSS TCP"), doctor.OK, "", "sdfn")
	says(t, find(t, list, "RSS UDP"), doctor.OK, "", "sdfn")
	says(t, find(t, list, "RSS answers"), doctor.OK, "", "come in at their owner's queue (unproven on a NIC)")

	same := o
	same.SamePorts = true
	says(t, find(t, ask(out, same, as), "RSS answers"), doctor.Warn, "--nat-same-ports=false (then hosts' own port numbers are not kept)", "about 75% is handed over")
	shared := o
	shared.PerPeer = false
	says(t, find(t, ask(out, shared, as), "RSS answers"), doctor.OK, "", "no mapping is endpoint-dependent", "75%")

	list = ask(out, o, func(s *rss.State) { s.UDP4 = rss.TwoTuple })
	says(t, find(t, list, "RSS UDP"), doctor.Warn, "ethtool -N eth0 rx-flow-hash udp4 sdfn", "sd is hashed")
	list = ask(out, o, func(s *rss.State) { s.TCP4 = 0 })
	says(t, find(t, list, "RSS TCP"), doctor.Warn, "ethtool -N eth0 rx-flow-hash tcp4 sdfn", "everything comes to one queue")
	list = ask(out, o, func(s *rss.State) { s.TCP4 = rss.SrcAddr })
	says(t, find(t, list, "RSS TCP"), doctor.Warn, "ethtool -N eth0 rx-flow-hash tcp4 sdfn", "can't be predicted")
	list = ask(out, o, func(s *rss.State) { s.FieldsErr = errors.ErrUnsupported })
	says(t, find(t, list, "RSS fields"), doctor.OK, "", "does not tell")
	says(t, find(t, list, "RSS answers"), doctor.OK, "", "not known", "75%")

	says(t, find(t, ask(out, o, func(s *rss.State) { s.HashFunc = rss.HashXOR }), "RSS answers"), doctor.Warn, "ethtool -X eth0 hfunc toeplitz", "xor", "75%")
	says(t, find(t, ask(out, o, func(s *rss.State) { s.Transform = rss.SymmetricORXOR }), "RSS answers"), doctor.Warn, "ethtool -X eth0 xfrm none", "OR", "75%")
	says(t, find(t, ask(out, o, func(s *rss.State) { s.Key = nil }), "RSS answers"), doctor.OK, "", "key", "75%")
	says(t, find(t, ask(out, o, func(s *rss.State) { s.Transform = rss.SymmetricXOR }), "RSS table"), doctor.OK, "", "symmetric-xor, symmetric")

	// The table and the line that mends it.
	for _, c := range []struct {
		table  []int
		queues []int
		mend   string
		words  string
	}{
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, []int{0, 1, 2, 3}, "ethtool -X eth0 equal 4", "64 entries lead to queues without a worker (4-7)"},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, []int{5, 4}, "ethtool -X eth0 start 4 equal 2", "96 entries lead to queues without a worker (0-3,6-7)"},
		{[]int{0, 1, 2, 3}, []int{1, 3}, "ethtool -X eth0 weight 0 1 0 1", "64 entries lead to queues without a worker (0,2)"},
		{[]int{0, 0, 0, 1}, []int{0, 1}, "ethtool -X eth0 equal 2", "between 32 and 96"},
		{[]int{0}, []int{0, 1}, "ethtool -X eth0 equal 2", "between 0 and 128"},
	} {
		q := o
		q.Queues = c.queues
		s := spreadOver(128, c.table...)
		says(t, find(t, doctor.Spreading(out, q, map[string]rss.State{"eth0": s}, nil), "RSS table"), doctor.Warn, c.mend, c.words)
	}

	// The inside: owners by address, or by what the card hashes.
	inside := func(o doctor.Options, s rss.State) doctor.Result {
		return find(t, doctor.Spreading(in, o, map[string]rss.State{"eth1": s}, nil), "RSS owners")
	}
	says(t, inside(o, good), doctor.OK, "", "picked by the inside address", "about 75% is handed over", "workers.steer: flow")
	flow := o
	flow.SteerFlow = true
	says(t, inside(flow, good), doctor.OK, "", "owners that this card's hash picks (unproven on a NIC)")
	other := spreadOver(128, 0, 1, 2, 3)
	other.HashFunc = rss.HashXOR
	says(t, inside(flow, other), doctor.Warn, "ethtool -X eth1 hfunc toeplitz", "75%")
	flow.PerPeer = false
	says(t, inside(flow, good), doctor.OK, "", "picked by the inside address")
	flow.PerPeer = true
	flow.Ports = append([]doctor.Port{{Name: "eth3", Inside: true}}, o.Ports...)
	says(t, find(t, doctor.Spreading(in, flow, map[string]rss.State{"eth1": good, "eth3": good}, nil), "RSS owners"), doctor.OK, "", "as on eth3")
	says(t, find(t, doctor.Spreading(in, flow, map[string]rss.State{"eth1": good, "eth3": {}}, nil), "RSS owners"), doctor.Warn, "", "picked by eth3")

	// A second outside port counts as far as it spreads like the first.
	says(t, find(t, doctor.Spreading(second, o, map[string]rss.State{"eth0": good, "eth2": good}, nil), "RSS answers"), doctor.OK, "", "as on eth0")
	other = spreadOver(128, 0, 1, 2, 3)
	other.Key[0]++
	r := find(t, doctor.Spreading(second, o, map[string]rss.State{"eth0": good, "eth2": other}, nil), "RSS answers")
	says(t, r, doctor.Warn, r.Mend, "chosen by eth0, the first port of its role", "75%")
	if !strings.HasPrefix(r.Mend, "ethtool -X eth2 hkey 01:09:13:") || !strings.HasSuffix(r.Mend, " equal 4") || strings.Count(r.Mend, ":") != 39 {
		t.Errorf("mend: %q", r.Mend)
	}

	// Not told, not readable, not needed.
	says(t, find(t, doctor.Spreading(out, o, map[string]rss.State{"eth0": {}}, map[string]error{"eth0": rss.ErrNotTold}), "RSS"), doctor.OK, "", "does not tell", "handed over")
	says(t, find(t, doctor.Spreading(out, o, map[string]rss.State{"eth0": {}}, map[string]error{"eth0": errors.ErrUnsupported}), "RSS"), doctor.Warn, "", "not readable", "handed over")
	one := o
	one.Queues = []int{0}
	if list := doctor.Spreading(out, one, map[string]rss.State{"eth0": good}, nil); list != nil {
		t.Errorf("one worker: %v", list)
	}
}
