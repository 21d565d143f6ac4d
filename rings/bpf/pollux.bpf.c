// SPDX-License-Identifier: GPL-2.0
//
// Whose is this packet: the kernel's or the NAT's? One instance runs on each port; the address tables are shared. The
// order of the decisions is the contract between the control plane and this program; each has a counter.
//
//   1. not IP or ARP, VLAN-tagged, not to the port's own MAC        the kernel's
//      ARP request for an alias that we stand in for                answered
//   2. multicast, broadcast, loopback, an address of the kernel's   the kernel's
//      any other unicast that is not to an alias                    the NAT's
//   3. to an alias: the owner byte of the port (TCP, UDP), the id (echo, timestamp), what an ICMP error quotes, or
//      hash(remote, protocol); later fragments go where the first one went
//   4. byte 0: the kernel's if it has the address and there is no target; 254: the kernel's; a worker's or a redirect's
//      (255): the NAT's, but a live kernel socket wins where the kernel has the address
//   5. the NAT's: to the socket of the queue; without one it is dropped, never passed on untranslated
//
// Needs nothing newer than Linux 6.1.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define BYTE_FREE     0
#define BYTE_KERNEL   254
#define BYTE_REDIRECT 255

enum row { ROW_TCP, ROW_UDP, ROW_ICMP, ROW_OTHER, ROWS };

// What was decided, one counter each. The order is that of the Go side's table of names.
enum cause {
	TO_WORKER,        // to the socket of the queue
	NO_QUEUE,         // the NAT's, but no socket on this queue: dropped
	ARP_ANSWERED,     // sent back
	PASS_NOT_IP,      // neither IP nor ARP, or VLAN-tagged
	PASS_MAC,         // to another station, or multicast
	PASS_ARP,         // ARP that we don't answer
	PASS_IPV6,        // IPv6
	PASS_LOCAL,       // to an address of the kernel's, multicast, broadcast
	PASS_FREE,        // to an alias that the kernel has, nobody owns the port
	PASS_KERNEL_PORT, // the port is the kernel's (254)
	PASS_SOCKET,      // the port has an owner, but a kernel socket takes the packet
	PASS_ECHO,        // echo request to an address that the kernel has
	PASS_FRAGMENT,    // later fragment of a packet that was passed
	CAUSES,
};

// Flags of an address.
#define ADDR_KERNEL 1 // the kernel has it
#define ADDR_ALIAS  2 // it is an alias address of the NAT
#define ADDR_TARGET 4 // unmatched inbound to it goes to a target host

struct address {
	__u16 flags;
	__u16 arp_ports; // bit i: port i answers ARP for it unless the kernel has it
};

struct fragment {
	__u32 src, dst; // network order
	__u16 id;
	__u8 proto;
	__u8 pad;
};

// Flags of a port, above its MAC address in port_state.
#define PORT_FORWARD_IPV6  (1ULL << 48) // IPv6 that is not the kernel's goes to the worker
#define PORT_ARP_BY_WORKER (1ULL << 49) // the driver can't send a packet back: the worker answers ARP

volatile __u64 port_state;         // bits 0-47 MAC (first byte lowest), 48-63 flags; one word, so never seen half-written
const volatile __u32 port_number;  // which bit of address.arp_ports is ours

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CAUSES);
	__type(key, enum cause);
	__type(value, __u64);
} counters SEC(".maps");

// Shared by all ports.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); // network order
	__type(value, struct address);
} addresses SEC(".maps");

// One bit for each hash of an address in the table above: most packets are to none of them and need no look-up.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__uint(value_size, 65536 / 8);
} filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 16);
	__type(value, __u8);
} addresses6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); // alias, network order
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, ROWS);
		__uint(map_flags, BPF_F_MMAPABLE);
		__type(key, __u32);
		__uint(value_size, 65536);
	});
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct fragment);
	__type(value, __u8);
} fragments SEC(".maps");

struct ipv4 {
	__u8 version_ihl, tos;
	__be16 len, id, fragment;
	__u8 ttl, proto;
	__sum16 check;
	__be32 src, dst;
};

struct ports { // of TCP and UDP
	__be16 src, dst;
};

struct icmp { // the first 8 bytes
	__u8 type, code;
	__sum16 check;
	__be16 id, seq;
};

struct arp {
	__be16 hardware, protocol;
	__u8 hardware_len, protocol_len;
	__be16 operation;
	__u8 sender_mac[6], sender[4], target_mac[6], target[4];
};

static __always_inline void count(__u32 cause)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &cause);
	if (n)
		(*n)++;
}

static __always_inline int pass(enum cause why)
{
	count(why);
	return XDP_PASS;
}

