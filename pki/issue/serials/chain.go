package serials

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/pki/profile"
)

const (
	// keptBefore is how many certificates before the one in use are known by
	// number; what is older, is older.
	keptBefore = 3
	// maxNodes bounds a chain, whatever its host asks for.
	maxNodes = 12
)

// Serial is the serial number of a certificate of this authority.
type Serial [16]byte

// SerialOf is the certificate's.
func SerialOf(c *x509.Certificate) (s Serial) {
	if b := c.SerialNumber; b.Sign() > 0 && b.BitLen() <= 8*len(s) {
		b.FillBytes(s[:])
	}
	return s
}

// String is the number in hex, as logs and openssl have it.
func (s Serial) String() string { return hex.EncodeToString(s[:]) }

// MarshalText implements encoding.TextMarshaler.
func (s Serial) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Serial) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(s) {
		return errors.New("serial number of the wrong length")
	}
	_, err := hex.Decode(s[:], text)
	return err
}

// node is a certificate of a host.
type node struct {
	Serial Serial `json:"serial"`
	// Parent is the one that asked for it; zero where that was a join token.
	Parent Serial `json:"parent"`
	// Issued is when, by the certificate.
	Issued time.Time `json:"issued"`
	// Left is one that its host cannot have any more: another took its place.
	Left bool `json:"left,omitempty"`
	// Peer is the address that it was used from last, without the port.
	Peer string `json:"peer,omitempty"`
}

// Fork is two holders of one key.
type Fork struct {
	At time.Time `json:"at"`
	// Serials are the certificates that are in use in turn, Peers where from.
	Serials [2]Serial `json:"serials"`
	Peers   [2]string `json:"peers"`
}

// chain is what is known of one host. All of it that has no tag is of this
// process.
type chain struct {
	Version int             `json:"version"`
	Host    string          `json:"host"`
	Binding profile.Binding `json:"binding"`
	Nodes   []node          `json:"nodes"` // by time of issue
	// Head is the one in use; zero before there was one.
	Head Serial `json:"head"`
	// Overlap: when the head changed to one that does not follow from it, the one
	// before was still in use.
	Overlap bool `json:"overlap,omitempty"`
	// Turns counts uses of what had been left.
	Turns    int       `json:"turns,omitempty"`
	Returns  int       `json:"returns,omitempty"`
	Returned time.Time `json:"returned,omitzero"`
	Fork     *Fork     `json:"fork,omitempty"`

	conns    map[*connection]struct{}
	moved    time.Time // when the head changed
	switched time.Time // when it changed to one that does not follow from it
}

// connection is one that is open.
type connection struct {
	serial Serial
	peer   string
	began  time.Time
	hangup func()
}

func (c *chain) find(s Serial) *node {
	i := slices.IndexFunc(c.Nodes, func(n node) bool { return n.Serial == s })
	if i < 0 {
		return nil
	}
	return &c.Nodes[i]
}

// follows says whether a certificate is the other one, or follows from it.
func (c *chain) follows(s, from Serial) bool {
	for range len(c.Nodes) + 1 {
		if s == from {
			return true
		}
		n := c.find(s)
		if n == nil {
			return false
		}
		s = n.Parent
	}
	return false
}

// add puts a certificate where its time of issue is.
func (c *chain) add(n node) {
	if c.find(n.Serial) != nil {
		return
	}
	at := len(c.Nodes)
	for at > 0 && c.Nodes[at-1].Issued.After(n.Issued) {
		at--
	}
	c.Nodes = slices.Insert(c.Nodes, at, n)
	c.prune()
}

