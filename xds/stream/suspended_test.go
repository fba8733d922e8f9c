package stream

import (
	"testing"
	"time"
)

// Virtual hosts that are suspended, because their route configuration is inline now, have
// no deadline: the owner of the stream would spin.
func TestSuspendedHostsHaveNoDeadline(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "R/x=1", "v/x/a=1", "v/x/b=1"))
	m.mute[VirtualHostType] = true
	m.set(gen(2, "c/a=1", "e/a=1", "l/x=1", "R/x=1", "v/x/a=2", "v/x/b=1"))
	m.set(gen(3, "c/a=1", "e/a=1", "l/x=1", "R/x=1", "v/x/a=3", "v/x/b=1"))
	m.set(gen(4, "c/a=1", "e/a=1", "l/x=1", "r/x=4"))
	m.now = m.now.Add(21 * time.Second)
	m.run()
	if d := s.NextDeadline(); !d.IsZero() && !d.After(m.now) {
		t.Errorf("nothing to send, yet due %v ago", m.now.Sub(d))
	}
}
