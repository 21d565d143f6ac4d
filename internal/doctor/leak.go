package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
)

// guardTable is the nft table of the rule that keeps untranslated packets in.
const guardTable = "pollux_guard"

// Guard is the nft command that keeps the kernel from forwarding from inside to outside ports: pollux's own traffic never
// passes the kernel's forwarding, so the rule stops only what would leave untranslated while pollux is away.
func Guard(inside, outside []string) string {
	return fmt.Sprintf("nft 'table inet %s { chain forward { type filter hook forward priority -150; iifname { %s } oifname { %s } drop; }; }'",
		guardTable, quoted(inside), quoted(outside))
}

func quoted(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(q, ", ")
}

// leak looks at what the kernel does with packets that pollux does not take, and at the ports the kernel itself uses.
func leak(o Options) []Result {
	var inside, outside []string
	for _, p := range o.Ports {
		if p.Inside {
			inside = append(inside, p.Name)
		} else {
			outside = append(outside, p.Name)
		}
	}
	var results []Result
	if len(inside) > 0 && len(outside) > 0 {
		results = append(results, forwarding(inside, outside))
	}
	if o.PortHigh > 0 && len(outside) > 0 {
		results = append(results, ephemeral(o, outside))
	}
	return results
}

func forwarding(inside, outside []string) Result {
	const check = "ip_forward"
	on := false
	for _, dev := range inside {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + dev + "/forwarding")
		on = on || err == nil && strings.TrimSpace(string(b)) == "1"
	}
	if !on {
		return ok(check, "off on the inside: the kernel forwards nothing when pollux stops")
	}
	if guarded() {
		return ok(check, "on, and table inet %s keeps untranslated packets in", guardTable)
	}
	return warn(check, Guard(inside, outside), "on: when pollux stops, the kernel forwards private addresses untranslated")
}

// guarded reports whether the guard's table is there. Without nft it can't be known, which counts as no.
func guarded() bool {
	nft, err := exec.LookPath("nft")
	if err != nil {
		nft = "/usr/sbin/nft"
	}
	return exec.Command(nft, "list", "table", "inet", guardTable).Run() == nil
}

// ephemeral compares the kernel's own choice of local ports with nat.port_range where both use one address.
func ephemeral(o Options, outside []string) Result {
	const check = "ephemeral ports"
	var low, high int
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if n, _ := fmt.Sscan(string(b), &low, &high); err != nil || n != 2 {
		return warn(check, "", "can't read net.ipv4.ip_local_port_range")
	}
	if !o.AliasPort && !sharesAddress(o.Alias) {
		return ok(check, "the kernel has no alias address")
	}
	if high < int(o.PortLow) || low > int(o.PortHigh) {
		return ok(check, "the kernel uses %d-%d, the NAT %d-%d", low, high, o.PortLow, o.PortHigh)
	}
	mend := fmt.Sprintf("sysctl -w net.ipv4.ip_local_port_range=\"60000 65535\" and nat.port_range: \"%d-59999\"", min(int(o.PortLow), 59998))
	return warn(check, mend, "the kernel picks its own ports from %d-%d on an alias address, the NAT from %d-%d: a connection of the gateway itself can displace a flow",
		low, high, o.PortLow, o.PortHigh)
}

// sharesAddress reports whether one of the addresses is the kernel's own.
func sharesAddress(alias []netip.Addr) bool {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil && len(addrs) == 0 {
		return false
	}
	for _, a := range addrs {
		for _, want := range alias {
			if a.IP.Equal(net.IP(want.AsSlice())) {
				return true
			}
		}
	}
	return false
}
