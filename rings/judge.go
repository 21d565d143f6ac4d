package rings

import (
	"encoding/binary"

	"github.com/cilium/ebpf"
)

// Judge is an instance of the XDP program that hangs on no netdev. It decides by the same tables as the others, and its own
// counters tell what it decided, so that what the program would do with a packet can be asked without a trace.
type Judge struct{ program *Program }

// NewJudge loads the program for a port.
func NewJudge(o ProgramOptions) (*Judge, error) {
	p, err := LoadProgram(o)
	if err != nil {
		return nil, err
	}
	return &Judge{p}, nil
}

// Decide says what the program does with a frame that comes in by the netdev with that index in the calling thread's network
// namespace. Which queue has a worker is left out: CauseToWorker stands for CauseNoQueue too. Later fragments are decided as if
// their first one had never been seen. frame is at least an Ethernet header and is not changed.
func (j *Judge) Decide(ifindex int, frame []byte) (Cause, error) {
	before, err := j.program.Counters()
	if err != nil {
		return 0, err
	}
	var context [24]byte // see Punt.Send
	binary.NativeEndian.PutUint32(context[4:], uint32(len(frame)))
	binary.NativeEndian.PutUint32(context[12:], uint32(ifindex))
	if _, err := j.program.program.Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context}); err != nil {
		return 0, explainBPF("XDP program: test run", err)
	}
	after, err := j.program.Counters()
	if err != nil {
		return 0, err
	}
	for c := range Causes {
		if after[c] != before[c] {
			if c == CauseNoQueue {
				return CauseToWorker, nil
			}
			return c, nil
		}
	}
	return CauseToWorker, nil // none: can't be
}

// Close unloads the program.
func (j *Judge) Close() error { return j.program.Close() }
