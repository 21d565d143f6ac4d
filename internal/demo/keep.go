package demo

import (
	"net/netip"

	"pollux/internal/lab"
)

// Serve runs the servers that a kept lab offers until the process ends. It is called in a process inside a namespace:
// where is "inside" or "outside".
func Serve(where string, addr netip.Addr) error {
	here, err := lab.Here()
	if err != nil {
		return err
	}
	if where == "inside" {
		_, err = lab.ServeTCP(here, netip.AddrPortFrom(addr, 80).String(), lab.Tell("inside-server"))
	} else {
		if _, err = lab.ServeFiles(here, netip.AddrPortFrom(addr, 80).String()); err == nil {
			_, err = lab.ServeUDPEcho(here, netip.AddrPortFrom(addr, 7).String())
		}
	}
	if err != nil {
		return err
	}
	select {}
}

// keep starts servers that outlive the demo and notes how to reach the lab.
func (d *driver) keep(binary string, pid int) error {
	in, out := d.lab.Inside[0], d.lab.Outside[0]
	for _, h := range []struct {
		where string
		*lab.Host
	}{{"inside", in}, {"outside", out}} {
		if _, err := d.lab.StartServer(h.Namespace, binary, "demo", "serve", h.where, h.Addr.String()); err != nil {
			return err
		}
	}
	d.report.Kept = &Kept{Inside: in.Name, Gateway: d.lab.Gateway.Name, Outside: out.Name, Socket: d.lab.Socket(), PID: pid}
	return nil
}
