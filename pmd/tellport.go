package pmd

import (
	"log/slog"

	"pollux/rtcache"
)

// tellWarning says what of the kernel's routing is not followed.
func tellWarning(text string, over bool) {
	if over {
		slog.Info("routing: no more: " + text)
	} else {
		slog.Warn("routing: " + text)
	}
}

// tellPort says what happened to a port while the gateway runs on.
func tellPort(was, is rtcache.Port) {
	switch {
	case is.Gone && !was.Gone:
		slog.Warn("the interface was deleted: forwarding goes on by the other ports, and by this one when it is made again", "port", is.Name)
	case is.Waiting || was.Waiting: // told by whoever binds it
	case is.Up != was.Up && is.Up:
		slog.Info("the interface is up again", "port", is.Name)
	case is.Up != was.Up:
		slog.Warn("the interface is down: what has another route takes it", "port", is.Name)
	}
}
