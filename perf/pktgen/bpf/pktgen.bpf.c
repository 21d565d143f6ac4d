// SPDX-License-Identifier: GPL-2.0
//
// Generator and sinks that run in the kernel. One instance is loaded per run with its configuration as constants, so that
// the branches it does not need are gone before the first packet.
//
//   generate   run by BPF_PROG_TEST_RUN with live frames: writes one packet of the stream and redirects it to the device
//   sink       tc ingress: counts stamped packets and their latency, sends some of them back if asked to, drops the rest
//   to_socket  XDP: stamped packets to the AF_XDP socket of the queue
//
// Packets that bear no stamp are never touched by a sink: they go on to the stack.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define HEADER_WORDS 12  // of 8 bytes: Ethernet, IPv6, TCP and a stamp fit into 96
#define PATTERN_MAX  16 // a power of two
#define STREAMS      64
#define BUCKETS      2048
#define STAMP_MAGIC  bpf_htons(0x7078)

// What a test packet carries behind its L4 header; the Go side has the same offsets.
struct stamp {
	__u16 magic;
	__u8 run, stream;
	__u32 seq;  // network order
	__u64 time; // CLOCK_MONOTONIC in ns, network order
} __attribute__((packed));

// One packet size of the pattern. Sums are of 16-bit words as they lie in memory, without what differs between packets.
struct size {
	__u32 bytes; // of the frame, without its checksum
	__u32 ip_sum;
	__u32 l4_sum;
};

struct config {
	__u64 header[HEADER_WORDS]; // as in memory; addresses' last words, ports, stamp and checksums are zero
	__u64 flows, space;         // flows in use at a time; all there can be
	__u64 limit;                // packets
	__u64 gap;                  // 1/1024 ns between packets, 0: none
	__u64 new_flows;            // per second
	__u32 ifindex;
	__u32 src, srcs, dst, dsts; // last 32 bits of the first address, host order; how many
	__u32 dst_step;             // from one destination to the next
	__u32 sport, sports, dport, dports;
	__u32 patterns;
	struct size pattern[PATTERN_MAX];
	__u32 template_bytes;       // length of the frame as it comes
	__u8 v6, proto, stamped, random;
};

const volatile struct config cfg;
__u64 duration_ns;             // of the run; 0: every packet is dropped
__u64 start_ns, end_ns;        // CLOCK_MONOTONIC; set by the first packet of the run
__u64 last_ns;                 // when the last packet was sent
__u64 call_ns, called_ns;      // first and last invocation of a system call; it sets call_ns to 0 before
__u64 sent, seq_next, next_at; // next_at in 1/1024 ns since start_ns

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u64 words(__u32 x) { return (x & 0xffff) + (x >> 16); }

