package doctor

import "pollux/internal/rss"

// Kind is for tests of devices that not every kernel can make.
var Kind = kind

// Interrupts looks at a test's machine, of whose queues the kernel tells the interrupts in told.
func Interrupts(name string, o Options, told map[int]int) []Result {
	return interrupts(name, o, openSysfs(o.Machine), func(q int) int { return told[q] })
}

// Cores looks at a test's machine.
func Cores(o Options) []Result { return processors(o, openSysfs(o.Machine)) }

// Node looks at a test's machine.
func Node(name string, o Options) Result { return node(name, o, openSysfs(o.Machine)) }

// QueueOf reads the name of an interrupt.
var QueueOf = queueOf

// Spreading is for tests of cards that this machine has not.
func Spreading(p Port, o Options, cards map[string]rss.State, errs map[string]error) []Result {
	all := map[string]card{}
	for name, s := range cards {
		all[name] = card{s, errs[name]}
	}
	list := spreading(p, o, all)
	for i := range list {
		list[i] = list[i].on(p.Name)
	}
	return list
}
