// Package integration proves the built pollux binary from outside: real programs in network namespaces, AF_XDP sockets in
// between. It also holds the tests that look at the tree as a whole. Without root or AF_XDP the lab tests skip, saying
// why; with POLLUX_REQUIRE_LAB=1 they fail instead.
package integration