SEC("xdp") int generate(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 now = bpf_ktime_get_ns();
	called_ns = now;
	if (!call_ns)
		call_ns = now;
	if (!start_ns) {
		start_ns = now;
		end_ns = now + duration_ns;
	}
	if (now >= end_ns || sent >= cfg.limit)
		return XDP_DROP;
	if (cfg.gap) {
		__u64 at = (now - start_ns) << 10;
		if (at < next_at)
			return XDP_DROP;
		if (at - next_at > 200000ULL << 10) // more than 200 us late: a hole in the stream, not a burst, is what follows
			next_at = at;
		next_at += cfg.gap;
	}
	if (data + 8 * HEADER_WORDS > end)
		return XDP_ABORTED;

	__u64 seq = seq_next++;
	__u64 flow = (cfg.random ? (__u64)bpf_get_prandom_u32() : seq) % cfg.flows;
	if (cfg.new_flows)
		flow += (now - start_ns) / 1000 * cfg.new_flows / 1000000;
	if (cfg.new_flows || cfg.flows > 1)
		flow %= cfg.space;
	// Neighbouring flows differ in the local port first, and in the remote port if there are several; see Flows in Go.
	__u64 cells = (__u64)cfg.srcs * cfg.sports;
	__u64 cell = flow % cells, turn = flow / cells;
	__u32 src = bpf_htonl(cfg.src + (__u32)(cell / cfg.sports));
	__u32 dst = bpf_htonl(cfg.dst + (__u32)(turn / cfg.dports % cfg.dsts) * cfg.dst_step);
	__u16 sport = bpf_htons(cfg.sport + (__u16)(cell % cfg.sports));
	__u16 dport = bpf_htons(cfg.dport + (__u16)((cell + turn) % cfg.dports));

	__u32 k = seq % cfg.patterns & (PATTERN_MAX - 1);
	asm volatile("" : "+r"(k)); // the verifier follows the masked value
	k &= PATTERN_MAX - 1;
	__u64 ip_sum = cfg.pattern[k].ip_sum + words(src) + words(dst);
	__u64 l4_sum = cfg.pattern[k].l4_sum + sport;
	__u16 length = bpf_htons(cfg.pattern[k].bytes - 14);

	// A recycled frame holds what the network made of it: everything is written anew.
#pragma unroll
	for (int i = 0; i < HEADER_WORDS; i++)
		((__u64 *)data)[i] = cfg.header[i];
	__u8 *l4;
	if (cfg.v6) {
		*(__u16 *)(data + 18) = bpf_htons(cfg.pattern[k].bytes - 54);
		*(__u32 *)(data + 34) = src;
		*(__u32 *)(data + 50) = dst;
		l4 = data + 54;
	} else {
		*(__u16 *)(data + 16) = length;
		*(__u16 *)(data + 24) = ~fold(ip_sum);
		*(__u32 *)(data + 26) = src;
		*(__u32 *)(data + 30) = dst;
		l4 = data + 34;
	}
	struct stamp *stamp;
	__u16 *check;
	if (cfg.proto == 1) { // ICMP of either family: the identifier
		*(__u16 *)(l4 + 4) = sport;
		check = (__u16 *)(l4 + 2);
		stamp = (struct stamp *)(l4 + 8);
		if (cfg.v6)
			l4_sum += words(src) + words(dst);
	} else {
		*(__u16 *)l4 = sport;
		*(__u16 *)(l4 + 2) = dport;
		l4_sum += dport + words(src) + words(dst);
		if (cfg.proto == 6) {
			check = (__u16 *)(l4 + 16);
			stamp = (struct stamp *)(l4 + 20);
		} else {
			*(__u16 *)(l4 + 4) = bpf_htons(cfg.pattern[k].bytes - (cfg.v6 ? 54 : 34));
			check = (__u16 *)(l4 + 6);
			stamp = (struct stamp *)(l4 + 8);
		}
	}
	if (cfg.stamped) {
		__u32 s = bpf_htonl((__u32)seq);
		__u64 t = bpf_cpu_to_be64(now);
		stamp->seq = s;
		stamp->time = t;
		l4_sum += words(s) + words((__u32)t) + words(t >> 32);
	}
	__u16 sum = ~fold(l4_sum);
	*check = sum || cfg.proto != 17 ? sum : 0xffff;
	if (cfg.pattern[k].bytes != cfg.template_bytes && bpf_xdp_adjust_tail(ctx, (int)cfg.pattern[k].bytes - (int)cfg.template_bytes))
		return XDP_ABORTED;
	sent++;
	last_ns = now;
	return bpf_redirect(cfg.ifindex, 0);
}

// What a sink counted of one stream, on one processor.
struct stream {
	__u64 packets, bytes;
	__u64 seen;      // 1 once a packet came
	__u64 first, high; // sequence numbers, extended to 64 bits
	__u64 reordered; // below one that came before
	__u64 sent_back;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STREAMS);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

// Latencies in ns: 32 buckets for each power of two, so that a value is known to 3 %.
struct histogram {
	__u64 bucket[BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct histogram);
} latencies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

const volatile __u32 back_every; // send back each packet whose sequence number is a multiple; 0: none

// Returns the stamp of a test packet whose bytes are there, or null.
static __always_inline struct stamp *find(__u8 *data, __u8 *end, __u32 *l4, __u8 *proto, __u8 *v6)
{
	if (data + 34 > end)
		return 0;
	__u16 type = *(__u16 *)(data + 12);
	if (type == bpf_htons(ETH_P_IP) && data[14] == 0x45) {
		*l4 = 34, *proto = data[23], *v6 = 0;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		*l4 = 54, *proto = data[20], *v6 = 1;
	} else {
		return 0;
	}
	__u32 at = *l4;
	if (*proto == 6)
		at += 20;
	else if (*proto == 17 || *proto == 1 || *proto == 58)
		at += 8;
	else
		return 0;
	struct stamp *s = (struct stamp *)(data + at);
	if ((__u8 *)(s + 1) > end || s->magic != STAMP_MAGIC)
		return 0;
	return s;
}

