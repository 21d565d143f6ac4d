package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pollux/internal/cpu"
)

// interrupts looks where the interrupts of the polled queues are taken. irqOf is what the kernel tells (since 6.8); what it
// does not tell is known by the names that drivers give.
//
// A worker that spins starves whatever else its core must do, so interrupts belong on other cores, near the card. One
// that sleeps when idle is best woken on its own core.
func interrupts(name string, o Options, sys sysfs, irqOf func(queue int) int) []Result {
	const check = "interrupts"
	named := sys.queueIRQs(name)
	workers := workerCores(o)
	near := sys.nodeCores(sys.node(name))
	var free []int // cores to move interrupts to
	allowed, err := cpu.Allowed()
	if o.Machine != "" { // the test's machine, not this one
		allowed, err = cpu.ParseList(sys.read("devices/system/cpu/online"))
	}
	if err == nil {
		for _, c := range allowed {
			if !slices.Contains(workers, c) {
				free = append(free, c)
			}
		}
	}
	if nearby := slices.DeleteFunc(slices.Clone(free), func(c int) bool { return !slices.Contains(near, c) }); len(nearby) > 0 {
		free = nearby
	}
	var found, wrong, lines []string
	for i, q := range o.Queues {
		irqs := named[q]
		if irq := irqOf(q); irq > 0 {
			irqs = []int{irq}
		}
		for _, irq := range irqs {
			on := sys.irqCores(irq)
			if len(on) == 0 {
				continue
			}
			found = append(found, fmt.Sprintf("queue %d: interrupt %d on %s", q, irq, list(on)))
			why := ""
			to := -1
			if len(free) > 0 {
				to = free[i%len(free)]
			}
			for _, c := range on {
				switch {
				case !o.Adaptive && slices.Contains(workers, c):
					why = fmt.Sprintf("core %d, where a worker spins", c)
				case why == "" && len(near) > 0 && !slices.Contains(near, c):
					why = fmt.Sprintf("core %d, which is on another NUMA node than the card", c)
					if o.Adaptive && i < len(workers) && slices.Contains(near, workers[i]) {
						to = workers[i]
					}
				}
			}
			if why == "" {
				continue
			}
			wrong = append(wrong, fmt.Sprintf("queue %d: interrupt %d on %s", q, irq, why))
			if to >= 0 {
				lines = append(lines, fmt.Sprintf("echo %d > /proc/irq/%d/smp_affinity_list", to, irq))
			}
		}
	}
	switch {
	case len(found) == 0:
		return nil
	case len(wrong) == 0:
		return []Result{ok(check, "%s", strings.Join(found, "; "))}
	case len(lines) == 0:
		return []Result{warn(check, "leave a core without a worker, or --idle adaptive", "%s", strings.Join(wrong, "; "))}
	}
	results := []Result{warn(check, strings.Join(lines, "; "), "%s", strings.Join(wrong, "; "))}
	if pid := sys.process("irqbalance"); pid > 0 {
		results = append(results, warn("irqbalance", "systemctl disable --now irqbalance", "it runs (process %d) and moves interrupts back", pid))
	}
	return results
}

// workerCores are the cores that workers will be on.
func workerCores(o Options) []int {
	if len(o.Cores) > 0 {
		return o.Cores
	}
	if allowed, err := cpu.Allowed(); err == nil && len(allowed) > 0 {
		return allowed[len(allowed)-1:]
	}
	return nil
}

// queueIRQs finds the interrupts of a card's receive queues by the names of their handlers.
func (s sysfs) queueIRQs(device string) map[int][]int {
	queues := map[int][]int{}
	dir := filepath.Join(s.root, "class/net", device) + "/device"
	entries, _ := os.ReadDir(dir + "/msi_irqs")
	if len(entries) == 0 {
		entries, _ = os.ReadDir(dir + "/../msi_irqs") // a virtio device's are its bus device's; not for Join, which takes .. away
	}
	for _, e := range entries {
		irq, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		actions, _ := os.ReadDir(filepath.Join(s.proc, "irq", e.Name()))
		for _, a := range actions {
			if q, receives := queueOf(device, a.Name()); a.IsDir() && receives {
				queues[q] = append(queues[q], irq)
			}
		}
	}
	for _, irqs := range queues {
		slices.Sort(irqs)
	}
	return queues
}

// notQueues are words in the names of interrupts that are no receive queue's.
var notQueues = []string{"async", "config", "control", "ctrl", "cmd", "misc", "mgm", "health", "event", "fdir", "ptp", "lsc", "-tx", "output"}

// queueOf reads the queue out of the name of a device's interrupt, such as eth1-TxRx-3, i40e-eth1-TxRx-3, eth1-rx-3, virtio3-input.3,
// mlx5_comp3@pci:0000:01:00.0 or eth1-3. One named like the device is for changes of the link.
func queueOf(device, action string) (queue int, receives bool) {
	name, _, _ := strings.Cut(strings.ToLower(action), "@")
	for _, both := range []string{"txrx", "tx-rx", "rx-tx", "rxtx"} {
		name = strings.ReplaceAll(name, both, "rx")
	}
	if action == device || slices.ContainsFunc(notQueues, func(w string) bool { return strings.Contains(name, w) }) {
		return 0, false
	}
	digits := name[len(strings.TrimRight(name, "0123456789")):]
	q, err := strconv.Atoi(digits)
	return q, err == nil && len(digits) < len(name)
}

// irqCores returns the cores that an interrupt is taken on: the one in effect, or else those it may be taken on.
func (s sysfs) irqCores(irq int) []int {
	for _, file := range []string{"effective_affinity_list", "smp_affinity_list"} {
		b, err := os.ReadFile(filepath.Join(s.proc, "irq", itoa(irq), file))
		if err != nil {
			continue
		}
		if on, err := cpu.ParseList(strings.TrimSpace(string(b))); err == nil && len(on) > 0 {
			return on
		}
	}
	return nil
}

// process returns the pid of a process by its name, 0 when there is none.
func (s sysfs) process(name string) int {
	entries, _ := os.ReadDir(s.proc)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(s.proc, e.Name(), "comm")); err == nil && strings.TrimSpace(string(b)) == name {
			return pid
		}
	}
	return 0
}
