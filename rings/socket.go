package rings

// Socket is one AF_XDP socket: one queue of one netdev.
type Socket struct{}
