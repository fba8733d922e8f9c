package server

import "testing"

// Whatever the limit is, connections leave descriptors for everything else, and
// what is asked for is given where there is room.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	t.Parallel()
	for _, consul := range []bool{false, true} {
		reserved := reservedDescriptors
		if consul {
			reserved += reservedForConsul
		}
		for _, plaintext := range []int{0, maxPlaintext} {
			for limit := uint64(16); limit < 1<<21; limit += 1 + limit/3 {
				hosts, plain := descriptors(limit, DefaultMaxConnections, plaintext, consul)
				left := int(limit) - hosts - plain
				if hosts < 1 || plain > plaintext || left < min(reserved, int(limit)/2) {
					t.Errorf("of %d descriptors %d are for hosts, %d for connections without TLS, and %d are left", limit, hosts, plain, left)
				}
				if room := int(limit) - reserved - plaintext; hosts < DefaultMaxConnections && hosts < room {
					t.Errorf("of %d descriptors %d are for hosts, though there is room for %d", limit, hosts, room)
				}
			}
		}
	}
}
