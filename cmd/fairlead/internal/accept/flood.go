package accept

// Number of unauthenticated connections whose handshake has begun from which there is a flood,
// and down to which it lasts. Hosts that reconnect are few at a time: they are authenticated
// one round trip later.
const (
	floodFrom = 256
	floodTo   = 64
)

// FloodChanged has a value when Flooded has changed.
func (a *Acceptor) FloodChanged() <-chan struct{} { return a.floodChanged }

// Flooded reports whether there are many unauthenticated connections that use more than a
// goroutine.
func (a *Acceptor) Flooded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flooded
}

// checkFloodLocked updates flooded after a connection has begun or ended.
func (a *Acceptor) checkFloodLocked() {
	n := a.pools[begunPool].size + a.pools[callPool].size
	if now := n >= floodFrom || a.flooded && n >= floodTo; now == a.flooded {
		return
	}
	a.flooded = !a.flooded
	select {
	case a.floodChanged <- struct{}{}:
	default: // one is pending
	}
}