// prune drops what tells least: what is long before the head, then what was never
// used, then the oldest.
func (c *chain) prune() {
	before := 0
	for i, n := range slices.Backward(c.Nodes) {
		if s := n.Serial; s != c.Head && c.follows(c.Head, s) {
			if before++; before > keptBefore {
				c.Nodes = slices.Delete(c.Nodes, i, i+1)
			}
		}
	}
	for len(c.Nodes) > maxNodes {
		newest := c.Nodes[len(c.Nodes)-1].Serial
		keep := func(n node) bool { return n.Serial == c.Head || n.Serial == newest }
		i := slices.IndexFunc(c.Nodes, func(n node) bool { return n.Peer == "" && !keep(n) })
		if i < 0 {
			i = slices.IndexFunc(c.Nodes, func(n node) bool { return !keep(n) })
		}
		c.Nodes = slices.Delete(c.Nodes, i, i+1)
	}
}

// event is what the use of a certificate means.
type event int

const (
	nothing  event = iota
	progress       // the next one is in use
	returned       // one that had been left is in use again
	forked         // … and so is the other
)

// use judges that a connection was opened with a certificate.
func (c *chain) use(k *connection, issued, now time.Time) event {
	n := c.find(k.serial)
	newest := c.Nodes[len(c.Nodes)-1].Issued
	switch {
	case k.serial == c.Head:
		if n != nil {
			n.Peer = k.peer
		}
		return nothing
	case c.Head != (Serial{}) && k.began.Before(c.moved):
		return nothing // an older connection
	case n == nil && issued.After(newest):
		// Issued while nobody wrote it down: the chain begins anew.
		c.Nodes, c.Overlap = []node{{Serial: k.serial, Issued: issued, Peer: k.peer}}, false
		c.Head, c.moved = k.serial, now
		return progress
	case n != nil && !n.Left && (c.Head == Serial{} || c.follows(k.serial, c.Head)):
		n.Peer = k.peer
		c.move(k.serial, now)
		return progress
	}
	overlap, elsewhere := c.overlaps(k)
	left := n != nil && !c.follows(c.Head, k.serial)
	if left {
		overlap = overlap || n.Left && c.Overlap
		if was := c.find(c.Head); was != nil && !sameMachine(was.Peer, k.peer) {
			elsewhere = true
		}
	}
	before := c.Head
	if c.Head = k.serial; n == nil {
		c.add(node{Serial: k.serial, Issued: issued})
	}
	c.move(k.serial, now)
	c.switched, c.Overlap = now, overlap
	c.Returns++
	c.Returned = now.UTC()
	from := ""
	if was := c.find(before); was != nil {
		from = was.Peer
	}
	if n = c.find(k.serial); n != nil {
		n.Peer = k.peer
	}
	if !left {
		return returned
	}
	c.Turns++
	// One host may go back and forth once by itself, when its clock is set and set
	// right again; then both come from one address.
	if !overlap || !elsewhere && c.Turns < 2 {
		return returned
	}
	if c.Fork == nil {
		c.Fork = &Fork{At: now.UTC(), Serials: [2]Serial{before, k.serial}, Peers: [2]string{from, k.peer}}
	}
	return forked
}

// move makes a certificate the one in use: what does not lead to it, and is there
// already, has been left.
func (c *chain) move(to Serial, now time.Time) {
	c.Head, c.moved = to, now
	for i := range c.Nodes {
		c.Nodes[i].Left = !c.follows(to, c.Nodes[i].Serial)
	}
	c.prune()
}

// overlaps says whether a connection of the other holder is open, if there is one,
// and whether it comes from another address: one by a certificate that does not
// lead to this one, or that was opened since the head changed sides.
func (c *chain) overlaps(k *connection) (overlap, elsewhere bool) {
	for o := range c.conns {
		if o == k || o.serial == k.serial {
			continue
		}
		if !c.follows(k.serial, o.serial) || !c.switched.IsZero() && !o.began.Before(c.switched) {
			overlap, elsewhere = true, elsewhere || !sameMachine(o.peer, k.peer)
		}
	}
	return overlap, elsewhere
}

// sameMachine reports whether two addresses may be those of one machine, which has a
// /64 of IPv6 and changes its address by itself.
func sameMachine(a, b string) bool { return peeraddr.Group(a) == peeraddr.Group(b) }