static __always_inline int to_worker(struct xdp_md *ctx)
{
	int verdict = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
	count(verdict == XDP_REDIRECT ? TO_WORKER : NO_QUEUE);
	return verdict;
}

// other_slot is the place in ROW_OTHER of a protocol without ports. The Go side has the same function.
static __always_inline __u16 other_slot(__be32 remote, __u8 proto)
{
	return ((bpf_ntohl(remote) ^ (__u32)proto << 24) * 0x9e3779b1u) >> 16;
}

// find looks an address up, in network order.
static __always_inline struct address *find(__u32 addr)
{
	__u32 zero = 0;
	__u8 *bits = bpf_map_lookup_elem(&filter, &zero);
	__u16 hash = addr * 0x9e3779b1u >> 16;
	if (bits && !(bits[hash >> 3] & 1 << (hash & 7)))
		return 0;
	return bpf_map_lookup_elem(&addresses, &addr);
}

static __always_inline __u64 mac_word(const __u8 *m)
{
	return *(__u32 *)m | (__u64)*(__u16 *)(m + 4) << 32;
}

static __always_inline void put_mac(__u8 *m, __u64 word)
{
#pragma unroll
	for (int i = 0; i < 6; i++)
		m[i] = word >> (8 * i);
}

// arp answers a request for an alias address that the kernel lacks. It never claims an address that the sender itself
// announces.
static __always_inline int arp(struct xdp_md *ctx, struct ethhdr *eth, void *end)
{
	struct arp *a = (void *)(eth + 1);
	if ((void *)(a + 1) > end || a->hardware != bpf_htons(1) || a->protocol != bpf_htons(ETH_P_IP) ||
	    a->hardware_len != 6 || a->protocol_len != 4 || a->operation != bpf_htons(1))
		return pass(PASS_ARP);
	__u32 sender, target;
	__builtin_memcpy(&sender, a->sender, 4);
	__builtin_memcpy(&target, a->target, 4);
	struct address *known = find(target);
	if (!known || sender == target || !(known->flags & ADDR_ALIAS) || known->flags & ADDR_KERNEL ||
	    !(known->arp_ports & 1 << (port_number & 15)))
		return pass(PASS_ARP);
	__u64 port = port_state;
	if (port & PORT_ARP_BY_WORKER)
		return to_worker(ctx);
	__builtin_memcpy(eth->h_dest, a->sender_mac, 6);
	put_mac(eth->h_source, port);
	a->operation = bpf_htons(2);
	__builtin_memcpy(a->target_mac, a->sender_mac, 6);
	__builtin_memcpy(a->target, &sender, 4);
	put_mac(a->sender_mac, port);
	__builtin_memcpy(a->sender, &target, 4);
	count(ARP_ANSWERED);
	return XDP_TX;
}

static __always_inline int ipv6(struct xdp_md *ctx, void *l3, void *end)
{
	__u8 *dst = l3 + 24;
	if (!(port_state & PORT_FORWARD_IPV6) || l3 + 40 > end)
		return pass(PASS_IPV6);
	if (dst[0] == 0xff || (dst[0] == 0xfe && (dst[1] & 0xc0) == 0x80) || bpf_map_lookup_elem(&addresses6, dst))
		return pass(PASS_IPV6);
	return to_worker(ctx);
}

// socket_takes reports whether the kernel has a socket for a packet from remote to local: listening, connected or closing.
static __always_inline int socket_takes(struct xdp_md *ctx, enum row row, __be32 remote, __be16 remote_port, __be32 local,
					__be16 local_port)
{
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;

	t.ipv4.saddr = remote;
	t.ipv4.sport = remote_port;
	t.ipv4.daddr = local;
	t.ipv4.dport = local_port;
	if (row == ROW_TCP)
		sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_udp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	bpf_sk_release(sk);
	return 1;
}

