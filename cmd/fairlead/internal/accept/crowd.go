package accept

// From how many unauthenticated connections on, of those whose handshake has begun,
// there is a crowd, and down to how many it stays one. Hosts that reconnect are few
// at a time: they are authenticated a round trip later.
const (
	crowdFrom = 256
	crowdTo   = 64
)

// Crowd has a value when Crowded has changed.
func (a *Acceptor) Crowd() <-chan struct{} { return a.crowd }

// Crowded reports whether there are many unauthenticated connections that have more
// of the server than a goroutine.
func (a *Acceptor) Crowded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.crowded
}

// crowdLocked looks whether there is a crowd, after one has come or gone.
func (a *Acceptor) crowdLocked() {
	n := a.pools[begunPool].size + a.pools[callPool].size
	if now := n >= crowdFrom || a.crowded && n >= crowdTo; now == a.crowded {
		return
	}
	a.crowded = !a.crowded
	select {
	case a.crowd <- struct{}{}:
	default: // it has one
	}
}
