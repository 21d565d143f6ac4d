package pktgen

// The object files are committed, so that building needs no clang; object_test.go checks that they match their source.
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang-14 -type stream kernel bpf/pktgen.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
