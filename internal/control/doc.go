// Package control is the way into a running gateway: HTTP with JSON over a unix socket, and its client.
//
// Who may connect is decided by the socket's mode and group (keys control.mode and control.group); there is no other
// authentication. Everything is read from published counters or asked of the workers in bounded slices, so that no
// request stops the data path. Numbers are integers; field names are stable, and fields may be added.
//
//	GET /v1/version   what the binary was built from, as `pollux version --json`
//	GET /v1/config    the effective configuration; ?format=yaml gives the file that would set it. Redirects added at run time
//	                  are apart: in "runtime", in YAML as a comment
//	POST /v1/reload   ReloadRequest: reads the configuration again, or takes the one given; answers with ReloadResult
//	POST /v1/redirects    {"kind", "redirect"}: adds a redirect, written as its flag is, until the next reload; DELETE takes it back
//	GET /v1/drain     {"drain": bool, "links": N}: whether new flows are turned away, and links left; PUT {"drain": bool} switches it
//	GET /v1/workers   {"workers": [pmd.WorkerStats...]}: counters and frames by place, one entry a worker
//	GET /v1/ports     {"ports": [pmd.PortStats...]}: one entry a network device
//	GET /v1/drops     {"drops": [{"reason", "count", "help"}...]}: every reason of internal/reason, zero counts too
//	GET /v1/links     {"links": [Link...], "more": bool}: streamed; memory use does not depend on how many there are
//	    ?address=     only links with this address or network (192.0.2.0/24) as local, alias or remote
//	    ?port=        only links with this port or ICMP id at any of the three
//	    ?proto=       tcp, udp, icmp or a number
//	    ?state=       opening, established, closing or active
//	    ?limit=       at most so many; more tells whether others were left out
//	GET /v1/hosts/top {"hosts": [Host...]}: those with the most ?by=links or refused, ?limit=10 of them
//	GET /v1/rtcache   {"rtcache": bool}: whether next hops are attached to links
//	PUT /v1/rtcache   the same object: switches it
//	GET /metrics      all numbers in Prometheus's text format (docs/monitoring.md)
//
// A refused request has status 4xx or 5xx and {"error": "one line"}. A dump of links that breaks off (the gateway stops)
// ends without its closing brackets, so that no client takes it for whole.
package control
