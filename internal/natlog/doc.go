// Package natlog is the translation log: who had which alias address and port, and when, told to collectors by syslog
// (RFC 5424) and IPFIX (RFC 7011 with the NAT events of RFC 8158).
//
//	shard ──ring──> reader ──queue──> sender ──> syslog collector
//	shard ──ring──>        ──queue──> sender ──> IPFIX collector
//
// A shard writes events into its own ring and never waits. One goroutine reads all rings, turns ticks into the time of day,
// and puts the events into the queue of each collector; a goroutine for each collector encodes and sends. Rings and queues are
// bounded: what finds one full is lost and counted. The formats are documented in docs/logging.md.
package natlog
