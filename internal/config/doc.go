// Package config turns a strict YAML file and command-line flags into one immutable value.
//
// Every key is one row of the table in keys.go, which gives its name, default, help, flag, and how it is read and
// printed; nothing else knows the list of keys. Reading goes file -> tree of nodes (yaml.go), flags laid over it
// (flags.go), tree -> settings (load.go), checks between keys (check.go). Every error is one line,
// `FILE:LINE:COL: what is wrong, what is allowed`, or `--flag: ...` for what a flag said. Lines and columns start at 1;
// columns count characters.
package config
