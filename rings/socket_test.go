package rings

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func testUMEM(t testing.TB, frames int) (*UMEM, *Pool) {
	t.Helper()
	u, err := NewUMEM(UMEMOptions{Frames: frames})
	if err != nil {
		t.Fatal(err)
	}
	p, err := u.NewPool(frames)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	return u, p
}

func TestSocketsBindInAnyOrderAndShareOneUMEM(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 2)
	b, _ := veth(t, "b0", "b1", 2)
	ports := []PortQueue{{"a0", a, 0}, {"a0", a, 1}, {"b0", b, 0}, {"b0", b, 1}}
	u, p := testUMEM(t, 1024)
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 1, 0, 2}, {1, 3, 2, 0}} {
		var open []*Socket
		for _, i := range order {
			s, err := OpenSocket(u, SocketOptions{Port: ports[i], RingSize: 64})
			if err != nil {
				t.Fatalf("order %v: %v", order, err)
			}
			s.Service(p)
			if f := s.Frames(); f.Fill != 64 || f.RX != 0 || f.TX != 0 {
				t.Errorf("after the first Service %+v, want 64 in the fill ring", f)
			}
			open = append(open, s)
			if i == order[1] { // the first that bound may leave: another stands for the UMEM then
				if err := open[0].Close(p); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, s := range open {
			if err := s.Close(p); err != nil {
				t.Error(err)
			}
		}
		if p.Len() != 1024 {
			t.Fatalf("order %v: %d of 1024 frames came back", order, p.Len())
		}
	}
}

func TestSocketErrorsNameThingAndRemedy(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 2)
	u, p := testUMEM(t, 256)
	other, _ := testUMEM(t, 256)
	s, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", a, 1}, RingSize: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(p)
	for _, c := range []struct {
		name string
		u    *UMEM
		o    SocketOptions
		is   unix.Errno
		want []string
	}{
		{"queue out of range", u, SocketOptions{Port: PortQueue{"a0", a, 2}}, unix.EINVAL, []string{"a0 queue 2", "has 2 (0 to 1)", "ethtool -l a0"}},
		{"no such netdev", other, SocketOptions{Port: PortQueue{"nope", 99999, 0}}, unix.ENODEV, []string{"nope", "ip link"}},
		{"bound by this UMEM", u, SocketOptions{Port: PortQueue{"a0", a, 1}}, unix.EBUSY, []string{"a0 queue 1", "this process"}},
		{"bound by another", other, SocketOptions{Port: PortQueue{"a0", a, 1}}, unix.EBUSY, []string{"a0 queue 1", "another AF_XDP socket", "choose another queue"}},
		{"no zero-copy", other, SocketOptions{Port: PortQueue{"a0", a, 0}, Mode: ZeroCopy}, unix.EOPNOTSUPP, []string{"a0 queue 0", "zerocopy", "copy or auto"}},
		{"odd ring", u, SocketOptions{Port: PortQueue{"a0", a, 0}, RingSize: 1000}, 0, []string{"power of two"}},
		{"mode not chosen", u, SocketOptions{Port: PortQueue{"a0", a, 0}, Mode: Auto}, 0, []string{"ChooseMode"}},
	} {
		got, err := OpenSocket(c.u, c.o)
		if err == nil {
			got.Close(p)
			t.Errorf("%s: accepted", c.name)
			continue
		}
		if c.is != 0 && !errors.Is(err, c.is) {
			t.Errorf("%s: %v is not %v", c.name, err, c.is)
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q in one line", c.name, err, w)
			}
		}
	}
}

func TestChooseModeOnVethIsCopyWithANotice(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 1)
	mode, notice, err := ChooseMode(Auto, []PortQueue{{"a0", a, 0}})
	if err != nil || mode != Copy || !strings.Contains(notice, "a0") {
		t.Errorf("mode %v, notice %q, error %v", mode, notice, err)
	}
	if mode, notice, err = ChooseMode(ZeroCopy, nil); mode != ZeroCopy || notice != "" || err != nil {
		t.Errorf("an explicit mode was changed: %v %q %v", mode, notice, err)
	}
}

func TestSocketReopensAHundredTimes(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 1)
	u, p := testUMEM(t, 256)
	for i := range 100 {
		s, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", a, 0}, RingSize: 64})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		s.Service(p)
		if err := s.Close(p); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if p.Len() != 256 {
			t.Fatalf("round %d: %d of 256 frames came back", i, p.Len())
		}
	}
}

func TestSocketTXBudgetIsTheRingWhereTheKernelHasIt(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 1)
	u, p := testUMEM(t, 256)
	for _, c := range []struct{ ask, want int }{{0, 128}, {64, 64}, {1 << 20, 128}, {1, 32}} {
		s, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", a, 0}, RingSize: 128, TXBudget: c.ask})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.TXBudget(); got != c.want && (got != 32 || s.Notice() == "") {
			t.Errorf("asked for %d, got %d (%q), want %d", c.ask, got, s.Notice(), c.want)
		}
		s.Close(p)
	}
}

// dropCapability takes one capability from the calling thread until the test ends.
func dropCapability(t *testing.T, bit int) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was [2]unix.CapUserData
	if err := unix.Capget(&header, &was[0]); err != nil {
		t.Fatal(err)
	}
	now := was
	now[bit/32].Effective &^= 1 << (bit % 32)
	if err := unix.Capset(&header, &now[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Capset(&header, &was[0]); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSocketSaysWhichPrivilegeIsMissing(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 1)
	refused := func(u *UMEM, p *Pool, want string) {
		t.Helper()
		s, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", a, 0}, RingSize: 64})
		if err == nil {
			s.Close(p)
			t.Errorf("accepted, want an error that names %s", want)
		} else if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a0 queue 0") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q does not name %s in one line", err, want)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	small := unix.Rlimit{Cur: 64 << 10, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)
	u, p := testUMEM(t, 256)
	dropCapability(t, unix.CAP_IPC_LOCK)
	refused(u, p, "CAP_IPC_LOCK")
	dropCapability(t, unix.CAP_NET_RAW)
	refused(u, p, "CAP_NET_RAW")
	for _, f := range ProbeKernel("") {
		if f.Name == "af_xdp" && (f.OK || !strings.Contains(f.Remedy, "CAP_NET_RAW")) {
			t.Errorf("%+v", f)
		}
	}
	dropCapability(t, unix.CAP_BPF)
	dropCapability(t, unix.CAP_SYS_ADMIN)
	if _, err := NewTables(); err == nil || !strings.Contains(err.Error(), "CAP_BPF") {
		t.Errorf("no BPF: %v", err)
	}
}