// alias decides on a packet to an alias address.
static __always_inline int alias(struct xdp_md *ctx, struct ipv4 *ip, void *end, struct address *known)
{
	__u32 row = ROWS; // none: decided as if the byte were free
	__u32 local = ip->dst;
	__be32 remote = ip->src;
	__be16 local_port = 0, remote_port = 0;
	__u8 proto = ip->proto;
	__u16 slot = 0;
	int request = 0;
	int first_of_many = ip->fragment & bpf_htons(0x2000);

	struct fragment key = {.src = ip->src, .dst = ip->dst, .id = ip->id, .proto = proto};
	if (ip->fragment & bpf_htons(0x1fff)) {
		if (bpf_map_lookup_elem(&fragments, &key))
			return pass(PASS_FRAGMENT);
		return to_worker(ctx);
	}

	void *l4 = (void *)ip + ((ip->version_ihl & 15) << 2);
	if (proto == 1) {
		struct icmp *icmp = l4;
		if ((void *)(icmp + 1) > end)
			goto byte;
		switch (icmp->type) {
		case 8: // echo and timestamp request
		case 13:
			request = 1;
		case 0: // and reply
		case 14:
			row = ROW_ICMP;
			slot = bpf_ntohs(icmp->id);
			goto byte;
		case 3: // unreachable, quench, time exceeded, parameter problem: about a packet that the alias sent
		case 4:
		case 11:
		case 12:
			break;
		default:
			goto byte;
		}
		struct ipv4 *quoted = (void *)(icmp + 1);
		if ((void *)(quoted + 1) > end || quoted->src != local || quoted->fragment & bpf_htons(0x1fff))
			goto byte;
		proto = quoted->proto;
		remote = quoted->dst;
		l4 = (void *)quoted + ((quoted->version_ihl & 15) << 2);
		if (proto == 6 || proto == 17) {
			struct ports *p = l4;
			if ((void *)(p + 1) > end)
				goto byte;
			row = proto == 6 ? ROW_TCP : ROW_UDP;
			local_port = p->src;
			remote_port = p->dst;
			slot = bpf_ntohs(local_port);
		} else if (proto == 1) {
			icmp = l4;
			if ((void *)(icmp + 1) > end)
				goto byte;
			row = ROW_ICMP;
			slot = bpf_ntohs(icmp->id);
		} else {
			row = ROW_OTHER;
			slot = other_slot(remote, proto);
		}
	} else if (proto == 6 || proto == 17) {
		struct ports *p = l4;
		if ((void *)(p + 1) > end)
			goto byte;
		row = proto == 6 ? ROW_TCP : ROW_UDP;
		local_port = p->dst;
		remote_port = p->src;
		slot = bpf_ntohs(local_port);
	} else {
		row = ROW_OTHER;
		slot = other_slot(remote, proto);
	}

byte:;
	__u8 byte = BYTE_FREE;
	if (row < ROWS) {
		void *rows = bpf_map_lookup_elem(&owners, &local);
		if (rows) {
			__u8 *bytes = bpf_map_lookup_elem(rows, &row);
			if (bytes)
				byte = *(volatile __u8 *)(bytes + slot);
		}
	}

	__u16 flags = known->flags;
	enum cause why = TO_WORKER;
	if (request) {
		if (byte != BYTE_REDIRECT && flags & ADDR_KERNEL)
			why = PASS_ECHO;
	} else if (byte == BYTE_FREE) {
		if (flags & ADDR_KERNEL && !(flags & ADDR_TARGET))
			why = PASS_FREE;
	} else if (byte == BYTE_KERNEL) {
		why = PASS_KERNEL_PORT;
	} else if (flags & ADDR_KERNEL && row <= ROW_UDP && socket_takes(ctx, row, remote, remote_port, local, local_port)) {
		why = PASS_SOCKET;
	}
	if (first_of_many) { // the rest of it has no ports; an older packet may have had the same id
		__u8 passed = 1;
		if (why == TO_WORKER)
			bpf_map_delete_elem(&fragments, &key);
		else
			bpf_map_update_elem(&fragments, &key, &passed, BPF_ANY);
	}
	return why == TO_WORKER ? to_worker(ctx) : pass(why);
}

SEC("xdp")
int pollux(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return pass(PASS_NOT_IP);
	if (eth->h_proto == bpf_htons(ETH_P_ARP))
		return arp(ctx, eth, end);
	if (eth->h_proto != bpf_htons(ETH_P_IP) && eth->h_proto != bpf_htons(ETH_P_IPV6))
		return pass(PASS_NOT_IP);
	if (mac_word(eth->h_dest) != (port_state & ((1ULL << 48) - 1)))
		return pass(PASS_MAC);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return ipv6(ctx, eth + 1, end);

	struct ipv4 *ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end)
		return to_worker(ctx); // it counts bad headers
	__u32 dst = bpf_ntohl(ip->dst);
	if (dst >= 0xe0000000 || dst >> 24 == 127 || dst >> 24 == 0)
		return pass(PASS_LOCAL);
	struct address *known = find(ip->dst);
	if (!known)
		return to_worker(ctx);
	if (!(known->flags & ADDR_ALIAS))
		return pass(PASS_LOCAL);
	return alias(ctx, ip, end, known);
}

// A worker that recognises a packet as the host's gives it back through this one, run with live frames.
SEC("xdp")
int punt(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
