// Package metrics serves the gateway's numbers to Prometheus.
//
// The list of metrics is one table (list.go): name, kind, help, labels, and how it is read off a pmd.Sample. The
// documentation's table is printed from it, and tests hold dashboard and alert rules against it. Labels name ports, workers,
// reasons, alias addresses: things that there are few of, never hosts, links or peers.
//
// A scrape never stops the data path: a sample is read from published counters and by the workers' mailboxes between two
// bursts, one at a time, and is good for a moment, however many scrape.
package metrics