static __always_inline __u32 bucket(__u64 v)
{
	__u32 msb = 0;
	__u64 x = v;
	if (x >> 32) { msb += 32; x >>= 32; }
	if (x >> 16) { msb += 16; x >>= 16; }
	if (x >> 8) { msb += 8; x >>= 8; }
	if (x >> 4) { msb += 4; x >>= 4; }
	if (x >> 2) { msb += 2; x >>= 2; }
	if (x >> 1) msb += 1;
	if (msb < 5)
		return v;
	return (msb - 4) * 32 + ((v >> (msb - 5)) & 31);
}

static __always_inline void swap6(__u8 *a, __u8 *b)
{
	for (int i = 0; i < 6; i++) {
		__u8 t = a[i];
		a[i] = b[i];
		b[i] = t;
	}
}

// Turns a packet round: MAC and IP addresses, ports. No checksum changes, but that of an echo request's type.
static __always_inline int turn(__u8 *data, __u8 *end, __u32 l4, __u8 proto, __u8 v6)
{
	if (data + 42 > end || (v6 && data + 62 > end))
		return -1;
	swap6(data, data + 6);
	if (v6) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			__u32 *a = (__u32 *)(data + 22 + 4 * i), *b = (__u32 *)(data + 38 + 4 * i), t = *a;
			*a = *b;
			*b = t;
		}
	} else {
		__u32 *a = (__u32 *)(data + 26), t = a[0];
		a[0] = a[1];
		a[1] = t;
	}
	__u8 *h = v6 ? data + 54 : data + 34;
	if (proto == 6 || proto == 17) {
		__u16 *p = (__u16 *)h, t = p[0];
		p[0] = p[1];
		p[1] = t;
		return 0;
	}
	__u8 request = v6 ? 128 : 8, answer = v6 ? 129 : 0;
	if (h[0] != request)
		return -1;
	h[0] = answer;
	__u16 *check = (__u16 *)(h + 2);
	*check = ~fold((__u64)(__u16)~*check + (__u16)~bpf_htons(request << 8) + bpf_htons(answer << 8));
	return 0;
}

SEC("tc") int sink(struct __sk_buff *skb)
{
	__u32 l4;
	__u8 proto, v6;
	struct stamp *s = find((void *)(long)skb->data, (void *)(long)skb->data_end, &l4, &proto, &v6);
	if (!s) {
		if (skb->data_end - skb->data >= 96 || skb->len < 60 || bpf_skb_pull_data(skb, skb->len < 96 ? skb->len : 96))
			return TC_ACT_UNSPEC;
		s = find((void *)(long)skb->data, (void *)(long)skb->data_end, &l4, &proto, &v6);
		if (!s)
			return TC_ACT_UNSPEC;
	}
	__u32 seq = bpf_ntohl(s->seq), key = s->stream, zero = 0;
	__u64 now = bpf_ktime_get_ns(), then = bpf_be64_to_cpu(s->time);
	struct stream *st = bpf_map_lookup_elem(&streams, &key);
	struct histogram *h = bpf_map_lookup_elem(&latencies, &zero);
	if (!st || !h)
		return TC_ACT_UNSPEC;
	st->packets++;
	st->bytes += skb->len;
	if (!st->seen) {
		st->seen = 1;
		st->first = st->high = seq;
	} else {
		__s32 ahead = seq - (__u32)st->high;
		if (ahead > 0)
			st->high += ahead;
		else
			st->reordered++;
	}
	if (now >= then) {
		__u32 b = bucket(now - then);
		if (b < BUCKETS)
			h->bucket[b]++;
	}
	if (back_every && seq % back_every == 0 && !turn((void *)(long)skb->data, (void *)(long)skb->data_end, l4, proto, v6)) {
		st->sent_back++;
		return bpf_redirect(skb->ifindex, 0);
	}
	return TC_ACT_SHOT;
}

SEC("xdp") int to_socket(struct xdp_md *ctx)
{
	__u32 l4;
	__u8 proto, v6;
	if (!find((void *)(long)ctx->data, (void *)(long)ctx->data_end, &l4, &proto, &v6))
		return XDP_PASS;
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "GPL";
