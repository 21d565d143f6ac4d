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
//	POST /v1/restart  hands the gateway to a new process of the program as it is on disk now; {"pid", "gap_ns"}
//	GET /v1/drain     {"drain": bool, "links": N}: whether new flows are turned away, and links left; PUT {"drain": bool} switches it
//	GET /v1/workers   {"workers": [pmd.WorkerStats...]}: counters and frames by place, one entry a worker
//	GET /v1/ports     {"ports": [pmd.PortStats...]}: one entry a network device
//	GET /v1/drops     {"drops": [Drop...]}: every reason of internal/reason, zero counts too, with the last packet of each
//	    ?interval=    take two samples so far apart (500ms) and tell rates
//	GET /v1/links     {"links": [Link...], "more": bool}
//	    ?address=     only links with this address or network (192.0.2.0/24) as local, alias or remote
//	    ?local= ?alias= ?remote=      the same for one of the three
//	    ?port=        only links with this port or ICMP id at any of the three
//	    ?proto=       tcp, udp, icmp or a number
//	    ?state=       opening, established, closing or active
//	    ?opened=      out: by the inside host; in: from outside
//	    ?worker=      a worker's number
//	    ?older= ?younger= ?idle=      durations (90s, 2h): made so long ago at least, at most; without a packet for so long
//	    ?limit=       at most so many; more tells whether others were left out
//	DELETE /v1/links  {"deleted": N}: ends the links that the same parameters pick, or with all=true every link
//	GET /v1/hosts     {"hosts": [Host...], "more": bool}  ?address= ?worker= ?limit=
//	GET /v1/peers     {"peers": [Peer...], "more": bool}  ?address= ?limit=
//	GET /v1/blocks    {"blocks": [Block...], "more": bool}  ?address= (alias or host) ?limit=
//	GET /v1/pool      {"pool": [pmd.PoolInfo...]}: alias addresses, whose their ports are
//	GET /v1/redirects {"redirects": [Redirect...], "more": false}: with hits
//	GET /v1/routes    {"routes": [rtcache.RouteInfo...], "more": bool}  ?within=PREFIX or ?to=ADDRESS, ?limit=
//	GET /v1/hops      {"hops": [rtcache.HopInfo...], "more": bool}  ?limit=
//	GET /v1/who-had   Whose  ?alias=ADDR:PORT ?proto=
//	GET /v1/explain   pmd.Explanation  ?packet= (ParsePacket says how) ?in=PORT
//	GET /v1/hosts/top {"hosts": [Host...]}: those with the most ?by=links or refused, ?limit=10 of them
//	GET /v1/rtcache   {"rtcache": bool}: whether next hops are attached to links
//	PUT /v1/rtcache   the same object: switches it
//	GET /metrics      all numbers in Prometheus's text format (docs/monitoring.md)
//
// Lists with "more" are streamed: the gateway holds one chunk of them, however long they are, and at most two such requests
// are served at a time (503 tells a third one to try again). A refused request has status 4xx or 5xx and {"error": "one
// line"}. A list that breaks off (the gateway stops) ends without its closing brackets, so that no client takes it for
// whole. docs/api.md says what the fields mean.
package control
