package doctor

import (
	"fmt"
	"slices"

	"pollux/internal/cpu"
)

// processors looks at the workers' cores themselves: who else runs there, how fast they are, and whether two share one.
func processors(o Options, sys sysfs) []Result {
	return []Result{isolation(o, sys), governor(o, sys), siblings(o, sys)}
}

func isolation(o Options, sys sysfs) Result {
	const check = "isolated cores"
	isolated, err := cpu.ParseList(sys.read("devices/system/cpu/isolated"))
	if err != nil {
		return ok(check, "can't be read: %v", err)
	}
	if o.Adaptive {
		return ok(check, "not needed: idle workers sleep")
	}
	var shared []int
	for _, c := range workerCores(o) {
		if !slices.Contains(isolated, c) && !slices.Contains(shared, c) {
			shared = append(shared, c)
		}
	}
	if len(shared) > 0 {
		slices.Sort(shared)
		return warn(check, fmt.Sprintf("isolcpus=%s nohz_full=%s rcu_nocbs=%s on the kernel's command line, or --idle adaptive", list(shared), list(shared), list(shared)),
			"the scheduler may put other threads on %s, where workers spin", list(shared))
	}
	return ok(check, "%s: the workers have them for themselves", list(workerCores(o)))
}

func governor(o Options, sys sysfs) Result {
	const check = "frequency"
	var slow []int
	name := ""
	for _, c := range workerCores(o) {
		if g := sys.read(fmt.Sprintf("devices/system/cpu/cpu%d/cpufreq/scaling_governor", c)); g != "" && g != "performance" && !slices.Contains(slow, c) {
			slow, name = append(slow, c), g
		}
	}
	if len(slow) > 0 {
		slices.Sort(slow)
		return warn(check, fmt.Sprintf("cpupower -c %s frequency-set -g performance", list(slow)), "the governor of %s is %s: a worker that slept, or that just began to be busy, is slow", list(slow), name)
	}
	return ok(check, "nothing holds the workers' cores back")
}

func siblings(o Options, sys sysfs) Result {
	const check = "hyperthreads"
	workers := workerCores(o)
	for i, c := range workers {
		same, err := cpu.ParseList(sys.read(fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", c)))
		if err != nil {
			continue
		}
		for _, other := range workers[:i] {
			if other != c && slices.Contains(same, other) {
				return warn(check, "--cores: one of each pair (/sys/devices/system/cpu/cpu*/topology/thread_siblings_list)", "cores %d and %d are threads of one: two workers there are hardly faster than one", other, c)
			}
		}
	}
	return ok(check, "no two workers share a core")
}

// node checks that the workers' cores are on the card's NUMA node.
func node(name string, o Options, sys sysfs) Result {
	const check = "NUMA node"
	n := sys.node(name)
	near := sys.nodeCores(n)
	if n < 0 || len(near) == 0 {
		return ok(check, "the device has none")
	}
	var far []int
	for _, c := range workerCores(o) {
		if !slices.Contains(near, c) {
			far = append(far, c)
		}
	}
	if len(far) > 0 {
		slices.Sort(far)
		return warn(check, fmt.Sprintf("--cores from %s", list(near)), "it is on node %d, core %s is not: every packet crosses over", n, list(slices.Compact(far)))
	}
	return ok(check, "%d, and so are the workers", n)
}
